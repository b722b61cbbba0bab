//! Files that others rewrite: mounted `ConfigMap` and Secret volumes, and plain files of users and tests.
//!
//! A projected volume is a directory whose `..data` link the kubelet moves from one complete set of files to the next. All
//! keys are read through one resolved `..data`, so that values of two moments are never mixed. [`watch`] tells when the
//! content changed. Never interprets what it reads; the only file ever written is the one given to [`replace`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

mod fingerprint;
pub mod watch;

/// What a projected volume's directory calls the set of files in force.
const DATA: &str = "..data";
/// How often a set that is replaced while it is read is begun anew.
const ATTEMPTS: usize = 5;
/// More than any config or netmap has; keeps a wrong path from filling the memory.
const LARGEST: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("cannot read directory {path}: {source}; check that the volume is mounted there")]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}; check that it is a file and its permissions")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has {size} bytes, more than the {LARGEST} that are read at most")]
    TooLarge { path: PathBuf, size: u64 },
    #[error("{path} was replaced {ATTEMPTS} times while it was read")]
    Unsettled { path: PathBuf },
    #[error("cannot write {path}: {source}; check that its directory exists and is writable")]
    Write { path: PathBuf, source: io::Error },
}

impl FilesError {
    /// A closed set of words for metric labels and Event reasons.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Directory { .. } => "NoDirectory",
            Self::Read { .. } => "Unreadable",
            Self::TooLarge { .. } => "TooLarge",
            Self::Unsettled { .. } => "Unsettled",
            Self::Write { .. } => "Unwritable",
        }
    }
}

/// The wanted files of a directory, all of one moment; a file that is not there is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub files: BTreeMap<String, Bytes>,
    /// Whether they came through `..data`; such files are never half written, plain ones may be.
    pub projected: bool,
}

impl Snapshot {
    /// Whether some file may have been read between its truncation and its writing.
    fn half_written(&self) -> bool {
        !self.projected && self.files.values().any(Bytes::is_empty)
    }
}

/// Reads the named files of a directory, consistently if it is a projected volume. Blocks.
pub fn read(directory: &Path, names: &[String]) -> Result<Snapshot, FilesError> {
    for _ in 0..ATTEMPTS {
        let set = data(directory)?;
        let base = set.as_ref().map_or_else(|| directory.to_owned(), |target| directory.join(target));
        let files =
            names.iter().filter_map(|name| read_one(&base.join(name)).transpose().map(|read| read.map(|bytes| (name.clone(), bytes))));
        let files = files.collect::<Result<_, _>>()?;
        if data(directory)? == set {
            return Ok(Snapshot { files, projected: set.is_some() });
        }
    }
    Err(FilesError::Unsettled { path: directory.to_owned() })
}

/// Replaces a file by one with this content, so that a reader sees the old or the new content whole. Blocks.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), FilesError> {
    replace_with_mode(path, content, 0o644).map_err(|source| FilesError::Write { path: path.to_owned(), source })
}

/// As [`replace`], and nobody else may read it. Blocks.
pub fn replace_private(path: &Path, content: &[u8]) -> Result<(), FilesError> {
    replace_with_mode(path, content, 0o600).map_err(|source| FilesError::Write { path: path.to_owned(), source })
}

/// Removes a file, if there is one. Blocks.
pub fn remove(path: &Path) -> Result<(), FilesError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(FilesError::Write { path: path.to_owned(), source }),
        _ => Ok(()),
    }
}

/// As [`replace`], with these permissions. Blocks.
fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&aside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&aside, path)
}

/// The target of `..data`; nothing if the directory is a plain one.
fn data(directory: &Path) -> Result<Option<OsString>, FilesError> {
    match fs::read_link(directory.join(DATA)) {
        Ok(target) => Ok(Some(target.into_os_string())),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fail = |source| FilesError::Directory { path: directory.to_owned(), source };
            let is_directory = fs::metadata(directory).map_err(fail)?.is_dir();
            is_directory.then_some(None).ok_or_else(|| fail(io::ErrorKind::NotADirectory.into()))
        }
        Err(source) => Err(FilesError::Directory { path: directory.to_owned(), source }),
    }
}

/// The content of a file; nothing if there is none. Anything but a regular file is refused before it can block. Blocks.
pub fn read_one(path: &Path) -> Result<Option<Bytes>, FilesError> {
    let fail = |source| FilesError::Read { path: path.to_owned(), source };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    if !metadata.is_file() {
        return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    if metadata.len() > LARGEST {
        return Err(FilesError::TooLarge { path: path.to_owned(), size: metadata.len() });
    }
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    match fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut content)) {
        Ok(_) => Ok(Some(content.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(error)),
    }
}

#[cfg(test)]
mod tests;

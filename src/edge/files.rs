//! Files that other processes rewrite: mounted `ConfigMap` and Secret volumes, and plain files of users and tests.
//!
//! A projected volume is a directory whose `..data` link the kubelet moves atomically from one complete set of files to the next. All keys
//! are read through one resolved `..data`, so that values of two versions are never mixed. [`watch`] reports content changes. Content is
//! not interpreted; files are written only by [`replace`], [`replace_private`] and [`replace_of_user`], and deleted only by [`remove`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;

mod fingerprint;
pub mod watch;

/// Link to the current set of files in a projected volume.
const DATA: &str = "..data";
/// Maximum attempts to read a set that is replaced meanwhile.
const ATTEMPTS: usize = 5;
/// Maximum bytes of a file, more than any config or netmap has; bounds the memory for a wrong path.
const LARGEST: u64 = 64 << 20;

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum FilesError {
    #[error("cannot read directory {path}: {source}; check that the volume is mounted there")]
    NoDirectory { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}; check that it is a file and its permissions")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} has {size} bytes, more than the {LARGEST} that are read at most")]
    TooLarge { path: PathBuf, size: u64 },
    #[error("{path} was replaced {ATTEMPTS} times while it was read")]
    Unsettled { path: PathBuf },
    #[error("cannot write {path}: {source}; check that its directory exists and is writable")]
    Unwritable { path: PathBuf, source: io::Error },
}

impl FilesError {
    /// Closed set of values for metric labels and Event reasons.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

/// Requested files of a directory, all of one version; missing files are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub files: BTreeMap<String, Bytes>,
    /// Whether the files were read through `..data`; such files are complete, plain ones may be partially written.
    pub projected: bool,
}

impl Snapshot {
    /// Whether a file may have been read between truncation and write.
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

/// Replaces a file atomically, so that readers see the old or the new content. Blocks.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), FilesError> {
    replace_with_mode(path, content, 0o644).map_err(|source| FilesError::Unwritable { path: path.to_owned(), source })
}

/// As [`replace`], with mode 0600. Creates a missing directory: that of a Pod's config is filled later than these files are written. Blocks.
pub fn replace_private(path: &Path, content: &[u8]) -> Result<(), FilesError> {
    let created = path.parent().map_or(Ok(()), fs::create_dir_all);
    created
        .and_then(|()| replace_with_mode(path, content, 0o600))
        .map_err(|source| FilesError::Unwritable { path: path.to_owned(), source })
}

/// As [`replace`], for a file of a user: the target of a link, with the mode of the former file, else 0600. Creates missing directories. Blocks.
pub fn replace_of_user(path: &Path, content: &[u8]) -> Result<(), FilesError> {
    let replace = || {
        let target = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            target => target?,
        };
        let mode = fs::metadata(&target).map_or(0o600, |metadata| metadata.permissions().mode() & 0o777);
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let mut file = tempfile::Builder::new().prefix(".tailyard-").tempfile_in(directory)?;
        file.write_all(content)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(&target).map(drop).map_err(|error| error.error)
    };
    replace().map_err(|source| FilesError::Unwritable { path: path.to_owned(), source })
}

/// Removes a file; a missing one is no error. Blocks.
pub fn remove(path: &Path) -> Result<(), FilesError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(FilesError::Unwritable { path: path.to_owned(), source }),
        _ => Ok(()),
    }
}

/// As [`replace`], with this mode. Blocks.
fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// Target of `..data`; `None` for a plain directory.
fn data(directory: &Path) -> Result<Option<OsString>, FilesError> {
    match fs::read_link(directory.join(DATA)) {
        Ok(target) => Ok(Some(target.into_os_string())),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fail = |source| FilesError::NoDirectory { path: directory.to_owned(), source };
            let is_directory = fs::metadata(directory).map_err(fail)?.is_dir();
            is_directory.then_some(None).ok_or_else(|| fail(io::ErrorKind::NotADirectory.into()))
        }
        Err(source) => Err(FilesError::NoDirectory { path: directory.to_owned(), source }),
    }
}

/// Reads a file; `None` if it does not exist. Anything but a regular file is rejected before a read could hang. Blocks.
pub fn read_one(path: &Path) -> Result<Option<Bytes>, FilesError> {
    let fail = |source| FilesError::Unreadable { path: path.to_owned(), source };
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

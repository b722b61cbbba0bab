//! File stamps, which detect unchanged files without reading them: the current set, and the identity, size and times of each file.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{FilesError, data};

/// Minimum age of the last change: a younger file may change again without a new timestamp, as the timestamps of some file systems have a
/// granularity of seconds.
const MIN_CHANGE_AGE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    set: Option<OsString>,
    files: Vec<Option<Mark>>,
}

/// State of a file. The kernel sets the change time (ctime); users cannot set it back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Stats the files. Blocks.
    pub(super) fn of(directory: &Path, names: &[String]) -> Result<Self, FilesError> {
        let set = data(directory)?;
        let base = set.as_ref().map_or_else(|| directory.to_owned(), |target| directory.join(target));
        let files = names.iter().map(|name| {
            let path = base.join(name);
            Mark::of(&path).map_err(|source| FilesError::Unreadable { path, source })
        });
        Ok(Self { files: files.collect::<Result<_, _>>()?, set })
    }

    /// Whether every later change gives another stamp: the last change is old enough at `now`.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        let Some(until) = now.checked_sub(MIN_CHANGE_AGE).and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok()) else {
            return false;
        };
        let old = |(seconds, _): (i64, i64)| u64::try_from(seconds).is_ok_and(|seconds| seconds < until.as_secs());
        self.files.iter().flatten().all(|mark| old(mark.modified) && old(mark.changed))
    }
}

impl Mark {
    fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(found) => Ok(Some(Self {
                device: found.dev(),
                inode: found.ino(),
                size: found.size(),
                modified: (found.mtime(), found.mtime_nsec()),
                changed: (found.ctime(), found.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn stamp(directory: &TempDir) -> Stamp {
        Stamp::of(directory.path(), &["a".to_owned(), "b".to_owned()]).expect("readable")
    }

    #[test]
    fn stamp_changes_only_with_the_watched_files() {
        let directory = TempDir::new().expect("tempdir");
        let path = directory.path().join("a");
        let nothing = stamp(&directory);
        fs::write(&path, "1").expect("written");
        let one = stamp(&directory);
        assert_ne!(one, nothing);
        fs::write(directory.path().join("c"), "of no interest").expect("written");
        assert_eq!(stamp(&directory), one);
        fs::write(&path, "22").expect("longer");
        let longer = stamp(&directory);
        assert_ne!(longer, one);
        fs::write(directory.path().join("new"), "33").expect("written");
        fs::rename(directory.path().join("new"), &path).expect("replaced");
        assert_ne!(stamp(&directory), longer, "another file of the same size");
        fs::remove_file(&path).expect("removed");
        assert_eq!(stamp(&directory), nothing);
    }

    #[test]
    fn stamp_of_recent_files_is_not_settled() {
        let directory = TempDir::new().expect("tempdir");
        assert!(stamp(&directory).is_settled(SystemTime::now()), "there is nothing that could have changed");
        fs::write(directory.path().join("a"), "1").expect("written");
        let stamp = stamp(&directory);
        let now = SystemTime::now();
        assert!(!stamp.is_settled(now) && !stamp.is_settled(now - Duration::from_hours(1)));
        assert!(stamp.is_settled(now + MIN_CHANGE_AGE + Duration::from_secs(2)));
    }
}

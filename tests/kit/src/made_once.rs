//! What every test of a build uses and one of them makes: images, and the authority of the control servers.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A directory that no test has used for this long is removed: no test waits so long between making it and reading it.
const UNUSED: Duration = Duration::from_hours(1);

/// A directory of the build, filled by the function unless one of this name was filled from equal inputs. Other callers wait meanwhile,
/// those of other programs, too.
pub fn made_once(name: &str, inputs: &impl Hash, make: impl FnOnce(&Path)) -> PathBuf {
    let all = crate::built().join("kit").join(name);
    fs::create_dir_all(&all).expect("a directory");
    let lock = File::create(all.join("lock")).expect("a file");
    lock.lock().expect("a lock");
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    let dir = all.join(format!("{:016x}", hasher.finish()));
    if !dir.exists() {
        remove_unused(&all);
        let part = tempfile::tempdir_in(&all).expect("a directory");
        make(part.path());
        fs::rename(part.keep(), &dir).expect("renamed");
    }
    File::open(&dir).and_then(|opened| opened.set_modified(SystemTime::now())).expect("an own directory");
    dir
}

/// The size and age of a file, which change with its content.
pub fn stamp(path: &Path) -> Option<(u64, SystemTime)> {
    let found = fs::metadata(path).ok()?;
    Some((found.len(), found.modified().ok()?))
}

fn remove_unused(all: &Path) {
    for entry in fs::read_dir(all).expect("a directory") {
        let path = entry.expect("an entry").path();
        let used = fs::metadata(&path).and_then(|found| found.modified()).expect("an own file");
        if path.is_dir() && used.elapsed().is_ok_and(|unused| unused > UNUSED) {
            fs::remove_dir_all(path).expect("removed");
        }
    }
}

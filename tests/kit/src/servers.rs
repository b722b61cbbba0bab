//! The real servers that tests run, built and cached by `tests/servers/build`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The directory of the real programs, these built if need be.
pub fn servers(names: &[&str]) -> PathBuf {
    let build = crate::root().join("tests/servers/build");
    let output = Command::new(&build).args(names).stderr(Stdio::inherit()).output().expect("tests/servers/build");
    assert!(output.status.success(), "{} failed", build.display());
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

//! The real servers that tests run, built and cached by `tests/servers/build`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Environment of a control plane's programs, which live for minutes: fewer garbage collections, and an API server of some more memory.
pub(crate) const GARBAGE_COLLECTION: [(&str, &str); 2] = [("GOGC", "400"), ("GOMEMLIMIT", "1GiB")];

/// The release of Tailscale whose programs [`servers`] returns: `1.104.7`.
pub fn tailscale_release() -> String {
    let output = Command::new(servers(&["tailscaled"]).join("tailscaled")).arg("--version").output().expect("tailscaled");
    let version = String::from_utf8(output.stdout).expect("a version");
    version.split(['-', '\n']).next().unwrap_or_default().to_owned()
}

/// The directory of the real programs, these built if need be.
pub fn servers(names: &[&str]) -> PathBuf {
    let build = crate::root().join("tests/servers/build");
    let output = Command::new(&build).args(names).stderr(Stdio::inherit()).output().expect("tests/servers/build");
    assert!(output.status.success(), "{} failed", build.display());
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

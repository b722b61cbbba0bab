//! The real servers that tests run, built and cached by `tests/servers/build`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Environment of a control plane's programs, which live for minutes: fewer garbage collections, and an API server of some more memory.
pub(crate) const GARBAGE_COLLECTION: [(&str, &str); 2] = [("GOGC", "400"), ("GOMEMLIMIT", "1GiB")];

/// The release of Tailscale whose programs [`servers`] returns: `1.104.7`.
pub fn tailscale_release() -> String {
    printed_version("tailscaled").split(['-', '\n']).next().unwrap_or_default().to_owned()
}

/// The release of Kubernetes whose programs [`servers`] returns: `1.37.2`.
pub fn kubernetes_release() -> String {
    printed_version("kube-proxy").trim().trim_start_matches("Kubernetes v").to_owned()
}

/// Output of a program for `--version`.
fn printed_version(program: &str) -> String {
    let output = Command::new(servers(&[program]).join(program)).arg("--version").output().expect(program);
    String::from_utf8(output.stdout).expect("a version")
}

/// The directory of the real programs, these built if need be.
pub fn servers(names: &[&str]) -> PathBuf {
    let build = crate::root().join("tests/servers/build");
    let output = Command::new(&build).args(names).stderr(Stdio::inherit()).output().expect("tests/servers/build");
    assert!(output.status.success(), "{} failed", build.display());
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

//! Definitions of kinds: ours, as config/crd has them, and those of the Tailscale operator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The plural names of our kinds, in order.
pub const KINDS: [&str; 6] = ["connectors", "dnsconfigs", "proxyclasses", "proxygrouppolicies", "proxygroups", "tailnets"];

/// The file of a definition, under either's directory.
pub fn file(kind: &str) -> String {
    format!("tailscale.com_{kind}.yaml")
}

/// The directory of ours.
pub fn directory() -> PathBuf {
    crate::root().join("config/crd")
}

/// Our definitions, in the order of [`KINDS`].
pub fn ours() -> [Value; 6] {
    KINDS.map(|kind| read(&directory(), kind))
}

/// The Tailscale operator's definitions, in the order of [`KINDS`].
pub fn theirs() -> [Value; 6] {
    let directory = their_directory();
    KINDS.map(|kind| read(&directory, kind))
}

/// The Tailscale operator's chart, of the same version.
pub fn their_chart() -> PathBuf {
    their_directory().parent().expect("a parent").join("chart")
}

/// The root of their Go module, of the same version.
pub fn their_source() -> PathBuf {
    their_directory().ancestors().nth(4).expect("the root of the module").to_owned()
}

/// The directory of theirs, in the Go module of the version that is pinned.
pub fn their_directory() -> PathBuf {
    let found = Command::new(crate::root().join("tests/servers/crds")).stderr(Stdio::inherit()).output();
    let found = found.expect("tests/servers/crds");
    assert!(found.status.success(), "tests/servers/crds failed");
    PathBuf::from(String::from_utf8(found.stdout).expect("a path").trim())
}

fn read(directory: &Path, kind: &str) -> Value {
    let path = directory.join(file(kind));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

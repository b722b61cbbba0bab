//! Host or Pod facts: kernel version, links, TUN device. Read-only; opens the TUN device to test it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

const TUN: &str = "/dev/net/tun";
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const LINKS: &str = "/sys/class/net";

/// A file of the host could not be read or opened.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct NodeError {
    path: &'static str,
    source: io::Error,
}

impl NodeError {
    fn of(path: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { path, source }
    }
}

/// Version of the running kernel, as in `uname -r`.
pub fn kernel() -> Result<String, NodeError> {
    fs::read_to_string(RELEASE).map(|text| text.trim().to_owned()).map_err(NodeError::of(RELEASE))
}

/// Opens and closes the TUN device, which creates no interface.
pub fn tun() -> Result<(), NodeError> {
    OpenOptions::new().read(true).write(true).open(TUN).map(drop).map_err(NodeError::of(TUN))
}

/// Links by name, with their MTU in bytes. Links that disappear meanwhile are omitted.
pub fn links() -> Result<Vec<(String, u32)>, NodeError> {
    let entries = fs::read_dir(LINKS).map_err(NodeError::of(LINKS))?;
    let mtu = |path: &Path| fs::read_to_string(path.join("mtu")).ok()?.trim().parse().ok();
    let link = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, mtu(&entry.path())?));
    let mut links: Vec<_> = entries.filter_map(Result::ok).filter_map(link).collect();
    links.sort();
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_version_and_loopback_link_are_read() {
        assert!(kernel().expect("a version").starts_with(|character: char| character.is_ascii_digit()));
        assert!(links().expect("links").iter().any(|(name, mtu)| name == "lo" && *mtu > 1_000));
    }
}

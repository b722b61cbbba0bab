//! IP forwarding sysctls of this network namespace.
//!
//! Read first, and written only if off: on a Kubernetes node they are usually on and their file system is read-only. Forwarding is never
//! switched off.

use std::fs;
use std::io;
use std::path::Path;

use crate::model::base::net::Family;

/// Result for one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarding {
    On,
    SwitchedOn,
    /// The kernel or namespace does not support the family.
    Absent,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum SysctlError {
    #[error("cannot read {}: {source}", file(*family).0)]
    Read { family: Family, source: io::Error },
    #[error(
        "{family} forwarding is off and cannot be switched on here ({source}): run `sysctl -w {name}=1` in the Pod's network \
         namespace, from a privileged init container, or set it by the Pod's spec.securityContext.sysctls ({{name: {name}, value: \"1\"}}; \
         the kubelet must allow it with --allowed-unsafe-sysctls={name})",
        name = file(*family).1
    )]
    Write { family: Family, source: io::Error },
}

impl SysctlError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

/// Ensures that the calling thread's network namespace forwards packets of these families; returns one result for each, in order.
pub fn forward(families: &[Family]) -> Result<Vec<Forwarding>, SysctlError> {
    families.iter().map(|family| switch_on(*family)).collect()
}

fn switch_on(family: Family) -> Result<Forwarding, SysctlError> {
    let (path, _) = file(family);
    match fs::read(path) {
        Ok(value) if value.trim_ascii() != b"0" => return Ok(Forwarding::On),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new("/proc/sys/net").exists() => return Ok(Forwarding::Absent),
        Err(source) => return Err(SysctlError::Read { family, source }),
    }
    fs::write(path, "1").map(|()| Forwarding::SwitchedOn).map_err(|source| SysctlError::Write { family, source })
}

/// File and name of the sysctl.
fn file(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        Family::V6 => ("/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::edge::netns::Namespace;

    /// Runs work in a new network and mount namespace where forwarding is off and its sysctls are read-only.
    fn sealed<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let sealed = || {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("namespaces (root, or unshare -Urnm)");
            for family in Family::ALL {
                fs::write(file(family).0, "0").expect("off");
            }
            let (none, switches) = (None::<&str>, "/proc/sys/net");
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("a private tree");
            mount(Some(switches), switches, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).expect("a mount of its own");
            mount(none, switches, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).expect("read-only");
            work()
        };
        thread::scope(|scope| scope.spawn(sealed).join().expect("done"))
    }

    #[test]
    fn disabled_forwarding_is_enabled_and_enabled_forwarding_is_only_read() {
        let ns = Namespace::make().expect("a namespace");
        let off = || Family::ALL.map(|family| fs::write(file(family).0, "0").expect("off"));
        ns.run(off).expect("ran");
        let twice = ns.run(|| (forward(&Family::ALL), forward(&Family::ALL))).expect("ran");
        assert_eq!(twice.0.expect("switched on"), [Forwarding::SwitchedOn; 2]);
        assert_eq!(twice.1.expect("read"), [Forwarding::On; 2]);
    }

    #[test]
    fn read_only_disabled_sysctl_is_an_error_with_the_command() {
        for (family, name) in [(Family::V4, "net.ipv4.ip_forward"), (Family::V6, "net.ipv6.conf.all.forwarding")] {
            let error = sealed(|| forward(&[family])).expect_err(name);
            assert_eq!(error.reason(), "Write", "{family}");
            let text = error.to_string();
            assert!(text.contains(&format!("sysctl -w {name}=1")) && text.contains("securityContext.sysctls"), "{family}: {text}");
        }
    }
}

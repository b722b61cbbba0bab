//! Restarts the program in its own namespaces, without root where the host allows it.
//!
//! The second instance is PID 1 of a new PID namespace: when it exits, for any cause, the kernel kills all its descendants. Must be called
//! before the first thread starts; changes nothing outside.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getegid, geteuid};

/// Environment variable of the second instance.
const INSIDE: &str = "TAILYARD_PRIVATE_NAMESPACES";

#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    #[error("this user may not make namespaces here ({source}); {advice}")]
    Refused { source: io::Error, advice: &'static str },
    #[error("cannot map this user into a user namespace ({0}); run it as root instead")]
    Map(#[source] io::Error),
    #[error("cannot start in namespaces of its own: {0}")]
    Start(#[source] io::Error),
}

/// Signals that the first instance waits for.
fn awaited() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD].into_iter().collect()
}

/// Whether this is the second instance. If so, ties it to the first, so that it does not outlive it. Call it once, before anything else.
pub fn is_inside() -> bool {
    let inside = std::env::var_os(INSIDE).is_some();
    if inside {
        // If this fails, the second instance merely survives a SIGKILL of the first.
        let _ = set_pdeathsig(Signal::SIGKILL);
        // The first instance blocks these signals, and a child inherits the signal mask.
        let _ = awaited().thread_unblock();
        // Without it `/proc` still shows the outer processes with their PIDs there: only a nuisance.
        let _ = mount_proc();
    }
    inside
}

/// Mounts the `/proc` of this PID namespace, in this mount namespace only.
fn mount_proc() -> nix::Result<()> {
    let none: Option<&str> = None;
    // Private propagation first: mounts made here must not appear outside.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none)
}

/// Restarts this executable with these arguments in its own namespaces, forwards SIGINT and SIGTERM to it, and returns its exit code (128
/// plus the signal number after a signal).
pub fn run_inside(arguments: impl IntoIterator<Item = OsString>) -> Result<u8, PrivateError> {
    separate()?;
    let awaited = awaited();
    let start = |errno: Errno| PrivateError::Start(errno.into());
    awaited.thread_block().map_err(start)?;
    let executable = std::env::current_exe().map_err(PrivateError::Start)?;
    let mut child = Command::new(executable).args(arguments).env(INSIDE, "1").spawn().map_err(PrivateError::Start)?;
    loop {
        match awaited.wait().map_err(start)? {
            Signal::SIGCHLD => {
                if let Some(code) = ended(&mut child)? {
                    return Ok(code);
                }
            }
            // The child may have exited just now; then its SIGCHLD is pending.
            signal => drop(kill(Pid::from_raw(child.id().cast_signed()), signal)),
        }
    }
}

fn ended(child: &mut Child) -> Result<Option<u8>, PrivateError> {
    let status = child.try_wait().map_err(PrivateError::Start)?;
    let code = status.map(|status| status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1));
    Ok(code.map(|code| u8::try_from(code).unwrap_or(1)))
}

/// Creates namespaces for network, mounts and PIDs of new children; also a user namespace if necessary.
fn separate() -> Result<(), PrivateError> {
    let wanted = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    if geteuid().is_root() && unshare(wanted).is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid(), getegid());
    unshare(wanted | CloneFlags::CLONE_NEWUSER).map_err(|errno| PrivateError::Refused { source: errno.into(), advice: advice() })?;
    // The kernel accepts a group map only from a process that has disabled `setgroups`.
    let written = fs::write("/proc/self/uid_map", format!("0 {user} 1"))
        .and_then(|()| fs::write("/proc/self/setgroups", "deny"))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {group} 1")));
    written.map_err(PrivateError::Map)
}

/// Hint for the restriction that applies here.
fn advice() -> &'static str {
    let is = |path: &str, closed: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == closed);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        "allow it with: sudo sysctl -w user.max_user_namespaces=15000, or run it as root"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "allow it with: sudo sysctl -w kernel.unprivileged_userns_clone=1, or run it as root"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "allow it with: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run it as root"
    } else {
        "run it as root; in a container, with the capability SYS_ADMIN and without the seccomp filter that forbids unshare"
    }
}

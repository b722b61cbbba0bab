//! A program started again in namespaces of its own, without being root where the machine allows that.
//!
//! The second instance is the first process of a new process namespace: when it ends, however it ends, the kernel ends
//! everything that it started. Must be called before the first thread starts; touches nothing outside.

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

/// Set in the second instance's environment.
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

impl PrivateError {
    /// A closed set of words for reports.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "Refused",
            Self::Map(_) => "Map",
            Self::Start(_) => "Start",
        }
    }
}

/// The signals that the first instance waits for.
fn awaited() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD].into_iter().collect()
}

/// Whether this is the second instance. If so, it is tied to the first: it does not outlive it. To be asked once, first of all.
pub fn is_inside() -> bool {
    let inside = std::env::var_os(INSIDE).is_some();
    if inside {
        // Should this fail, the second instance survives if the first is killed, and nothing worse.
        let _ = set_pdeathsig(Signal::SIGKILL);
        // What the first instance awaits is blocked there, and a program inherits what is blocked.
        let _ = awaited().thread_unblock();
        // Without it /proc goes on to show the processes outside, under their numbers there: only a nuisance.
        let _ = mount_proc();
    }
    inside
}

/// A `/proc` of this process namespace, in this mount namespace only.
fn mount_proc() -> nix::Result<()> {
    let none: Option<&str> = None;
    // Before anything is mounted: nothing mounted here may appear outside.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none)
}

/// Starts this executable again with these arguments in its own namespaces, passes SIGINT and SIGTERM on to it, and
/// returns its exit code once it has ended (128 and the signal's number if a signal ended it).
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
            // It may have ended just now; then its SIGCHLD is pending.
            signal => drop(kill(Pid::from_raw(child.id().cast_signed()), signal)),
        }
    }
}

fn ended(child: &mut Child) -> Result<Option<u8>, PrivateError> {
    let status = child.try_wait().map_err(PrivateError::Start)?;
    let code = status.map(|status| status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1));
    Ok(code.map(|code| u8::try_from(code).unwrap_or(1)))
}

/// New namespaces for network, mounts and the processes started from now on; a user namespace too if it needs one.
fn separate() -> Result<(), PrivateError> {
    let wanted = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    if geteuid().is_root() && unshare(wanted).is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid(), getegid());
    unshare(wanted | CloneFlags::CLONE_NEWUSER).map_err(|errno| PrivateError::Refused { source: errno.into(), advice: advice() })?;
    // A group map is only accepted from a process that has given up changing its groups.
    let written = fs::write("/proc/self/uid_map", format!("0 {user} 1"))
        .and_then(|()| fs::write("/proc/self/setgroups", "deny"))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {group} 1")));
    written.map_err(PrivateError::Map)
}

/// Which of the usual locks is closed, and what opens it.
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

//! Reattachment to a daemon that a previous process left: identified by its environment variable among the children of PID 1.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::net::unix::pipe;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::{Handle, MARK, RunningDaemon, logs};

/// PID 1, which adopts orphaned processes.
const FIRST: &str = "1";

impl RunningDaemon {
    /// Finds the orphaned daemon and its arguments, separated by spaces; `None` without one. A daemon that cannot be reattached is logged
    /// and left running.
    pub fn orphan() -> Option<(Self, String)> {
        let here = fs::read_dir("/proc").ok()?;
        let numbers = here.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        numbers.filter(|pid| is_orphan(*pid)).find_map(|pid| match take(pid) {
            Ok(found) => found,
            Err(error) => {
                warn!(pid, %error, "a process that was left cannot be taken over");
                None
            }
        })
    }
}

/// Whether the process is a child of PID 1 and a process group leader, as the daemon is. Orphaned children of the daemon have the variable
/// too, but are no leaders.
fn is_orphan(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<_> = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
    matches!(fields.as_slice(), [_, parent, group, ..] if *parent == FIRST && *group == pid.to_string())
}

/// Reattaches to a process if it has the environment variable.
fn take(pid: i32) -> io::Result<Option<(RunningDaemon, String)>> {
    // The pidfd is opened before the environment is read, so that both are of the same process even if the PID was reused.
    let Some(number) = rustix::process::Pid::from_raw(pid) else { return Ok(None) };
    let handle = pidfd_open(number, PidfdFlags::empty())?;
    let proc = Path::new("/proc").join(pid.to_string());
    let environment = fs::read(proc.join("environ"))?;
    let marked = |variable: &[u8]| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    let Some(args) = environment.split(|byte| *byte == 0).find_map(marked) else { return Ok(None) };
    let output = |number: &str| pipe::OpenOptions::new().open_receiver(proc.join("fd").join(number));
    let logs = logs(output("1")?, output("2")?);
    let handle = Handle::Left(spawn_blocking(move || ended(&handle)));
    let daemon = RunningDaemon { handle, group: Pid::from_raw(pid), ended: None, _alive: None, logs };
    Ok(Some((daemon, String::from_utf8_lossy(&args).into_owned())))
}

/// Waits for the exit of a process.
fn ended(process: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

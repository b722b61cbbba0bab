//! Child processes: own process group, limit, end with the runner.
//!
//! A child gets SIGKILL when the thread that started it ends (`setpriv --pdeathsig`), so that nothing outlives a killed runner. Hence
//! the thread that starts a child waits for it.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// From SIGTERM to SIGKILL.
const GRACE_PERIOD: Duration = Duration::from_secs(3);

/// Signals belong to the whole process, and so does the request to stop.
static STOP: AtomicBool = AtomicBool::new(false);

/// How a child ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Exited(ExitStatus),
    /// Killed after its limit.
    Limit(Duration),
    /// Killed because the runner stops.
    Stopped,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(formatter, "ended with {status}"),
            Self::Limit(limit) => write!(formatter, "was killed after its limit of {} s", limit.as_secs()),
            Self::Stopped => formatter.write_str("was stopped with the runner"),
        }
    }
}

/// Ends all children, and every later one at once.
pub(super) fn stop() {
    STOP.store(true, Ordering::Relaxed);
}

pub(super) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Stops on SIGINT, SIGTERM and SIGHUP; the second of them ends the runner. For the main thread, before it starts others.
pub(super) fn handle_signals() -> io::Result<()> {
    signals().thread_block()?;
    thread::spawn(|| {
        while signals().wait().is_ok() {
            if stopped() {
                exit(130);
            }
            stop();
        }
    });
    Ok(())
}

fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}

/// A command that ends with the calling thread, without standard input.
pub(super) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program.as_ref()).stdin(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
}

/// Starts a child with the default signal mask. A signal that arrives meanwhile ends the runner, and with it all children.
fn spawn(command: &mut Command) -> io::Result<Child> {
    signals().thread_unblock()?;
    let child = command.spawn();
    signals().thread_block()?;
    child
}

/// Runs a command until it ends, exceeds its limit or the runner stops. Nothing of its process group is left.
pub(super) fn run(command: &mut Command, limit: Duration) -> io::Result<End> {
    let (mut child, begin) = (spawn(command)?, Instant::now());
    let group = Pid::from_raw(child.id().cast_signed());
    let forced = loop {
        if has_ended(group)? {
            break None;
        } else if stopped() {
            break Some(End::Stopped);
        } else if begin.elapsed() >= limit {
            break Some(End::Limit(limit));
        }
        thread::sleep(POLL_INTERVAL);
    };
    if forced.is_some() {
        killpg(group, Signal::SIGTERM)?;
        let begin = Instant::now();
        while !has_ended(group)? && begin.elapsed() < GRACE_PERIOD {
            thread::sleep(POLL_INTERVAL);
        }
    }
    // The child is not reaped yet: the group's number is still its own.
    killpg(group, Signal::SIGKILL)?;
    let status = child.wait()?;
    Ok(forced.unwrap_or(End::Exited(status)))
}

fn has_ended(pid: Pid) -> io::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(Id::Pid(pid), flags)? != WaitStatus::StillAlive)
}

/// An empty file, with the directories above it.
pub(super) fn create(path: &Path) -> Result<File, String> {
    path.parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| File::create(path))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// A process that uses one processor. It sleeps briefly four times a second: next to two processes that never do, Linux 6.18 delayed its
/// own threads (RCU among them) by up to 40 s, and with them every change of rules and namespaces.
const BUSY: &str = "while :; do i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; sleep 0.001; done";

/// Processes that use the processor, until this value is dropped or the runner ends.
#[derive(Debug, Default)]
pub(super) struct Busy(Vec<Child>);

impl Busy {
    pub(super) fn start(count: u32) -> io::Result<Self> {
        let mut busy = Self::default();
        for _ in 0..count {
            busy.0.push(spawn(command("sh").args(["-c", BUSY]))?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A child that has ended already needs neither.
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_killed_with_its_group_after_its_limit() {
        let begin = Instant::now();
        let limit = Duration::from_millis(200);
        let end = run(command("sh").args(["-c", "sleep 1000 & sleep 1000"]), limit).expect("a child");
        assert!(matches!(end, End::Limit(_)), "{end:?}");
        assert!(begin.elapsed() < Duration::from_mins(1));
    }

    #[test]
    fn a_child_reports_its_exit_status() {
        let end = run(command("sh").args(["-c", "exit 7"]), Duration::from_mins(1)).expect("a child");
        assert!(matches!(end, End::Exited(status) if status.code() == Some(7)), "{end:?}");
    }
}

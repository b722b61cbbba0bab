//! Init process of a container (PID 1): other processes of the container outlive a crash of the program.
//!
//! A container ends with its first process, and all its processes with it. So the program, if it is that process, starts itself as a child
//! and then only waits: it forwards SIGTERM and SIGINT, reaps orphaned processes, and restarts the program after a crash. An intended exit,
//! or a second crash within ten minutes, ends the container with the same status: the kubelet then sees it and applies its backoff.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Exit status of a program that detected its own crash (`EX_SOFTWARE`).
pub const CRASHED: u8 = 70;
/// Exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;
/// A crash this long after the previous one counts as the first. A kubelet resets its backoff after the same time.
const CRASH_RESET_PERIOD: Duration = Duration::from_mins(10);
/// Signals that are forwarded to the program.
const PASSED_ON: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Action after the program's end.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Again,
    /// End the container with this exit status.
    End(u8),
}

/// Runs this program as a child with the same arguments and restarts it after crashes; returns the exit status to end with. The child's
/// environment variable `variable` has the number of restarts and, after a blank, the reason of the last. The program must call
/// [`unblock_signals`].
pub fn keep(variable: &str) -> io::Result<u8> {
    let mut heard: SigSet = PASSED_ON.into_iter().collect();
    heard.add(Signal::SIGCHLD);
    // Signals stay pending between two waits, and until the program has its own handlers: it starts with the same signals blocked.
    heard.thread_block()?;
    let (mut restarts, mut why, mut signalled) = (0_u64, String::new(), false);
    let mut crashed: Option<Instant> = None;
    loop {
        let program = start(variable, format!("{restarts} {why}").trim_end())?;
        let end = loop {
            match heard.wait()? {
                Signal::SIGCHLD => {
                    if let Some(end) = reap(program) {
                        break end;
                    }
                }
                signal => {
                    signalled = true;
                    // The child has not been reaped, so its PID is not reused.
                    kill(program, signal)?;
                }
            }
        };
        match next(end, crashed.map(|at| at.elapsed()), signalled) {
            Next::End(status) => return Ok(status),
            Next::Again => (restarts, why, crashed) = (restarts + 1, describe(end), Some(Instant::now())),
        }
    }
}

/// Unblocks the signals that [`keep`] has blocked for the program.
pub fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::all().thread_unblock()?)
}

fn start(variable: &str, value: &str) -> io::Result<Pid> {
    let mut args = std::env::args_os();
    let mut program = Command::new(std::env::current_exe()?);
    let child = program.arg0(args.next().unwrap_or_default()).args(args).env(variable, value).spawn()?;
    i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)
}

/// Reaps all ended processes; returns the program's status if it is among them.
fn reap(program: Pid) -> Option<WaitStatus> {
    let mut end = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::EINTR) => {}
            Err(_) | Ok(WaitStatus::StillAlive) => return end,
            Ok(status) => end = end.or(Some(status).filter(|status| status.pid() == Some(program))),
        }
    }
}

/// Action after an end. `after`: time since the previous crash, if any; `signalled`: whether a signal was forwarded.
fn next(end: WaitStatus, after: Option<Duration>, signalled: bool) -> Next {
    let (crash, status) = match end {
        WaitStatus::Exited(_, code) => (code == i32::from(CRASHED) || code == PANICKED, code),
        WaitStatus::Signaled(_, signal, _) => (true, 128 + signal as i32),
        _ => (false, 1),
    };
    if crash && !signalled && after.is_none_or(|after| after >= CRASH_RESET_PERIOD) {
        Next::Again
    } else {
        Next::End(u8::try_from(status).unwrap_or(1))
    }
}

fn describe(end: WaitStatus) -> String {
    match end {
        WaitStatus::Signaled(_, signal, _) => format!("signal {signal}"),
        WaitStatus::Exited(_, code) => format!("exit status {code}"),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: Pid = Pid::from_raw(7);

    #[test]
    fn crash_restarts_the_program_and_exit_ends_the_container() {
        let killed = WaitStatus::Signaled(PROGRAM, Signal::SIGSEGV, false);
        let exited = |code| WaitStatus::Exited(PROGRAM, code);
        for (end, after, requested, wanted) in [
            (killed, None, false, Next::Again),
            (killed, Some(CRASH_RESET_PERIOD), false, Next::Again),
            (exited(CRASHED.into()), None, false, Next::Again),
            (exited(PANICKED), None, false, Next::Again),
            (killed, Some(CRASH_RESET_PERIOD / 2), false, Next::End(139)),
            (killed, None, true, Next::End(139)),
            (exited(0), None, false, Next::End(0)),
            (exited(0), None, true, Next::End(0)),
            (exited(1), None, false, Next::End(1)),
            (exited(64), None, false, Next::End(64)),
        ] {
            assert_eq!(next(end, after, requested), wanted, "{end:?} {after:?} after a crash, asked: {requested}");
        }
        assert_eq!((describe(killed), describe(exited(70))), ("signal SIGSEGV".to_owned(), "exit status 70".to_owned()));
    }
}

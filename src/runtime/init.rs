//! The first process of a container, where it keeps the program running: what else runs in the container outlives a crash of the program.
//!
//! A container ends with its first process, and everything in it with that. So the program, where it would be that process, starts
//! itself as a child, and does no more than wait: it passes on what asks for an end, reaps those whose parent has ended, and starts the
//! program again after a crash. An end that the program has decided about, and a second crash in ten minutes, end the container with the
//! same status: who started it is to see that, and to wait longer each time.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The exit status of a program that has noticed its own crash (`EX_SOFTWARE`).
pub const CRASHED: u8 = 70;
/// The exit status of a Rust program whose first thread has panicked.
const PANICKED: i32 = 101;
/// How much time between two crashes makes the second a first one. A kubelet forgets about an end after as long.
const STEADY: Duration = Duration::from_mins(10);
/// What asks the program for an end.
const PASSED_ON: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// What follows the program's end.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Again,
    /// The container ends with this exit status.
    End(u8),
}

/// Keeps this very program running, with the same arguments; returns the exit status to end with. `variable` tells it that it is kept:
/// how often it was started again and, after a blank, why. The program has to call [`hear`].
pub fn keep(variable: &str) -> io::Result<u8> {
    let mut heard: SigSet = PASSED_ON.into_iter().collect();
    heard.add(Signal::SIGCHLD);
    // Nothing is lost between two waits, nor before the program has its own handlers: it begins with the same signals blocked.
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
                    // It is a child that was not waited for: the number is still its own.
                    kill(program, signal)?;
                }
            }
        };
        match next(end, crashed.map(|at| at.elapsed()), signalled) {
            Next::End(status) => return Ok(status),
            Next::Again => (restarts, why, crashed) = (restarts + 1, said(end), Some(Instant::now())),
        }
    }
}

/// Takes the signals again that [`keep`] has blocked for the program.
pub fn hear() -> io::Result<()> {
    Ok(SigSet::all().thread_unblock()?)
}

fn start(variable: &str, value: &str) -> io::Result<Pid> {
    let mut args = std::env::args_os();
    let mut program = Command::new(std::env::current_exe()?);
    let child = program.arg0(args.next().unwrap_or_default()).args(args).env(variable, value).spawn()?;
    i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)
}

/// Waits for all that have ended; how the program has, if it is among them.
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

/// What follows an end, so long after the crash before it, if there was one, of a program that was asked to end or not.
fn next(end: WaitStatus, after: Option<Duration>, signalled: bool) -> Next {
    let (crash, status) = match end {
        WaitStatus::Exited(_, code) => (code == i32::from(CRASHED) || code == PANICKED, code),
        WaitStatus::Signaled(_, signal, _) => (true, 128 + signal as i32),
        _ => (false, 1),
    };
    if crash && !signalled && after.is_none_or(|after| after >= STEADY) {
        Next::Again
    } else {
        Next::End(u8::try_from(status).unwrap_or(1))
    }
}

fn said(end: WaitStatus) -> String {
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
            (killed, Some(STEADY), false, Next::Again),
            (exited(CRASHED.into()), None, false, Next::Again),
            (exited(PANICKED), None, false, Next::Again),
            (killed, Some(STEADY / 2), false, Next::End(139)),
            (killed, None, true, Next::End(139)),
            (exited(0), None, false, Next::End(0)),
            (exited(0), None, true, Next::End(0)),
            (exited(1), None, false, Next::End(1)),
            (exited(64), None, false, Next::End(64)),
        ] {
            assert_eq!(next(end, after, requested), wanted, "{end:?} {after:?} after a crash, asked: {requested}");
        }
        assert_eq!((said(killed), said(exited(70))), ("signal SIGSEGV".to_owned(), "exit status 70".to_owned()));
    }
}

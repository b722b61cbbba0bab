//! Waiting for a condition with a deadline: the only way in which tests wait.

use std::fmt::Debug;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// The pause between two attempts: a twentieth of the time waited so far, within these bounds.
const PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// And at least the time that the last attempt took, up to this: an expensive one, such as kubectl, uses half of a processor at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

fn pause(waited: Duration, took: Duration) -> Duration {
    (waited / 20).clamp(PAUSE[0], PAUSE[1]).max(took.min(LONGEST_PAUSE))
}

/// Reports a start-up time in the format that the tier runner collects for its table of boot times.
pub fn report_boot(what: &str, begin: Instant) {
    println!("boot: {what} {:.1} s", begin.elapsed().as_secs_f64());
}

/// Repeats a call that a signal interrupts: a socket with a timeout is not resumed after a handler has run (socket(7)), and every child
/// that exits anywhere in the program sends one (SIGCHLD).
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(fault) if fault.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Retries until there is a value; panics with the description after the deadline.
pub fn eventually<T>(what: &str, deadline: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        let attempted = Instant::now();
        if let Some(answer) = attempt() {
            return answer;
        }
        assert!(begin.elapsed() < deadline, "not within {deadline:?}: {what}");
        thread::park_timeout(pause(begin.elapsed(), attempted.elapsed()));
    }
}

/// Waits until a condition holds; panics with the description after the deadline.
pub fn until(what: &str, deadline: Duration, mut holds: impl FnMut() -> bool) {
    eventually(what, deadline, || holds().then_some(()));
}

/// Polls until a value satisfies a condition; panics with the last value after the deadline. For async tests on a real clock.
pub async fn eventually_async<T: Debug>(what: &str, deadline: Duration, mut look: impl AsyncFnMut() -> T, holds: impl Fn(&T) -> bool) -> T {
    let begin = Instant::now();
    loop {
        let attempted = Instant::now();
        let value = look().await;
        if holds(&value) {
            return value;
        }
        assert!(begin.elapsed() < deadline, "not within {deadline:?}: {what}; last seen: {value:?}");
        tokio::time::sleep(pause(begin.elapsed(), attempted.elapsed())).await;
    }
}

/// Waits until a condition holds; panics with the description after the deadline. For async tests on a real clock.
pub async fn until_async(what: &str, deadline: Duration, holds: impl AsyncFnMut() -> bool) {
    eventually_async(what, deadline, holds, |is_true| *is_true).await;
}

/// Waits until a watched value satisfies a condition, and returns it; fails with the value after the deadline.
pub async fn wait_for_value<T: Clone + Debug>(
    what: &str,
    deadline: Duration,
    view: &mut watch::Receiver<T>,
    holds: impl FnMut(&T) -> bool,
) -> T {
    let waited = tokio::time::timeout(deadline, view.wait_for(holds)).await;
    let found = waited.map(|found| found.expect("the sender lives").clone());
    found.unwrap_or_else(|_| panic!("not within {deadline:?}: {what}; is: {:?}", view.borrow()))
}

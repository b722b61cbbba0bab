use std::io;
use std::sync::{Arc, Mutex};

use super::*;

const GRACE: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn stop_ends_all_tasks() {
    let mut tasks = Tasks::default();
    let (stop, stopper) = (tasks.stop(), tasks.stopper());
    tasks.run_forever("worker", async move { stop.requested().await });
    tasks.run_forever("shutdown", async move { stopper.stop() });
    assert!(tasks.run(GRACE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn unexpected_task_end_is_named_and_stops_the_others() {
    let mut tasks = Tasks::default();
    let stop = tasks.stop();
    let other_finished = Arc::new(Mutex::new(false));
    let mark = Arc::clone(&other_finished);
    tasks.run_forever("other", async move {
        stop.requested().await;
        *mark.lock().unwrap() = true;
    });
    tasks.run_forever("short", async {});
    let error = tasks.run(GRACE).await.expect_err("an early end");
    assert!(matches!(error, TaskError::Ended { name: "short" }), "{error}");
    assert!(*other_finished.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn failures_and_panics_carry_their_cause() {
    let mut tasks = Tasks::default();
    tasks.spawn("reader", async { Err::<(), _>(io::Error::other("no such table")) });
    assert_eq!(tasks.run(GRACE).await.expect_err("failed").to_string(), "task reader failed: no such table");

    let mut tasks = Tasks::default();
    tasks.run_forever("reader", async { panic!("out of {}", "luck") });
    let error = tasks.run(GRACE).await.expect_err("panicked");
    assert_eq!((error.to_string().as_str(), error.reason()), ("task reader panicked: out of luck", "Panicked"));
}

#[tokio::test(start_paused = true)]
async fn task_outliving_the_grace_period_is_aborted() {
    let mut tasks = Tasks::default();
    tasks.run_forever("deaf", std::future::pending());
    tasks.stopper().stop();
    let before = tokio::time::Instant::now();
    let error = tasks.run(GRACE).await.expect_err("cut off");
    assert_eq!(error.to_string(), "cut off before they finished: deaf");
    assert_eq!(before.elapsed(), GRACE);
}

#[tokio::test(start_paused = true)]
async fn second_signal_aborts_at_once() {
    let mut tasks = Tasks::default();
    tasks.run_forever("deaf", std::future::pending());
    let stopper = tasks.stopper();
    assert_eq!((stopper.escalate(), stopper.escalate()), (StopPhase::Stopping, StopPhase::Aborting));
    let before = tokio::time::Instant::now();
    assert!(matches!(tasks.run(GRACE).await, Err(TaskError::CutOff { .. })));
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn stop_phase_never_goes_back() {
    let (stopper, stop) = stop();
    stopper.abort();
    stopper.stop();
    assert_eq!(stop.phase(), StopPhase::Aborting);
}

#[tokio::test]
async fn second_termination_signal_escalates_to_abort() {
    let (stopper, stop) = stop();
    let handler = tokio::spawn(signals(stopper).expect("handlers"));
    let me = nix::unistd::getpid();
    nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGINT).expect("a signal to this process");
    stop.requested().await;
    nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGTERM).expect("a signal to this process");
    stop.aborted().await;
    handler.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_task_misses_heartbeats_and_others_do_not() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let mut tasks = Tasks::default();
    let (stop, until) = (tasks.stop(), tasks.stop());
    tasks.run_forever("waiting", async move { stop.requested().await });
    tasks.run_forever("busy", async move {
        while !until.is_requested() {
            tokio::task::coop::consume_budget().await;
        }
    });
    tasks.run_forever("blocked", async move {
        let _ = blocked.recv();
    });
    let heartbeats = tasks.heartbeats();
    let limit = Duration::from_secs(3);
    let stalled = timeout(Duration::from_secs(20), async {
        while heartbeats.stalled(limit).is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        heartbeats.stalled(limit)
    });
    assert_eq!(stalled.await.expect("noticed"), ["blocked"]);
    drop(release);
    assert!(matches!(tasks.run(GRACE).await, Err(TaskError::Ended { name: "blocked" })));
    assert_eq!(heartbeats.stalled(Duration::ZERO), [""; 0], "tasks that have ended are forgotten");
}

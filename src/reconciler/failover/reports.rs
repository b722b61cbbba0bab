//! Reports beside the work that they are about: a slow one delays no work.

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

/// Reports that are written concurrently.
const AT_ONCE: usize = 16;

/// Reports marks beside the work that sends them: a slow Event delays no mark.
pub(super) async fn report_beside<T, R: Future<Output = ()>>(
    work: impl Future<Output = ()>,
    mut marks: mpsc::Receiver<T>,
    report: impl Fn(T) -> R,
) {
    let reports = async {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                mark = marks.recv(), if running.len() < AT_ONCE => match mark {
                    Some(mark) => running.push(report(mark)),
                    None => break,
                },
                Some(()) = running.next() => {}
            }
        }
        while running.next().await.is_some() {}
    };
    tokio::join!(work, reports);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Duration, Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_event_of_a_lost_replica_delays_no_mark() {
        let (begin, written, [pause, slow]) = (Instant::now(), AtomicU32::new(0), [300, 2_000].map(Duration::from_millis));
        let (marked, marks) = mpsc::channel(10);
        let work = async move {
            for mark in 1..=10 {
                sleep(pause).await;
                marked.try_send(mark).expect("room");
                assert_eq!(begin.elapsed(), pause * mark);
            }
        };
        let report = async |_| {
            sleep(slow).await;
            written.fetch_add(1, Ordering::Relaxed);
        };
        report_beside(work, marks, report).await;
        assert_eq!((written.into_inner(), begin.elapsed()), (10, pause * 10 + slow));
    }
}

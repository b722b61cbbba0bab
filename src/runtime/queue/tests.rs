//! All tests run in paused time: delays are exact and take no time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tokio::time::{advance, timeout};

use super::*;

impl QueueKey for &'static str {
    type Share = String;

    fn share(&self) -> String {
        self.split('/').next().unwrap_or_default().to_owned()
    }
}

impl QueueKey for u8 {
    type Share = bool;

    fn share(&self) -> bool {
        self.is_multiple_of(2)
    }
}

impl QueueKey for (usize, usize) {
    type Share = usize;

    fn share(&self) -> usize {
        self.0
    }
}

fn queue() -> Queue<&'static str> {
    Queue::new(Arc::new(|failures| Duration::from_secs(1 << (failures - 1).min(5))))
}

async fn take(queue: &Queue<&'static str>) -> WorkItem<&'static str> {
    queue.next().await.expect("open")
}

async fn nothing(queue: &Queue<&'static str>, within: Duration) {
    assert!(timeout(within, queue.next()).await.is_err(), "{queue:?}");
}

#[tokio::test(start_paused = true)]
async fn queued_key_is_unique_and_in_order() {
    let queue = queue();
    for key in ["a", "b", "a", "c", "b"] {
        queue.add(key);
    }
    let taken = [take(&queue).await, take(&queue).await, take(&queue).await];
    assert_eq!(taken.each_ref().map(|work| *work.key()), ["a", "b", "c"]);
    for work in taken {
        work.end(WorkOutcome::Done);
    }
    nothing(&queue, Duration::from_hours(1)).await;
    assert_eq!(queue.depth(), Depth::default());
}

#[tokio::test(start_paused = true)]
async fn key_added_while_processing_runs_again_afterwards() {
    let queue = queue();
    queue.add("a");
    let work = take(&queue).await;
    queue.add("a");
    queue.add("a");
    nothing(&queue, Duration::from_hours(1)).await;
    work.end(WorkOutcome::Done);
    take(&queue).await.end(WorkOutcome::Done);
    nothing(&queue, Duration::from_hours(1)).await;
}

#[tokio::test(start_paused = true)]
async fn earliest_requeue_time_wins() {
    let queue = queue();
    let begin = Instant::now();
    queue.add_after("a", Duration::from_mins(1));
    queue.add_after("a", Duration::from_secs(5));
    queue.add_after("a", Duration::from_secs(30));
    take(&queue).await.end(WorkOutcome::RequeueAfter(Duration::from_secs(7)));
    assert_eq!(begin.elapsed().as_secs(), 5);
    take(&queue).await.end(WorkOutcome::Done);
    assert_eq!(begin.elapsed().as_secs(), 12);
    nothing(&queue, Duration::from_hours(1)).await;
}

#[tokio::test(start_paused = true)]
async fn failed_key_backs_off_until_success() {
    let queue = queue();
    queue.add("a");
    for seconds in [1, 2, 4, 8] {
        take(&queue).await.end(WorkOutcome::Retry(None));
        let begin = Instant::now();
        let work = take(&queue).await;
        assert_eq!(begin.elapsed().as_secs(), seconds);
        drop(work);
        // Dropping counts as a failure, too; the next iteration begins with a success.
        take(&queue).await.end(WorkOutcome::Done);
        assert_eq!(queue.depth().failing, 0);
        queue.add("a");
        for _ in 0..=seconds.ilog2() {
            take(&queue).await.end(WorkOutcome::Retry(None));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_later_adds_skip_the_backoff() {
    let queue = queue();
    queue.add("a");
    let work = take(&queue).await;
    queue.add("a");
    work.end(WorkOutcome::Retry(Some(Duration::from_secs(20))));
    nothing(&queue, Duration::from_secs(19)).await;
    assert_eq!(queue.depth(), Depth { waiting: 1, failing: 1, ..Depth::default() });
    queue.add("a");
    assert_eq!(queue.depth().ready, 1);
    take(&queue).await.end(WorkOutcome::Done);
}

#[tokio::test(start_paused = true)]
async fn workers_share_the_keys_and_end_with_the_queue() {
    let queue: Queue<(usize, usize)> = Queue::new(Arc::new(|_| Duration::from_secs(1)));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (queue, now, most) = (queue.clone(), Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                while let Some(work) = queue.next().await {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    work.end(WorkOutcome::Done);
                }
            })
        })
        .collect();
    let begin = Instant::now();
    (0..40).for_each(|key| queue.add((0, key)));
    while queue.depth() != Depth::default() {
        advance(Duration::from_millis(100)).await;
        tokio::task::yield_now().await;
    }
    assert_eq!((most.load(Ordering::SeqCst), begin.elapsed().as_secs()), (4, 10));
    queue.close();
    for worker in workers {
        worker.await.expect("ended");
    }
    assert!(queue.next().await.is_none());
}

/// An operation on the queue.
#[derive(Debug, Clone)]
enum Step {
    Add(u8, u64),
    Take,
    End(usize, WorkOutcome),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ended = prop_oneof![
        Just(WorkOutcome::Done),
        (0..50_u64).prop_map(|s| WorkOutcome::RequeueAfter(Duration::from_secs(s))),
        Just(WorkOutcome::Retry(None))
    ];
    let step = prop_oneof![
        (0..5_u8, 0..20_u64).prop_map(|(key, after)| Step::Add(key, after)),
        Just(Step::Take),
        (any::<usize>(), ended).prop_map(|(which, ended)| Step::End(which, ended)),
        (0..30_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Before the n-th key of a share at most n keys of each other share are returned, in whatever order they were added.
    #[test]
    fn shares_take_turns(keys in prop::collection::hash_set((0..4_usize, 0..20_usize), 0..60), first in 0..20_u64) {
        let (mut order, now) = (QueueOrder::new(), Instant::now());
        for (number, key) in keys.iter().enumerate() {
            // Some become due later than others.
            order.add(*key, now + Duration::from_secs(number as u64 % (first + 1)));
        }
        let (now, mut counts) = (now + Duration::from_mins(1), [0_usize; 4]);
        let all = |share: usize| keys.iter().filter(|key| key.0 == share).count();
        while let Some((share, _)) = order.take(now) {
            counts[share] += 1;
            for other in (0..4).filter(|other| counts[*other] < all(*other)) {
                prop_assert!(counts[share] <= counts[other] + 1, "{counts:?}");
            }
        }
        prop_assert_eq!(counts, [0, 1, 2, 3].map(all));
    }

    /// A key that was added after its work began is returned again, and no key is in progress twice at once.
    #[test]
    fn no_added_key_is_lost(steps in steps()) {
        let mut order = QueueOrder::new();
        let mut now = Instant::now();
        let mut running = BTreeSet::new();
        let mut requested: BTreeMap<u8, bool> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(key, after) => {
                    order.add(key, now + Duration::from_secs(after));
                    requested.insert(key, true);
                }
                Step::Take => {
                    if let Some(key) = order.take(now) {
                        prop_assert!(running.insert(key), "{key} twice");
                        requested.insert(key, false);
                    }
                }
                Step::End(which, ended) => {
                    let Some(key) = running.iter().nth(which % running.len().max(1)).copied() else { continue };
                    running.remove(&key);
                    order.end(&key, now, ended, &|failures| Duration::from_secs(u64::from(failures)));
                }
                Step::Pass(seconds) => now += Duration::from_secs(seconds),
            }
        }
        for key in std::mem::take(&mut running) {
            order.end(&key, now, WorkOutcome::Done, &|_| Duration::ZERO);
        }
        now += Duration::from_hours(24);
        while let Some(key) = order.take(now) {
            requested.insert(key, false);
            order.end(&key, now, WorkOutcome::Done, &|_| Duration::ZERO);
        }
        prop_assert!(requested.values().all(|pending| !pending), "{requested:?}");
        prop_assert_eq!(order.depth(now), Depth::default());
    }
}

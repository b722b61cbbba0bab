use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::*;
use crate::model::base::net::InterfaceName;
use crate::model::config::EgressConfig;
use crate::model::plan::world::World;

/// A simulated kernel: has a ruleset, counts operations, and rejects a number of writes.
#[derive(Default)]
struct Memory {
    holds: Option<Ruleset>,
    rewrites: usize,
    patches: usize,
    reported: usize,
    /// Value of `reported` at the last read-back.
    noted: usize,
    refuse: usize,
    tampered: bool,
    touched: Arc<Notify>,
}

struct Handle(Arc<Mutex<Memory>>);

impl Memory {
    fn take(&mut self, ruleset: &Ruleset) -> Result<(), SyncFault> {
        if self.refuse > 0 {
            self.refuse -= 1;
            return Err(SyncFault { reason: "Refused", message: "by the test".into() });
        }
        (self.holds, self.tampered) = (Some(ruleset.clone()), false);
        Ok(())
    }
}

impl Kernel for Handle {
    async fn rewrite(&mut self, ruleset: &Ruleset) -> Result<(), SyncFault> {
        let mut memory = self.0.lock().expect("one thread");
        memory.rewrites += 1;
        memory.take(ruleset)
    }

    async fn patch(&mut self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> Result<(), SyncFault> {
        let mut memory = self.0.lock().expect("one thread");
        memory.patches += 1;
        assert_eq!(memory.holds.as_ref(), Some(before), "a patch stands on what is there");
        assert_eq!(delta.apply(before), *after);
        memory.take(after)
    }

    async fn note(&mut self) -> Result<(), SyncFault> {
        let mut memory = self.0.lock().expect("one thread");
        assert!(memory.reported > memory.noted, "the applied ruleset is reported before it is read back");
        memory.noted = memory.reported;
        Ok(())
    }

    async fn drifted(&mut self, _: &Ruleset) -> Result<bool, SyncFault> {
        Ok(self.0.lock().expect("one thread").tampered)
    }

    async fn disturbed(&mut self) {
        let touched = Arc::clone(&self.0.lock().expect("one thread").touched);
        touched.notified().await;
    }

    fn applied(&mut self, _: &Ruleset, _: &Planned) {
        self.0.lock().expect("one thread").reported += 1;
    }
}

struct Bench {
    memory: Arc<Mutex<Memory>>,
    planned: watch::Sender<Option<Arc<Planned>>>,
    closing: watch::Sender<bool>,
    state: watch::Receiver<Programmed>,
}

impl Bench {
    fn start() -> Self {
        let memory = Arc::new(Mutex::new(Memory::default()));
        let (planned, rx_planned) = watch::channel(None);
        let (closing, rx_closing) = watch::channel(false);
        let (tx, state) = watch::channel(Programmed::default());
        let pace = SyncPace {
            min_interval: Duration::from_millis(20),
            audit: Duration::from_secs(30),
            settle: Duration::from_millis(200),
            retry: Backoff::new(Duration::from_millis(100), Duration::from_secs(10), 0.2).expect("valid"),
        };
        tokio::spawn(run(Handle(Arc::clone(&memory)), Inputs { planned: rx_planned, closing: rx_closing }, tx, pace));
        Self { memory, planned, closing, state }
    }

    /// Plans `services` services, the last of them with target port `port`.
    fn plan(&self, services: u16, port: u16) {
        let entry = |i: u16| {
            let to = if i + 1 == services { port } else { 80 };
            format!(
                r#""s{i}":{{"tailnetTarget":{{"ip":"100.64.0.2"}},"ports":[{{"protocol":"TCP","matchPort":{},"targetPort":{to}}}]}}"#,
                10_000 + i
            )
        };
        let text = format!("{{{}}}", (0..services).map(entry).collect::<Vec<_>>().join(","));
        let world = World {
            egress: Arc::new(EgressConfig::parse(text.as_bytes()).expect("a config")),
            ..World::empty(InterfaceName::tailscale0(), [].into())
        };
        self.planned.send_replace(Some(Arc::new(Planned::new(&world))));
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("one thread")
    }

    fn counts(&self) -> (usize, usize) {
        let memory = self.memory();
        (memory.rewrites, memory.patches)
    }

    fn ports(&self) -> usize {
        self.memory().holds.as_ref().map_or(0, |loaded| loaded.ports.len())
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_first_plan() {
    let bench = Bench::start();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(bench.counts(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn first_write_is_full_and_later_writes_are_deltas() {
    let bench = Bench::start();
    bench.plan(3, 80);
    sleep(Duration::from_millis(50)).await;
    assert_eq!((bench.counts(), bench.ports()), ((1, 0), 3));
    bench.plan(3, 81);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.counts(), (1, 1));
    bench.plan(3, 81);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(bench.counts(), (1, 1), "no change, no write");
    assert_eq!(bench.memory().reported, 2);
}

#[tokio::test(start_paused = true)]
async fn frequent_plans_are_written_at_the_minimum_interval() {
    let bench = Bench::start();
    for i in 0..1000_u16 {
        bench.plan(2, i + 1);
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(50)).await;
    let (rewrites, patches) = bench.counts();
    assert!(rewrites == 1 && (40..=52).contains(&patches), "{rewrites} {patches}");
    let loaded = bench.memory().holds.clone().expect("written");
    assert!(loaded.ports.values().any(|to| to.iter().any(|to| to.port() == 1000)));
}

#[tokio::test(start_paused = true)]
async fn failed_write_keeps_the_ruleset_and_is_retried_in_full() {
    let bench = Bench::start();
    bench.plan(3, 80);
    sleep(Duration::from_millis(50)).await;
    bench.memory().refuse = 3;
    bench.plan(4, 80);
    sleep(Duration::from_millis(60)).await;
    assert_eq!(bench.ports(), 3, "last good stays");
    let fault = bench.state.borrow().clone();
    assert!(!fault.current && fault.fault.is_some_and(|(fault, _)| fault.reason == "Refused"));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.ports(), 4);
    let state = bench.state.borrow().clone();
    assert!(state.current && state.fault.is_none() && state.failures == 3, "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn foreign_ruleset_change_is_repaired() {
    let bench = Bench::start();
    bench.plan(3, 80);
    sleep(Duration::from_millis(50)).await;
    bench.memory().touched.notify_one();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.counts(), (1, 0), "a change that was not ours is none of our business");
    bench.memory().tampered = true;
    bench.memory().touched.notify_one();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.counts(), (2, 0));
    assert_eq!((bench.state.borrow().repairs, bench.state.borrow().damaged), (1, false));
    bench.memory().tampered = true;
    sleep(Duration::from_secs(31)).await;
    assert_eq!(bench.counts(), (3, 0), "without a notice, by the timer");
}

#[tokio::test(start_paused = true)]
async fn foreign_ruleset_change_is_damage_until_repaired() {
    let bench = Bench::start();
    bench.plan(3, 80);
    sleep(Duration::from_millis(50)).await;
    (bench.memory().tampered, bench.memory().refuse) = (true, 3);
    bench.memory().touched.notify_one();
    sleep(Duration::from_millis(250)).await;
    let state = bench.state.borrow().clone();
    assert!(state.damaged && !state.current && state.fault.is_some(), "{state:?}");
    sleep(Duration::from_secs(5)).await;
    let state = bench.state.borrow().clone();
    assert!(!state.damaged && state.current && state.fault.is_none(), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn closed_replica_has_no_mappings() {
    let bench = Bench::start();
    bench.plan(3, 80);
    sleep(Duration::from_millis(50)).await;
    bench.closing.send_replace(true);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.ports(), 0);
    bench.plan(5, 80);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.ports(), 0, "and no plan opens it again");
}

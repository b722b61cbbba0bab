//! Peer warm-up: pings targets and recent peers after each start of tailscaled, so that their tunnels exist before the first connection.
//!
//! It starts when tailscaled has a network map. tailscaled reports that it is connected only after it has chosen a relay, some three
//! seconds later. Forwarding does not depend on the answers. [`crate::model::tailnet::peer_warmup`] decides which peers to ping and for how
//! long.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::edge::localapi::{LocalApi, PingKind};
use crate::model::plan::Planned;
use crate::model::tailnet::peer_warmup::{MAX_READINESS_DELAY, recent_targets, targets};
use crate::model::tailnet::supervise::DaemonPhase;
use crate::proxy::tailnet::daemon::DaemonState;
use crate::proxy::tailnet::recent_peers::PredecessorPeers;

/// Timeout of the first ping; doubled with each further one, up to [`MAX_PING_TIMEOUT`].
const TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum timeout of a ping.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Pings an address, with a timeout; true if it answers.
pub type ReachabilityCheck = Arc<dyn Fn(IpAddr, PingKind, Duration) -> BoxFuture<'static, bool> + Send + Sync>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WarmupProgress {
    /// Restart count of the tailscaled whose warm-up has ended; `None` before the first.
    pub start: Option<u64>,
    pub open: bool,
    /// Targets that have not answered yet, during a warm-up.
    pub waiting: BTreeSet<IpAddr>,
}

impl WarmupProgress {
    /// Whether the warm-up after this restart of tailscaled has ended.
    pub fn has_ended(&self, restarts: u64) -> bool {
        self.start == Some(restarts)
    }
}

pub fn asking(api: &LocalApi) -> ReachabilityCheck {
    let api = api.clone();
    Arc::new(move |ip, ping, limit| {
        let api = api.clone();
        Box::pin(async move {
            let answer = api.ping(ip, ping, limit).await;
            answer.inspect_err(|error| tracing::debug!(reason = error.reason(), %ip, "no answer yet: {error}")).unwrap_or(false)
        })
    })
}

/// Runs one warm-up per start of the daemon; ends when the senders are dropped.
pub async fn run(
    ask: ReachabilityCheck,
    mut daemon: watch::Receiver<DaemonState>,
    mut planned: watch::Receiver<Option<Arc<Planned>>>,
    mut predecessor: watch::Receiver<Option<PredecessorPeers>>,
    state: watch::Sender<WarmupProgress>,
) {
    loop {
        let tried = state.borrow().start;
        let connects = |phase| matches!(phase, DaemonPhase::Starting | DaemonPhase::Running);
        let untried = |daemon: &DaemonState| connects(daemon.phase) && tried != Some(daemon.restarts);
        let Ok(start) = daemon.wait_for(untried).await.map(|daemon| daemon.restarts) else { return };
        let Ok(Some(mut before)) = predecessor.wait_for(Option::is_some).await.map(|found| found.clone()) else { return };
        before.here |= start > 0;
        let wanted = planned.wait_for(Option::is_some).await.map(|planned| {
            let wanted = planned.iter().flat_map(|planned| targets(planned).into_iter().chain(recent_targets(planned, &before.addresses)));
            wanted.collect()
        });
        let Ok(wanted) = wanted else { return };
        let mut phase = daemon.clone();
        let open = tokio::select! {
            open = attempt(&ask, wanted, &before, &mut phase, &state) => open,
            restarted = daemon.wait_for(|daemon| daemon.restarts != start) => {
                if restarted.is_err() {
                    return;
                }
                false
            }
        };
        state.send_modify(|state| *state = WarmupProgress { start: Some(start), open, waiting: BTreeSet::new() });
    }
}

/// Pings all targets until each has answered, or until [`MAX_READINESS_DELAY`] after the daemon connected; true if there were targets and all answered.
async fn attempt(
    ask: &ReachabilityCheck,
    wanted: BTreeSet<IpAddr>,
    predecessor: &PredecessorPeers,
    daemon: &mut watch::Receiver<DaemonState>,
    state: &watch::Sender<WarmupProgress>,
) -> bool {
    let began = Instant::now();
    let total = wanted.len();
    state.send_modify(|state| state.waiting.clone_from(&wanted));
    let each = wanted.into_iter().map(|ip| async move {
        if !predecessor.here {
            answered(ask, ip, PingKind::Disco).await;
            sleep(predecessor.settle()).await;
        }
        answered(ask, ip, PingKind::Tsmp).await;
        state.send_modify(|state| {
            state.waiting.remove(&ip);
        });
    });
    let over = async {
        // If the sender is dropped, only the limit remains.
        let _ = daemon.wait_for(|daemon| daemon.phase == DaemonPhase::Running).await;
        sleep(MAX_READINESS_DELAY).await;
    };
    tokio::select! {
        _ = join_all(each) => {
            tracing::info!(targets = total, took = ?began.elapsed(), "targets are reachable through the tailnet");
            total > 0
        }
        () = over => {
            let silent = state.borrow().waiting.clone();
            tracing::warn!(targets = total, ?silent, "some targets do not answer through the tailnet; no longer waiting for them");
            false
        }
    }
}

async fn answered(ask: &ReachabilityCheck, ip: IpAddr, ping: PingKind) {
    let mut patience = TIMEOUT;
    loop {
        let next = Instant::now() + patience;
        if ask(ip, ping, patience).await {
            return;
        }
        // A refusal arrives before the timeout.
        sleep_until(next).await;
        patience = MAX_PING_TIMEOUT.min(patience * 2);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::advance;

    use super::*;
    use crate::model::base::net::InterfaceName;
    use crate::model::base::netmap::NetMap;
    use crate::model::config::EgressConfig;
    use crate::model::plan::world::World;

    const CONFIG: &str = r#"{"a":{"tailnetTarget":{"ip":"100.64.0.2"},"ports":[{"protocol":"TCP","matchPort":1,"targetPort":1}]},
        "b":{"tailnetTarget":{"ip":"100.64.0.3"},"ports":[{"protocol":"TCP","matchPort":2,"targetPort":1}]}}"#;
    const NETMAP: &str = r#"{"peers":[{"name":"a","addresses":["100.64.0.2"]},{"name":"b","addresses":["100.64.0.3"]}]}"#;

    struct Bench {
        daemon: watch::Sender<DaemonState>,
        planned: watch::Sender<Option<Arc<Planned>>>,
        predecessor_sender: watch::Sender<Option<PredecessorPeers>>,
        state: watch::Receiver<WarmupProgress>,
        pings: Arc<Mutex<Vec<(IpAddr, PingKind)>>>,
    }

    fn ip(last: u8) -> IpAddr {
        [100, 64, 0, last].into()
    }

    /// A warm-up task whose targets answer if `answers` is true for the address and its number of earlier pings.
    fn bench(answers: impl Fn(IpAddr, usize) -> bool + Send + Sync + 'static) -> Bench {
        let (daemon, daemon_seen) = watch::channel(DaemonState::default());
        let (planned, planned_seen) = watch::channel(None);
        let (predecessor_sender, predecessor_receiver) = watch::channel(Some(PredecessorPeers::default()));
        let (state, receiver) = watch::channel(WarmupProgress::default());
        let pings = Arc::<Mutex<Vec<(IpAddr, PingKind)>>>::default();
        let log = Arc::clone(&pings);
        let ask: ReachabilityCheck = Arc::new(move |ip, ping, _| {
            let mut log = log.lock().expect("not poisoned");
            let before = log.iter().filter(|(pings, _)| *pings == ip).count();
            log.push((ip, ping));
            Box::pin(std::future::ready(answers(ip, before)))
        });
        tokio::spawn(run(ask, daemon_seen, planned_seen, predecessor_receiver, state));
        Bench { daemon, planned, predecessor_sender, state: receiver, pings }
    }

    impl Bench {
        fn plan(&self) {
            let mut world = World::empty(InterfaceName::tailscale0(), [].into());
            world.egress = Arc::new(EgressConfig::parse(CONFIG.as_bytes()).expect("a config"));
            world.netmap = Some(Arc::new(NetMap::from_file(&serde_json::from_str(NETMAP).expect("a file")).0));
            self.planned.send_replace(Some(Arc::new(Planned::new(&world))));
        }

        fn starting(&self) {
            self.daemon.send_modify(|daemon| daemon.phase = DaemonPhase::Starting);
        }

        fn running(&self, restarts: u64) {
            self.daemon.send_modify(|daemon| (daemon.phase, daemon.restarts) = (DaemonPhase::Running, restarts));
        }

        async fn tried(&mut self, start: u64) -> Duration {
            let began = Instant::now();
            self.state.wait_for(|state| state.start == Some(start)).await.expect("the task lives");
            began.elapsed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn targets_are_probed_by_disco_then_through_the_tunnel() {
        let mut bench = bench(|_, before| before != 0);
        bench.running(0);
        advance(MAX_READINESS_DELAY * 2).await;
        assert_eq!(*bench.state.borrow(), WarmupProgress::default(), "there is no plan yet");
        bench.plan();
        assert_eq!(
            bench.tried(0).await,
            TIMEOUT + PredecessorPeers::default().settle(),
            "what does not answer is asked again, all at once"
        );
        let pings = bench.pings.lock().expect("not poisoned").clone();
        for ip in [ip(2), ip(3)] {
            let of: Vec<_> = pings.iter().filter(|(pings, _)| *pings == ip).map(|(_, ping)| *ping).collect();
            assert_eq!(of, [PingKind::Disco, PingKind::Disco, PingKind::Tsmp]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unchanged_endpoint_is_probed_through_the_tunnel_at_once() {
        let mut bench = bench(|_, before| before != 0);
        bench.predecessor_sender.send_replace(Some(PredecessorPeers { here: true, ..PredecessorPeers::default() }));
        bench.plan();
        bench.running(0);
        assert_eq!(bench.tried(0).await, TIMEOUT);
        let mut again = self::bench(|_, before| before != 0);
        again.plan();
        again.running(1);
        assert_eq!(again.tried(1).await, TIMEOUT, "a daemon that was started again is where it was");
        for bench in [bench, again] {
            assert!(bench.pings.lock().expect("not poisoned").iter().all(|(_, ping)| *ping == PingKind::Tsmp));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn recent_peers_of_the_predecessor_are_probed_once_loaded() {
        let mut bench = bench(|_, _| true);
        bench.predecessor_sender.send_replace(None);
        bench.plan();
        bench.running(0);
        advance(MAX_READINESS_DELAY * 2).await;
        assert_eq!(*bench.state.borrow(), WarmupProgress::default(), "who they are is not known yet");
        bench
            .predecessor_sender
            .send_replace(Some(PredecessorPeers { addresses: [[100, 64, 0, 9].into(), ip(3)].into(), ..PredecessorPeers::default() }));
        bench.tried(0).await;
        let pings = bench.pings.lock().expect("not poisoned").clone();
        assert_eq!(pings.iter().filter(|(pings, _)| *pings == ip(3)).count(), 2, "a target that was spoken with is asked like others");
        assert!(pings.iter().all(|(pings, _)| *pings != ip(9)), "no peer has the address any more");
    }

    #[tokio::test(start_paused = true)]
    async fn warmup_limit_starts_when_the_daemon_is_connected() {
        let mut bench = bench(|_, before| before > 20);
        bench.plan();
        bench.starting();
        assert!(bench.tried(0).await > MAX_READINESS_DELAY, "however long it takes");
        assert!(bench.state.borrow().open);
        let mut bench = self::bench(|pings, _| pings == ip(2));
        bench.plan();
        bench.starting();
        advance(MAX_READINESS_DELAY * 2).await;
        assert_eq!(bench.state.borrow().start, None);
        bench.running(0);
        assert_eq!(bench.tried(0).await, MAX_READINESS_DELAY, "from when it is connected");
        assert!(!bench.state.borrow().open);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_target_is_awaited_up_to_the_limit() {
        let mut bench = bench(|pings, _| pings == ip(2));
        bench.running(0);
        bench.plan();
        bench.state.wait_for(|state| state.waiting == [ip(3)].into()).await.expect("the task lives");
        assert!(bench.tried(0).await <= MAX_READINESS_DELAY);
        assert_eq!(bench.state.borrow().waiting, BTreeSet::new(), "it is not awaited any more");
    }

    #[tokio::test(start_paused = true)]
    async fn daemon_restart_restarts_the_warmup() {
        let mut bench = bench(|_, before| before > 3);
        bench.plan();
        bench.running(0);
        bench.state.wait_for(|state| !state.waiting.is_empty()).await.expect("the task lives");
        bench.running(1);
        bench.tried(1).await;
        bench.running(1);
        tokio::task::yield_now().await;
        assert_eq!(bench.state.borrow().start, Some(1), "once for each start");
    }
}

//! Drain of a replica: it ends once all forwarded flows have ended, or at the deadline.
//!
//! Each decision uses a conntrack listing, not a fixed sleep. Flows that outlive the drain are handled as a change to an empty ruleset
//! ([`crate::model::flows::cleanup`]). Times are relative to the signal.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::model::flows::flow::{Flow, TcpState};

/// A flow without an end of its own (UDP, a SYN without an answer) is over when no packet has passed for this long.
const FLOW_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval between listings.
const MIN_LISTING_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum interval between listings.
const MAX_LISTING_INTERVAL: Duration = Duration::from_secs(1);
/// Timeouts are in whole seconds, so one second more than expected is not a packet.
const ROUNDING: u64 = 1;

/// Time without flows before a drain ends: clients may still have outdated endpoints.
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// Egress Services whose endpoints follow a leaving replica within a second, on a busy API server: their slices change one by one.
const SERVICES_PER_SECOND: usize = 50;

/// Time without flows before the drain of a replica of a group with this number of egress Services ends.
pub fn quiet_time(services: usize) -> Duration {
    QUIET_PERIOD + Duration::from_secs(u64::try_from(services / SERVICES_PER_SECOND).unwrap_or(u64::MAX))
}

/// The same for the proxy of one Service. Its clients have no other replica: it serves them as long as the mute lasts, so that the next Pod
/// is reached soon after.
pub const SINGLE_QUIET_PERIOD: Duration = Duration::from_millis(4200);

/// Duration of the disco mute: a draining replica that still forwards sends no disco packets.
///
/// A peer's tailscaled trusts an endpoint for 6.5 s after its last disco packet and uses no other one meanwhile, not even for the reply to
/// the first handshake of the next Pod at another endpoint; WireGuard retries only after 5 s. With the mute the trust has expired by then:
/// a drain takes about 3 s, a new Pod as long. Forwarding continues: for an untrusted endpoint the peer uses the relay as well, and drops
/// it only 5 s after an unanswered ping. A longer drain interrupts the mute before that, so that its flows keep their direct paths.
pub const DISCO_MUTE_PERIOD: Duration = Duration::from_millis(4500);
/// Minimum interval between two mutes: a peer pings the endpoints that it uses every 3 s, and needs one response.
const MIN_BETWEEN_MUTES: Duration = Duration::from_secs(4);

/// Interval between the mute at the beginning of a drain and the one that ends at its deadline; `None` if it is too short for both.
pub fn between_mutes(limit: Duration) -> Option<Duration> {
    limit.checked_sub(2 * DISCO_MUTE_PERIOD).filter(|interval| *interval >= MIN_BETWEEN_MUTES)
}

/// Maximum time for open requests of advertised services before these are withdrawn.
///
/// A tailnet address is routed to one replica at a time: moving it cuts open connections. So the replica first rejects new connections;
/// open ones have this long. Clients that connect meanwhile get no response and retry after a second, then with the next replica; hence
/// it is short, and ends early if nothing is open ([`IDLE_PERIOD`]).
pub const CLOSING_PERIOD: Duration = Duration::from_millis(1500);

/// Time without open requests before services are withdrawn. Connections that tailscaled accepted arrive here a round trip later, and
/// recent responses may be in flight. Shorter than the second after which a client retries.
pub const IDLE_PERIOD: Duration = Duration::from_millis(500);

/// Time for the control plane to confirm that services are withdrawn.
const WITHDRAWAL_PERIOD: Duration = Duration::from_secs(3);

/// Time for long-running requests if the time until the kill is unknown: the shutdown of a node and an eviction delete no Pod before.
const UNKNOWN_GRACE: Duration = Duration::from_secs(5);

/// Maximum time for long-running requests before new connections are rejected, of the time for flows. The replica serves all clients
/// meanwhile.
pub fn long_running_limit(flows: Duration, deletion: Option<Deletion>) -> Duration {
    let limit = flows.saturating_sub(CLOSING_PERIOD + WITHDRAWAL_PERIOD);
    if deletion.is_some() { limit } else { limit.min(UNKNOWN_GRACE) }
}

/// Time that the kubelet leaves between SIGTERM and the kill in any case, also if a Pod is deleted by force.
const MIN_GRACE: Duration = Duration::from_secs(2);

/// The preStop hook's maximum share of the drain timeout. A Pod that may not read its own object leaves this time to the hook.
const HOOK_SHARE: u32 = 2;

/// Maximum duration of a preStop hook call.
pub fn hook_limit(drain_timeout: Duration) -> Duration {
    drain_timeout / HOOK_SHARE
}

/// Deletion of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// Time from the deletion to the kill.
    pub grace: Duration,
    /// Unix time of the deletion by the API server's clock; `None` if the Pod was deleted by force.
    pub began: Option<Duration>,
}

impl Deletion {
    /// Deletion of the Pod with this UID. `pod` is the object of its name as SIGTERM arrives; if there is none, or it is another Pod's, the Pod
    /// was deleted by force. `None` if it was not deleted: its container alone is restarted.
    pub fn of(pod: Option<&Value>, uid: &str) -> Option<Self> {
        let forced = Self { grace: MIN_GRACE, began: None };
        let Some(metadata) = pod.map(|pod| &pod["metadata"]).filter(|metadata| metadata["uid"] == uid) else { return Some(forced) };
        let grace = Duration::from_secs(metadata["deletionGracePeriodSeconds"].as_u64()?);
        let end = metadata["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let end = end.and_then(|end| u64::try_from(end.as_second()).ok()).map(Duration::from_secs);
        Some(Self { grace: grace.max(MIN_GRACE), began: end.map(|end| end.saturating_sub(grace)) })
    }
}

/// Time from SIGTERM, which arrives at Unix time `now`, to the end of a replica. `hook` is the maximum duration of the preStop hook, zero without one. The
/// kubelet calls the hook before it sends SIGTERM, within the grace period. Any client can call the hook too, so calls count for nothing.
pub fn available(drain_timeout: Duration, deletion: Option<Deletion>, hook: Duration, now: Duration) -> Duration {
    let Some(Deletion { grace, began }) = deletion else { return drain_timeout.saturating_sub(hook) };
    // Without a hook SIGTERM follows at once; a hook ends at its limit. A longer time is a difference of clocks.
    let elapsed = began.map_or(Duration::ZERO, |began| now.saturating_sub(began)).min(hook);
    drain_timeout.min(grace.saturating_sub(elapsed)).max(MIN_GRACE.min(drain_timeout))
}

/// How a Pod's grace period is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub flows: Duration,
    pub resets: Duration,
    pub daemon: Duration,
}

impl Budget {
    /// Kubernetes' default.
    pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);
    /// Time that a replica needs besides its flows, if available.
    pub const CLEANUP_PERIOD: Duration = Duration::from_secs(6);
    const RESET_PERIOD: Duration = Duration::from_secs(2);
    const DAEMON_STOP_TIMEOUT: Duration = Duration::from_secs(3);

    /// Splits the time between the signal and the kill: a second to spare, then the resets, then the daemon if there is one; the
    /// flows have the rest, and never less than half of it.
    pub fn of(total: Duration, daemon: bool) -> Self {
        let daemon = if daemon { Self::DAEMON_STOP_TIMEOUT.min(total / 6) } else { Duration::ZERO };
        let resets = Self::RESET_PERIOD.min((total / 3).saturating_sub(daemon));
        let spare = Duration::from_secs(1).min(total / 6);
        Self { flows: total.saturating_sub(resets + daemon + spare), resets, daemon }
    }

    /// The rest, after this time of flows.
    #[must_use]
    pub fn after(self, elapsed: Duration) -> Self {
        Self { flows: self.flows.saturating_sub(elapsed), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainDecision {
    /// Keep forwarding; list again after this time.
    Wait(Duration),
    /// Every flow has ended: exit.
    Ended,
    /// Deadline reached: reset the remaining flows, then exit.
    Over,
}

#[derive(Debug)]
pub struct Drain {
    grace: Duration,
    quiet: Duration,
    /// By entry: timeout and time of the last packet.
    watched: HashMap<u32, (u32, Duration)>,
    busy: Duration,
    /// Time of the next listing.
    due: Duration,
    open: usize,
}

impl Drain {
    /// A drain that ends at `grace` at the latest, earlier if listings are slow, but not before no flow has been open for `quiet`: during that time new clients may still
    /// arrive because the shutdown is not yet reflected in their routing.
    pub fn new(grace: Duration, quiet: Duration) -> Self {
        Self { grace, quiet, watched: HashMap::new(), busy: Duration::ZERO, due: Duration::ZERO, open: 0 }
    }

    /// Open flows in the last listing.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Decision by a conntrack listing; `None` (the listing failed) counts as open flows.
    pub fn decide(&mut self, flows: Option<&[Flow]>, now: Duration) -> DrainDecision {
        if let Some(flows) = flows {
            self.open = self.look(flows, now);
        }
        if self.open > 0 || flows.is_none() {
            self.busy = now;
        }
        let took = now.saturating_sub(self.due);
        // The resets need another listing. A slow one would use up their time.
        let end = self.grace.saturating_sub((took * 2).min(self.grace / 2));
        if flows.is_some() && self.open == 0 && now.saturating_sub(self.busy) >= self.quiet {
            DrainDecision::Ended
        } else if now >= end {
            DrainDecision::Over
        } else {
            // A listing walks the whole hash table, whatever the number of flows.
            let rest = (took * 10).clamp(MIN_LISTING_INTERVAL, MAX_LISTING_INTERVAL).min(end.saturating_sub(now));
            self.due = now + rest;
            DrainDecision::Wait(rest)
        }
    }

    fn look(&mut self, flows: &[Flow], now: Duration) -> usize {
        let mut watched = HashMap::new();
        let mut open = 0;
        for flow in flows.iter().filter(|flow| flow.is_forwarded()) {
            open += usize::from(match life(flow) {
                FlowEndSignal::Open => true,
                FlowEndSignal::Over => false,
                FlowEndSignal::WhileBusy => {
                    let last = self.last_packet(flow, now);
                    watched.insert(flow.id, last);
                    now.saturating_sub(last.1) < FLOW_IDLE_TIMEOUT
                }
            });
        }
        self.watched = watched;
        open
    }

    /// Time of a flow's last packet: each packet resets the timeout, which counts down otherwise.
    fn last_packet(&self, flow: &Flow, now: Duration) -> (u32, Duration) {
        match self.watched.get(&flow.id) {
            Some((timeout, at)) => {
                let passed = now.saturating_sub(*at).as_secs();
                let renewed = u64::from(flow.timeout) + passed > u64::from(*timeout) + ROUNDING;
                if renewed { (flow.timeout, now) } else { (*timeout, *at) }
            }
            None => (flow.timeout, now),
        }
    }
}

enum FlowEndSignal {
    Open,
    Over,
    WhileBusy,
}

fn life(flow: &Flow) -> FlowEndSignal {
    match flow.tcp {
        _ if !flow.is_tcp() => FlowEndSignal::WhileBusy,
        None | Some(TcpState::SynRecv | TcpState::Established | TcpState::FinWait | TcpState::CloseWait) => FlowEndSignal::Open,
        // Both ends have sent FIN or a reset.
        Some(TcpState::LastAck | TcpState::TimeWait | TcpState::Close) => FlowEndSignal::Over,
        Some(TcpState::None | TcpState::SynSent | TcpState::SynSent2) => FlowEndSignal::WhileBusy,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::model::flows::flow::{DST_NAT, Tuple};

    fn flow(proto: u8, tcp: Option<TcpState>, id: u32, timeout: u32) -> Flow {
        let tuple = Tuple { source: ([10, 0, 0, 9], 1).into(), destination: ([10, 0, 0, 1], 2).into() };
        Flow { proto, original: tuple, reply: tuple, tcp, status: DST_NAT, mark: 0, timeout, id }
    }

    fn tcp(state: TcpState) -> Flow {
        flow(6, Some(state), 1, 100)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn default_grace_period_is_mostly_for_flows() {
        let budget = Budget::of(Budget::DEFAULT_GRACE, true);
        assert_eq!((budget.flows, budget.resets, budget.daemon), (seconds(24), seconds(2), seconds(3)));
        assert_eq!(budget.flows + Budget::CLEANUP_PERIOD, Budget::DEFAULT_GRACE);
        let without_daemon = Budget::of(seconds(3), false);
        assert_eq!((without_daemon.flows, without_daemon.resets, without_daemon.daemon), (seconds(3) / 2, seconds(1), seconds(0)));
    }

    #[test]
    fn drain_ends_after_the_quiet_period_without_flows() {
        let mut drain = Drain::new(seconds(20), seconds(2));
        assert_eq!(drain.decide(Some(&[]), seconds(0)), DrainDecision::Wait(MIN_LISTING_INTERVAL));
        assert!(matches!(drain.decide(Some(&[tcp(TcpState::Established)]), seconds(1)), DrainDecision::Wait(_)));
        assert!(matches!(drain.decide(Some(&[]), seconds(2)), DrainDecision::Wait(_)));
        assert_eq!(drain.decide(Some(&[tcp(TcpState::TimeWait)]), seconds(3)), DrainDecision::Ended);
    }

    #[test]
    fn grace_period_is_that_of_the_deletion() {
        let pod = |metadata: Value| Deletion::of(Some(&json!({"metadata": metadata})), "7d5c");
        let deletion = |grace, began| Some(Deletion { grace, began });
        let forced = deletion(MIN_GRACE, None);
        assert_eq!(pod(json!({"uid": "7d5c"})), None, "its container alone is restarted");
        for (grace, wanted) in [(40, deletion(seconds(40), Some(seconds(60)))), (1, deletion(MIN_GRACE, Some(seconds(99))))] {
            let metadata = json!({"uid": "7d5c", "deletionGracePeriodSeconds": grace, "deletionTimestamp": "1970-01-01T00:01:40Z"});
            assert_eq!(pod(metadata), wanted);
        }
        assert_eq!(pod(json!({"uid": "7d5c", "deletionGracePeriodSeconds": -1})), None);
        assert_eq!(pod(json!({"uid": "7d5d", "deletionGracePeriodSeconds": 40})), forced, "its successor is deleted");
        assert_eq!(Deletion::of(None, "7d5c"), forced);
    }

    #[test]
    fn time_to_drain_follows_the_deletion_and_the_limit_of_the_hook() {
        let (began, timeout, hook) = (seconds(100), seconds(25), seconds(12));
        let after = |elapsed: i64, deletion, hook| available(timeout, deletion, hook, seconds((100 + elapsed).unsigned_abs())).as_secs();
        let deleted = |grace| Some(Deletion { grace: seconds(grace), began: Some(began) });
        // Without a hook neither the time of SIGTERM nor a clock matters.
        for elapsed in [-60, 0, 3, 600] {
            assert_eq!([deleted(360), deleted(30), deleted(5), None].map(|deletion| after(elapsed, deletion, seconds(0))), [25, 25, 5, 25]);
        }
        for (elapsed, wanted) in
            [(-60, [25, 25, 5]), (0, [25, 25, 5]), (4, [25, 25, 2]), (8, [25, 22, 2]), (12, [25, 18, 2]), (600, [25, 18, 2])]
        {
            assert_eq!([deleted(360), deleted(30), deleted(5)].map(|deletion| after(elapsed, deletion, hook)), wanted, "{elapsed} s");
        }
        let forced = Some(Deletion { grace: MIN_GRACE, began: None });
        assert_eq!([None, forced].map(|deletion| after(8, deletion, hook)), [13, 2], "the hook may have taken its limit");
        assert_eq!(available(seconds(1), forced, hook, began), seconds(1));
    }

    #[test]
    fn long_running_requests_leave_time_for_the_withdrawal_and_have_little_if_the_grace_period_is_unknown() {
        let deletion = Some(Deletion { grace: seconds(60), began: None });
        let table = [(seconds(45), deletion, 40.5), (seconds(4), deletion, 0.0), (seconds(45), None, 5.0), (seconds(6), None, 1.5)];
        for (flows, deletion, limit) in table {
            assert_eq!(long_running_limit(flows, deletion), Duration::from_secs_f64(limit), "{flows:?} {deletion:?}");
        }
    }

    #[test]
    fn forced_deletion_leaves_time_for_tailscaled_to_end() {
        let budget = Budget::of(MIN_GRACE, true);
        assert!(budget.flows >= seconds(1));
        assert!(budget.flows + budget.resets + budget.daemon + Duration::from_millis(300) < MIN_GRACE, "and for the release of a Lease");
    }

    #[test]
    fn idle_connection_delays_the_drain_to_its_deadline() {
        assert_eq!(end_of_drain(seconds(0)), seconds(20));
    }

    #[test]
    fn slow_listings_end_the_drain_earlier_so_that_resets_have_their_time() {
        let end = end_of_drain(seconds(2));
        assert!((seconds(15)..=seconds(18)).contains(&end), "{end:?}");
        assert_eq!(end_of_drain(seconds(15)), seconds(15), "one listing, whatever it takes");
    }

    /// Time of the end of a drain of twenty seconds with an idle connection whose listings take so long.
    fn end_of_drain(listing: Duration) -> Duration {
        let (mut drain, mut now) = (Drain::new(seconds(20), seconds(0)), listing);
        loop {
            match drain.decide(Some(&[tcp(TcpState::Established)]), now) {
                DrainDecision::Wait(rest) => now += rest + listing,
                DrainDecision::Over => return now,
                DrainDecision::Ended => panic!("a connection is open"),
            }
        }
    }

    #[test]
    fn active_udp_flow_delays_the_drain() {
        let mut drain = Drain::new(seconds(60), seconds(0));
        for now in 0..10 {
            assert!(matches!(drain.decide(Some(&[flow(17, None, 1, 120)]), seconds(now)), DrainDecision::Wait(_)), "at {now}");
        }
        let mut later = |now: u32| drain.decide(Some(&[flow(17, None, 1, 129 - now)]), seconds(now.into()));
        assert!(matches!(later(12), DrainDecision::Wait(_)), "idle for three seconds");
        assert_eq!(later(15), DrainDecision::Ended, "idle for six");
    }

    #[test]
    fn replica_of_many_services_waits_for_their_endpoints() {
        assert_eq!([0, 49, 50, 1000].map(quiet_time), [2, 2, 3, 22].map(seconds));
    }

    #[test]
    fn slow_listings_are_less_frequent() {
        let mut drain = Drain::new(seconds(60), seconds(2));
        assert_eq!(drain.decide(Some(&[]), Duration::ZERO), DrainDecision::Wait(MIN_LISTING_INTERVAL));
        assert_eq!(
            drain.decide(Some(&[]), MIN_LISTING_INTERVAL + Duration::from_millis(40)),
            DrainDecision::Wait(Duration::from_millis(400))
        );
    }

    #[test]
    fn failed_listing_does_not_end_the_drain_before_its_deadline() {
        let mut drain = Drain::new(seconds(2), seconds(0));
        assert!(matches!(drain.decide(None, seconds(0)), DrainDecision::Wait(_)));
        assert_eq!(drain.decide(None, seconds(2)), DrainDecision::Over);
    }

    #[test]
    fn local_flows_do_not_delay_the_drain() {
        let own = Flow { status: 0, ..tcp(TcpState::Established) };
        assert_eq!(Drain::new(seconds(2), seconds(0)).decide(Some(&[own]), seconds(0)), DrainDecision::Ended);
    }

    proptest! {
        /// A drain ends by its deadline whatever it observes, and never in the first half of its time while a connection is open.
        #[test]
        fn drain_meets_its_deadline_and_waits_for_open_connections(
            looks in prop::collection::vec(prop::option::of(prop::collection::vec((0_u8..10, any::<bool>(), 0_u32..5, 0_u32..200), 0..5)), 1..40),
            grace in 1_u64..30, quiet in 0_u64..5,
        ) {
            let mut drain = Drain::new(seconds(grace), seconds(quiet));
            for (now, look) in looks.into_iter().enumerate() {
                let now = seconds(now as u64);
                let flows: Option<Vec<_>> = look.map(|look| look.into_iter().map(|(state, udp, id, timeout)| {
                    let state = TcpState::of(state);
                    if udp { flow(17, None, id, timeout) } else { flow(6, state, id, timeout) }
                }).collect());
                let open = flows.iter().flatten().any(|flow| flow.tcp == Some(TcpState::Established));
                match drain.decide(flows.as_deref(), now) {
                    DrainDecision::Wait(next) => prop_assert!(now + next <= seconds(grace) && !next.is_zero()),
                    DrainDecision::Ended => prop_assert!(!open && flows.is_some() && now >= seconds(quiet)),
                    DrainDecision::Over => prop_assert!(now >= seconds(grace) / 2),
                }
            }
        }

        /// The parts never exceed the total, and flows get at least half.
        #[test]
        fn budget_fits_into_any_grace_period(total in 0_u64..10_000_000, daemon: bool) {
            let total = Duration::from_millis(total);
            let budget = Budget::of(total, daemon);
            prop_assert!(budget.flows + budget.resets + budget.daemon <= total);
            prop_assert!(budget.flows >= total / 2);
        }
    }
}

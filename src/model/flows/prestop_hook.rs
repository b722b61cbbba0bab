//! The preStop hook of the Tailscale operator: waits until services no longer send traffic to this Pod.
//!
//! The operator has removed the Pod from its services' endpoints; each node's kube-proxy applies that in its own time. One of them has if
//! other Pods answer `/healthz` at a service's `ClusterIP`. All of them have if no new flow arrives for a while. So the hook ends as soon
//! as
//!
//! - other Pods answer for every service, or it is refused for a few consecutive rounds, and
//! - no new flow has arrived for [`QUIET_PERIOD`]; if flows cannot be counted, [`BLIND_WAIT`] has passed since.
//!
//! A service that cannot be probed (its name does not resolve, or it does not respond) proves nothing, so a longer silence is required:
//! [`BLIND_WAIT`] without a new flow. New flows prolong the hook up to the caller's limit.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time without a new flow after which no more are expected.
pub const QUIET_PERIOD: Duration = Duration::from_secs(3);
/// The same without other evidence: the time that the operator's proxy waits.
pub const BLIND_WAIT: Duration = Duration::from_secs(10);
/// Consecutive rounds before a refused or unresponsive service counts as such.
const ROUNDS: u32 = 3;

/// Result of one request to a service's health endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthProbe {
    /// Response of a Pod with these addresses; empty if not reported.
    Answered(BTreeSet<IpAddr>),
    /// The connection was refused, or there is no route: no Pod serves it.
    Refused,
    /// No answer in time, or the name does not resolve.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Routed {
    /// Routed here, as far as known.
    Here,
    /// Refused in this many consecutive rounds.
    Refused(u32),
    /// Without response in this many consecutive rounds.
    Unknown(u32),
    /// Not routed here.
    Elsewhere,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookVerdict {
    /// These services are routed here.
    Routed(Vec<Arc<str>>),
    /// No service is routed here; remaining time without new flows.
    Settling(Duration),
    Drained,
}

/// Services of a draining Pod, with evidence.
#[derive(Debug, Clone)]
pub struct DrainingServices {
    own: BTreeSet<IpAddr>,
    services: BTreeMap<Arc<str>, Routed>,
    /// Last time that a service was routed here.
    routed_at: Duration,
    flows: Option<(u64, Duration)>,
}

impl DrainingServices {
    /// A Pod with these addresses, and the services to probe. Without services there is no evidence to wait for, so it counts as drained at
    /// once.
    pub fn new(own: BTreeSet<IpAddr>, services: impl IntoIterator<Item = Arc<str>>, now: Duration) -> Self {
        let services = services.into_iter().map(|name| (name, Routed::Here)).collect();
        Self { own, services, routed_at: now, flows: None }
    }

    /// Services to probe in the next round.
    pub fn to_ask(&self) -> Vec<Arc<str>> {
        self.services.iter().filter(|(_, routed)| **routed != Routed::Elsewhere).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Whether an answer proves that a service is routed here, so that the round needs no further probes.
    pub fn is_here(&self, probe: &HealthProbe) -> bool {
        matches!(probe, HealthProbe::Answered(ips) if !ips.is_disjoint(&self.own))
    }

    /// Evaluates a round of probes of one service, each on its own connection.
    pub fn probed(&mut self, service: &str, probes: &[HealthProbe]) {
        let here = probes.iter().any(|probe| self.is_here(probe));
        let all = |wanted: fn(&HealthProbe) -> bool| probes.iter().all(wanted);
        let Some(routed) = self.services.get_mut(service) else { return };
        *routed = if here {
            Routed::Here
        } else if all(|probe| matches!(probe, HealthProbe::Answered(_))) {
            Routed::Elsewhere
        } else if all(|probe| *probe == HealthProbe::Refused) {
            match *routed {
                Routed::Refused(rounds) if rounds + 1 >= ROUNDS => Routed::Elsewhere,
                Routed::Refused(rounds) => Routed::Refused(rounds + 1),
                _ => Routed::Refused(1),
            }
        } else {
            match *routed {
                Routed::Unknown(rounds) => Routed::Unknown(rounds.saturating_add(1)),
                _ => Routed::Unknown(1),
            }
        };
    }

    /// Records the number of flows so far; `None` if not countable. A counter reset counts as a new flow.
    pub fn counted(&mut self, flows: Option<u64>, now: Duration) {
        self.flows = match (flows, self.flows) {
            (Some(count), Some((before, since))) if count == before => Some((count, since)),
            (Some(count), _) => Some((count, now)),
            (None, _) => None,
        };
    }

    /// Verdict of all evidence so far.
    pub fn verdict(&mut self, now: Duration) -> HookVerdict {
        if self.services.is_empty() {
            return HookVerdict::Drained;
        }
        let believed = |routed: &Routed| matches!(routed, Routed::Elsewhere) || matches!(routed, Routed::Unknown(n) if *n >= ROUNDS);
        let here: Vec<_> = self.services.iter().filter(|(_, routed)| !believed(routed)).map(|(name, _)| Arc::clone(name)).collect();
        if !here.is_empty() {
            self.routed_at = now;
            return HookVerdict::Routed(here);
        }
        let certain = self.services.values().all(|routed| *routed == Routed::Elsewhere);
        let (since, silence) = match self.flows {
            Some((_, since)) => (since, if certain { QUIET_PERIOD } else { BLIND_WAIT }),
            None => (self.routed_at, BLIND_WAIT),
        };
        match (since + silence).saturating_sub(now) {
            Duration::ZERO => HookVerdict::Drained,
            remaining => HookVerdict::Settling(remaining),
        }
    }
}

#[cfg(test)]
mod tests;

//! Whether replicas hold what they were told to forward, by what they say themselves and by what their Pods are.
//!
//! What a replica says counts only for the Pod that said it, and only word for word: same ports, same target, and addresses
//! where the target is a name. Never by the age of a config or by the time that it should have taken.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::{Observed, ObservedReplica, ReplicaState};
use crate::api::condition::TRUE;
use crate::api::egress;
use crate::model::controller::objects::{Kind, ObjectRef};

/// How long a Pod that is not ready, or is not there, is waited for before the others go on without it. It gets no traffic
/// meanwhile, and is ready only once it holds the config, that service included.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);

/// The replicas of a group as far as forwarding goes.
#[derive(Debug)]
pub(super) struct ReplicaAcks {
    replicas: Vec<ReplicaAck>,
    /// Of the config that they are to hold.
    fingerprint: String,
}

#[derive(Debug)]
struct ReplicaAck {
    /// What it says, if the Pod that said it is the one there is.
    says: Option<Arc<ReplicaState>>,
    /// Whether its Pod gets traffic.
    ready: bool,
    /// Whether the others go on without it.
    silent: bool,
}

/// How the replicas stand to a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AckSummary {
    pub(super) written: bool,
    /// Every replica that is waited for holds it.
    pub(super) all: bool,
    /// So many forward it now.
    pub(super) ready: usize,
    pub(super) wanted: usize,
}

impl ReplicaAcks {
    pub(super) fn of(observed: &Observed, wanted: u32, fingerprint: String) -> Self {
        let long = |since: Timestamp| elapsed(since, observed.now) >= TIMEOUT;
        let still = still(observed, wanted).is_some_and(long);
        let one = |ordinal: u32| {
            let replica = observed.replicas.get(&ordinal).filter(|replica| replica.pod.is_some());
            // One that was never made, as for want of room or of quota, keeps the others waiting while something else moves.
            let Some(replica) = replica else { return ReplicaAck { says: None, ready: false, silent: still } };
            let (ready, since) = readiness(replica.pod.as_deref());
            ReplicaAck { says: said(replica).cloned(), ready, silent: !ready && since.is_some_and(long) }
        };
        Self { replicas: (0..wanted).map(one).collect(), fingerprint }
    }

    /// Whether some replica is not ready and not given up, so that time alone may change the answer.
    pub(super) fn waiting(&self) -> bool {
        self.replicas.iter().any(|one| !one.ready && !one.silent)
    }

    /// How the replicas stand to a service. Its name may point to the group if every replica that is waited for holds it, and
    /// one at least.
    pub(super) fn to(&self, key: &str, service: &egress::EgressService, written: bool) -> AckSummary {
        let mut acks = AckSummary { written, all: self.replicas.iter().any(|one| !one.silent), ready: 0, wanted: self.replicas.len() };
        for one in &self.replicas {
            let holds = self.holds(one, key, service);
            acks.all &= one.silent || holds;
            acks.ready += usize::from(one.ready && holds);
        }
        acks
    }

    fn holds(&self, one: &ReplicaAck, key: &str, service: &egress::EgressService) -> bool {
        one.status().is_some_and(|status| holds(status, &self.fingerprint, key, service))
    }

    /// Whether every service stands to these as to those.
    pub(super) fn same(&self, other: &Self) -> bool {
        let whole = |one: &ReplicaAck| one.status().is_some_and(|status| status.services.is_none());
        let equal = |(one, other): (&ReplicaAck, &ReplicaAck)| {
            let said = match (&one.says, &other.says) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            said && (one.ready, one.silent) == (other.ready, other.silent)
        };
        self.replicas.len() == other.replicas.len()
            && self.replicas.iter().zip(&other.replicas).all(equal)
            && (self.fingerprint == other.fingerprint || !self.replicas.iter().any(whole))
    }
}

impl ReplicaAck {
    fn status(&self) -> Option<&egress::EgressStatus> {
        self.says.as_ref()?.egress.as_ref()
    }
}

/// Whether a replica that says this holds a service of the config with this fingerprint.
#[must_use]
pub fn holds(status: &egress::EgressStatus, fingerprint: &str, key: &str, service: &egress::EgressService) -> bool {
    match status.services.as_ref() {
        Some(services) => services.get(key).is_some_and(|entry| {
            let resolved = entry.tailnet_target_ips.as_ref().is_some_and(|ips| !ips.is_empty());
            resolved && entry.tailnet_target == service.tailnet_target && same(&entry.ports, &service.ports)
        }),
        // With very many services a replica names the config as a whole, and what of it is not served.
        None => status.fingerprint.as_deref() == Some(fingerprint) && !status.rejected.contains_key(key),
    }
}

/// Since when nothing has moved: the set was made, or a Pod came, became ready or stopped being so. None without a set.
fn still(observed: &Observed, wanted: u32) -> Option<Timestamp> {
    let set = ObjectRef::new(Kind::StatefulSet, &observed.settings.namespace, observed.name.clone());
    let made = observed.owned.get(&set)?["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
    let pods = observed.replicas.range(..wanted).filter_map(|(_, replica)| readiness(replica.pod.as_deref()).1);
    pods.chain([made]).max()
}

fn same(one: &[egress::PortMap], other: &[egress::PortMap]) -> bool {
    one == other || (one.len() == other.len() && one.iter().collect::<BTreeSet<_>>() == other.iter().collect())
}

/// What a replica says, if its Pod has the addresses of the one that said it.
fn said(replica: &ObservedReplica) -> Option<&Arc<ReplicaState>> {
    let state = replica.state.as_ref()?;
    is_from_pod(state.egress.as_ref()?, replica.pod.as_ref()?).then_some(state)
}

/// Whether the Pod has the addresses of the one that said this.
#[must_use]
pub fn is_from_pod(status: &egress::EgressStatus, pod: &Pod) -> bool {
    speaks(&status.pod_ipv4, &status.pod_ipv6, pod)
}

/// Whether these are the addresses of the Pod.
pub(super) fn speaks(ipv4: &str, ipv6: &str, pod: &Pod) -> bool {
    let Some(pod) = pod.status.as_ref() else { return false };
    let listed = pod.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let addresses: BTreeSet<IpAddr> = listed.chain(pod.pod_ip.as_deref()).filter_map(|ip| ip.parse().ok()).collect();
    let says = |ip: &IpAddr| {
        let text = if ip.is_ipv4() { ipv4 } else { ipv6 };
        text.parse() == Ok(*ip)
    };
    !addresses.is_empty() && addresses.iter().all(says)
}

/// Whether a Pod has been getting no traffic for so long that nobody waits for it.
pub(super) fn long_unready(pod: &Pod, now: Timestamp) -> bool {
    let (ready, since) = readiness(Some(pod));
    !ready && since.is_some_and(|since| elapsed(since, now) >= TIMEOUT)
}

/// Whether a Pod gets traffic, and since when it does not.
fn readiness(pod: Option<&Pod>) -> (bool, Option<Timestamp>) {
    let Some(pod) = pod else { return (false, None) };
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).or(pod.metadata.creation_timestamp.as_ref());
    let is = ready.is_some_and(|ready| ready.status == TRUE) && pod.metadata.deletion_timestamp.is_none();
    (is, since.map(|since| since.0))
}

/// Whether a Pod gets traffic.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    readiness(Some(pod)).0
}

/// How long ago.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(now.as_second().saturating_sub(since.as_second())).unwrap_or_default())
}

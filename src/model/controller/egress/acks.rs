//! Acknowledgement of Services by replicas, from their reported status and their Pods.
//!
//! A status counts only for the Pod that wrote it, and only if equal: same ports, same target, and addresses where the target is a name.
//! The age of a config does not count.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::api::egress;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::observed::replica::{ObservedReplica, ReplicaState};
use crate::model::controller::workload::readiness::{TIMEOUT, elapsed, pod_addresses, readiness};

/// Acknowledgements of a group's replicas.
#[derive(Debug)]
pub(crate) struct ReplicaAcks {
    replicas: Vec<ReplicaAck>,
    /// Fingerprint of the desired config.
    fingerprint: String,
}

#[derive(Debug)]
struct ReplicaAck {
    /// Its status, if the current Pod wrote it.
    says: Option<Arc<ReplicaState>>,
    /// Whether its Pod gets traffic.
    ready: bool,
    /// Whether the others do not wait for it.
    silent: bool,
}

/// Acknowledgements of one Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AckSummary {
    pub(crate) written: bool,
    /// Every awaited replica has acknowledged it.
    pub(crate) all: bool,
    /// Number of replicas that forward it now.
    pub(crate) ready: usize,
    pub(crate) wanted: usize,
}

impl ReplicaAcks {
    pub(crate) fn of(observed: &Observed, wanted: u32, fingerprint: String) -> Self {
        let long = |since: Timestamp| elapsed(since, observed.now) >= TIMEOUT;
        let still = still(observed, wanted).is_some_and(long);
        let one = |ordinal: u32| {
            let replica = observed.replicas.get(&ordinal).filter(|replica| replica.pod.is_some());
            // A Pod that was never created, e.g. because of a quota, delays the others only while the group still changes.
            let Some(replica) = replica else { return ReplicaAck { says: None, ready: false, silent: still } };
            let (ready, since) = readiness(replica.pod.as_deref());
            ReplicaAck { says: reported_state(replica).cloned(), ready, silent: !ready && since.is_some_and(long) }
        };
        Self { replicas: (0..wanted).map(one).collect(), fingerprint }
    }

    /// Whether a replica is still awaited, so that the result may change with time.
    pub(crate) fn waiting(&self) -> bool {
        self.replicas.iter().any(|one| !one.ready && !one.silent)
    }

    /// Acknowledgements of a service. Its `externalName` may point to the group if every awaited replica has acknowledged it, and at
    /// least one.
    pub(crate) fn to(&self, key: &str, service: &egress::EgressService, written: bool) -> AckSummary {
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

    /// Whether both yield the same result for every service.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let whole = |one: &ReplicaAck| one.status().is_some_and(|status| status.services.is_none());
        let equal = |(one, other): (&ReplicaAck, &ReplicaAck)| {
            let is_same_state = match (&one.says, &other.says) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            is_same_state && (one.ready, one.silent) == (other.ready, other.silent)
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

/// Whether a status acknowledges a service of the config with this fingerprint.
pub fn holds(status: &egress::EgressStatus, fingerprint: &str, key: &str, service: &egress::EgressService) -> bool {
    match status.services.as_ref() {
        Some(services) => services.get(key).is_some_and(|entry| {
            let resolved = entry.tailnet_target_ips.as_ref().is_some_and(|ips| !ips.is_empty());
            resolved && entry.tailnet_target == service.tailnet_target && same(&entry.ports, &service.ports)
        }),
        // With very many services a status has the config's fingerprint and the rejected services.
        None => status.fingerprint.as_deref() == Some(fingerprint) && !status.rejected.contains_key(key),
    }
}

/// Time of the last change: creation of the StatefulSet or a Pod, or a change of readiness. `None` without a StatefulSet.
fn still(observed: &Observed, wanted: u32) -> Option<Timestamp> {
    let set = ObjectRef::new(Kind::StatefulSet, &observed.settings.namespace, observed.workload.clone());
    let made = observed.owned.get(&set)?["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
    let pods = observed.replicas.range(..wanted).filter_map(|(_, replica)| readiness(replica.pod.as_deref()).1);
    pods.chain([made]).max()
}

fn same(one: &[egress::PortMap], other: &[egress::PortMap]) -> bool {
    one == other || (one.len() == other.len() && one.iter().collect::<BTreeSet<_>>() == other.iter().collect())
}

/// Status of a replica, if its Pod has the addresses in it.
fn reported_state(replica: &ObservedReplica) -> Option<&Arc<ReplicaState>> {
    let state = replica.state.as_ref()?;
    is_from_pod(state.egress.as_ref()?, replica.pod.as_ref()?).then_some(state)
}

/// Whether a status has the addresses of the Pod.
pub fn is_from_pod(status: &egress::EgressStatus, pod: &Pod) -> bool {
    speaks(&status.pod_ipv4, &status.pod_ipv6, pod)
}

/// Whether these are the addresses of the Pod.
pub(crate) fn speaks(ipv4: &str, ipv6: &str, pod: &Pod) -> bool {
    let mut addresses = pod_addresses(pod).peekable();
    let says = |ip: &IpAddr| {
        let text = if ip.is_ipv4() { ipv4 } else { ipv6 };
        text.parse() == Ok(*ip)
    };
    addresses.peek().is_some() && addresses.all(|ip| says(&ip))
}

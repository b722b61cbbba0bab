//! Replicas: location, tailnet identity, config status and last error.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::Serialize;

use super::name;
use super::published::PublishedRecords;
use super::snapshot::{ClusterView, GroupConfig, LiveStatus, StatusPart, image, stock};
use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::api::replica::PeerCounts;
use crate::api::{egress, names};
use crate::model::controller::egress::acks::{holds, is_from_pod};
use crate::model::controller::workload::observed::replica::{ObservedReplica, ReplicaState};
use crate::model::controller::workload::pod_fault::PodFault;
use crate::model::controller::workload::readiness::{is_lost, is_ready, lost_message};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaOverview {
    pub name: String,
    pub group: String,
    /// Whether the replica receives traffic.
    pub ready: bool,
    /// Pod state in one word; `None` if unknown.
    pub state: Option<String>,
    pub node: Option<String>,
    pub addresses: Vec<String>,
    pub tailnet_name: Option<String>,
    /// Paths to active peers; `None` if unknown.
    pub peers: Option<PeerCounts>,
    pub config: Holding,
    /// Number of conntrack entries; `None` if unknown.
    pub flows: Option<u32>,
    pub image: Option<String>,
    pub version: ProgramVersion,
    pub last_error: Option<String>,
}

/// Status of the group's config at a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Holding {
    #[default]
    Unknown,
    /// The replica has applied all of it.
    Acknowledged,
    /// The replica has applied `up_to_date` of the services as configured.
    #[serde(rename_all = "camelCase")]
    Behind { up_to_date: usize, configured: usize },
    /// The replica of a group of type ingress advertises so many names of the config.
    #[serde(rename_all = "camelCase")]
    Advertised { advertised: usize, configured: usize },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProgramVersion {
    #[default]
    Unknown,
    /// The Tailscale operator's proxy image, which does not report its version.
    Stock,
    #[serde(untagged)]
    Of(String),
}

/// Egress config of a group, if readable, and the configs of groups of type ingress.
type Configs<'a> = (Option<&'a GroupConfig>, &'a PublishedRecords<'a>);

/// Desired replicas of a group, and those that still exist.
pub(super) fn replicas(view: &ClusterView, group: &ProxyGroup, configs: Configs<'_>) -> Vec<ReplicaOverview> {
    let ordinal = |pod: &String| pod.strip_prefix(name(group))?.strip_prefix('-')?.parse::<u32>().ok();
    let of_group =
        |pod: &Pod| pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::PARENT)).is_some_and(|of| of == name(group));
    let there = view.pods.iter().filter(|(_, pod)| of_group(pod)).filter_map(|(name, _)| ordinal(name));
    let ordinals: BTreeSet<u32> = (0..group.spec.desired_replicas()).chain(there).collect();
    ordinals.into_iter().map(|ordinal| one(view, group, ordinal, configs)).collect()
}

fn one(view: &ClusterView, group: &ProxyGroup, ordinal: u32, configs: Configs<'_>) -> ReplicaOverview {
    let replica = names::replica(name(group), ordinal);
    let (pod, state) = (view.pods.get(&replica), view.states.get(&replica));
    let live = view.live.get(&replica);
    let status = live.and_then(|live| live.as_ref().ok());
    let unread = view.gaps.contains_key(&StatusPart::Pods);
    let device = || {
        let prefix = format!("{}-{ordinal}", group.spec.hostname_prefix.as_deref().unwrap_or(name(group)));
        group.status.as_ref()?.devices.iter().find(|device| device.hostname == prefix)
    };
    let addresses = match state {
        Some(state) => state.device_ips.texts(),
        None => device().map(|device| device.tailnet_ips.clone()).unwrap_or_default(),
    };
    ReplicaOverview {
        group: name(group).to_owned(),
        ready: pod.is_some_and(is_ready),
        state: (!unread).then(|| pod.map_or_else(|| "Missing".to_owned(), phase)),
        node: pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone()),
        addresses,
        tailnet_name: state.and_then(|state| state.device_name.as_ref()).map(|name| name.as_str().to_owned()),
        peers: status.and_then(|status| status.peers),
        config: holding(view, group, (pod, state), configs),
        flows: status.and_then(|status| status.flows),
        image: pod.and_then(image).map(str::to_owned),
        version: match (status, pod.is_some_and(stock)) {
            (Some(status), _) => ProgramVersion::Of(status.version.clone()),
            (None, true) => ProgramVersion::Stock,
            (None, false) => ProgramVersion::Unknown,
        },
        last_error: last_error(pod, state, live),
        name: replica,
    }
}

fn holding(
    view: &ClusterView,
    group: &ProxyGroup,
    (pod, state): (Option<&Pod>, Option<&ReplicaState>),
    (config, published): Configs<'_>,
) -> Holding {
    let is_read = [StatusPart::States, StatusPart::Pods, StatusPart::Configs].iter().all(|part| !view.gaps.contains_key(part));
    let Some(config) = config.filter(|_| is_read) else { return Holding::Unknown };
    match group.spec.type_ {
        ProxyGroupType::Egress => {}
        ProxyGroupType::Ingress | ProxyGroupType::KubeApiServer => {
            let (pod, state) = (pod.cloned().map(Arc::new), state.cloned().map(Arc::new));
            let replica = ObservedReplica { pod, state, config: None };
            let found = published.advertised_by(name(group), &replica);
            if found.is_none() && group.spec.type_ == ProxyGroupType::KubeApiServer {
                // The Tailscale operator has no such config.
                return Holding::Unknown;
            }
            let (advertised, configured) = found.unwrap_or_default();
            return Holding::Advertised { advertised, configured };
        }
        ProxyGroupType::Other(_) => return Holding::Unknown,
    }
    let status = state.and_then(|state| state.egress.as_ref()).filter(|status| pod.is_some_and(|pod| is_from_pod(status, pod)));
    let named = status.is_some_and(|status| status.fingerprint.as_ref() == Some(&config.fingerprint));
    let is_up_to_date =
        |(key, service): &(&String, &egress::EgressService)| status.is_some_and(|status| holds(status, &config.fingerprint, key, service));
    let (up_to_date, configured) = (config.services.iter().filter(is_up_to_date).count(), config.services.len());
    if named || (status.is_some() && up_to_date == configured) { Holding::Acknowledged } else { Holding::Behind { up_to_date, configured } }
}

/// Pod state in kubectl's terms.
pub(super) fn phase(pod: &Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "Terminating".to_owned();
    }
    let waiting = |container: &ContainerStatus| container.state.as_ref()?.waiting.as_ref()?.reason.clone();
    let status = pod.status.as_ref();
    let waiting = status.and_then(|status| status.container_statuses.as_ref()?.iter().find_map(waiting));
    let phase = status.and_then(|status| status.phase.clone()).unwrap_or_else(|| "Pending".to_owned());
    match waiting {
        Some(reason) => reason,
        None if phase == "Running" && is_lost(pod) => "Unreachable".to_owned(),
        None if phase == "Running" && !is_ready(pod) => "NotReady".to_owned(),
        None => phase,
    }
}

/// Last error: from the replica's own status, else from the kubelet or the scheduler.
pub(super) fn last_error(pod: Option<&Pod>, state: Option<&ReplicaState>, live: Option<&LiveStatus>) -> Option<String> {
    let status = live.and_then(|live| live.as_ref().ok());
    let own = status.and_then(|status| {
        status.last_error.clone().or_else(|| status.blockers.first().cloned()).or_else(|| status.warnings.first().cloned())
    });
    let reissue = || {
        state?.reissue.as_ref()?;
        Some("its auth key was refused, it waits for another one".to_owned())
    };
    let crash = || ended(pod?, |container| !container.ready);
    let fault = || Some(PodFault::find(pod, None)?.text());
    own.or_else(|| lost_message(pod?)).or_else(reissue).or_else(crash).or_else(fault).or_else(|| ended(pod?, |_| true))
}

/// Last exit of a restarted container among these.
fn ended(pod: &Pod, among: impl Fn(&ContainerStatus) -> bool) -> Option<String> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers.iter().filter(|container| among(container)).find_map(|container| {
        let ended = container.last_state.as_ref()?.terminated.as_ref()?;
        let when = ended.finished_at.as_ref().map(|at| format!(" at {}", at.0)).unwrap_or_default();
        let reason = ended.reason.as_deref().unwrap_or("ended");
        Some(format!("{reason} with code {}{when}, started again {} times", ended.exit_code, container.restart_count))
    })
}

//! What the control plane of a group gives its names: the domain of the tailnet, and Tailscale Services or none.

use crate::model::controller::workload::actions::device_of_replica;
use crate::model::controller::workload::objects::env::variable_of;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::pass::Pass;

/// Whether the control plane has no Tailscale Services. While unknown, the replicas' configs decide.
pub(crate) fn node_sites(work: &Pass<'_>) -> bool {
    let owner = work.owner;
    if let Some(has_services) = work.observed.tailnet.has_services() {
        return !has_services;
    }
    let set = work.owned(&ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.name.clone()));
    set.and_then(|set| variable_of(set, "TAILYARD_SERVE_ON_NODE_ADDRESS")) == Some("true")
}

/// Why the domain of the tailnet is not known yet.
pub(crate) fn unconfirmed(work: &Pass<'_>) -> String {
    let denied = work.observed.replicas.keys().find_map(|ordinal| work.observed.denied.get(&device_of_replica(*ordinal)));
    let joined = "It is published when the first replica of its ProxyGroup has joined the tailnet.";
    denied.map_or_else(|| joined.to_owned(), |denial| format!("{joined} The control plane does not confirm its device: {}", denial.why))
}

/// Domain of the tailnet, from the replicas' device records.
pub(crate) fn suffix(work: &Pass<'_>) -> Option<String> {
    work.observed.replicas.values().find_map(|replica| replica.device()?.domain.clone())
}

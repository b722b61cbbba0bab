//! States of a group's Tailscale Services, from a list that is refreshed as it ages.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::names;
use crate::model::controller::ingress::items::ServiceState;
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget};
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::identity::DeviceAddresses;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::ServiceList;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness;
use crate::model::controller::workload::vip_service::{DesiredVipService, OwnershipVerdict, verify_owner};

/// Interval of checks whether the other side of a move serves.
pub(crate) const HANDOVER_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum age of control plane data: another cluster may have overwritten our part of a Tailscale Service, or an approval of a route may
/// have been withdrawn.
pub(crate) const MAX_CONTROL_DATA_AGE: Duration = Duration::from_mins(5);

/// Whether the control plane has no Tailscale Services, as far as known.
pub(crate) fn lacks_services(work: &Pass<'_>) -> bool {
    work.observed.tailnet.has_services() == Some(false)
}

/// State of a name's Tailscale Service; plans the requests that it depends on.
pub(crate) fn service_state(
    work: &mut PlanPart<'_>,
    shape: &RenderContext<'_>,
    (listed, reported): (Option<&ServiceList>, &BTreeSet<String>),
    (name, claimant): (&str, &Publisher),
    spec: &PublishSpec,
    joins: bool,
) -> ServiceState {
    let observed = work.observed;
    let entry = listed.and_then(|listed| listed.services.get(name));
    let answers = match observed.tailnet.has_services() {
        Some(false) => return ServiceState::Unsupported,
        answers => answers.is_some(),
    };
    if listed.is_none() || (entry.is_none() && !answers) {
        return ServiceState::Unknown;
    }
    let tags = if spec.tags.is_empty() { shape.settings.tags.clone() } else { spec.tags.clone() };
    let (name, group) = (name.to_owned(), shape.owner.name.clone());
    let (ports, adopt, taken_by) = (spec.ports.clone(), adopts(work, &spec.label), taken_by(work, &spec.label, claimant));
    let sole_owner = observed.owning_group().sole_owner.map(str::to_owned);
    let desired = DesiredVipService { name, group, tags, ports, share: joins, adopt, taken_by, sole_owner };
    // Replicas' configs only had names that were ours.
    let recorded = reported.contains(&desired.name);
    match verify_owner(entry, &desired, &observed.settings.cluster, recorded) {
        OwnershipVerdict::Refused(why) => ServiceState::Conflict(why),
        verdict => {
            let settled = verdict == OwnershipVerdict::Settled;
            let ours = settled || matches!(verdict, OwnershipVerdict::Write { ours: true, .. });
            let addrs = entry.iter().flat_map(|current| current.addrs.iter().map(String::as_str));
            let addrs = DeviceAddresses::parse(addrs).texts();
            // A new one may get its addresses later.
            let incomplete = !settled || (matches!(spec.target, PublishTarget::Whole(_)) && addrs.is_empty());
            if entry.is_none() && is_device(work, &desired.name) {
                work.again(HANDOVER_POLL_INTERVAL);
            } else if answers && incomplete {
                work.plan.control.push(ControlAction::PublishService { desired, namespace: claimant.namespace.clone(), recorded });
            }
            if ours { ServiceState::Owned(addrs) } else { ServiceState::Creating }
        }
    }
}

/// Whether the proxy of an object of the group has the name, until it gives it up: the control plane would reject the Tailscale Service.
pub(crate) fn is_device(work: &Pass<'_>, name: &str) -> bool {
    work.observed.publish.rivals.get(name).is_some_and(|rivals| rivals.iter().any(|rival| rival.is_device))
}

/// Other groups that have the name for other objects, also by another Tailnet object: the owners of a Tailscale Service show that it is of one
/// tailnet. During a move two groups have it for one object.
fn taken_by(work: &Pass<'_>, label: &str, claimant: &Publisher) -> BTreeSet<String> {
    let subject = WorkloadKey::from(claimant);
    let others = work.observed.publish.namesakes.get(label).into_iter().flatten();
    let others = others.filter(|other| other.holds && !other.is_same_tailnet && other.subject != subject);
    others.filter_map(|other| other.workload.group().map(str::to_owned)).collect()
}

/// Whether the group may adopt a Tailscale Service without owner: set by administrators, not by tenants.
fn adopts(work: &Pass<'_>, label: &str) -> bool {
    let annotations = work.observed.group.as_ref().and_then(|group| group.metadata.annotations.as_ref());
    annotations.and_then(|all| all.get(names::ADOPT)).is_some_and(|named| named.split(',').any(|named| named.trim() == label))
}

/// The list of Tailscale Services; plans a refresh of an old one.
pub(crate) fn listed<'a>(work: &mut PlanPart<'a>) -> Option<&'a ServiceList> {
    let listed = work.observed.publish.listed.as_deref();
    let now = work.observed.now;
    if work.observed.tailnet.has_services() != Some(true) {
        return listed;
    }
    let age = listed.map(|listed| readiness::elapsed(listed.at, now));
    if age.is_none_or(|age| age >= MAX_CONTROL_DATA_AGE) {
        let since = now.checked_sub(k8s_openapi::jiff::SignedDuration::try_from(MAX_CONTROL_DATA_AGE).unwrap_or_default()).unwrap_or(now);
        work.plan.control.push(ControlAction::ListServices { since });
    } else if let Some(age) = age {
        work.again(MAX_CONTROL_DATA_AGE.saturating_sub(age));
    }
    listed
}

//! Objects that request a name from a group, or had one, and the selection of one object for each name.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::condition::{INGRESS_SVC_CONFIGURED, INGRESS_SVC_VALID, reason};
use crate::api::names;
use crate::api::routes::Origin;
use crate::model::base::conditions;
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::spec;
use crate::model::controller::ingress::spec::{PublishSpec, SpecContext, service_name};
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::age::{Age, age};
use crate::model::controller::policy::assignment::GroupAssignment;
use crate::model::controller::policy::requests::{Parent, ingress_label, service_label};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::observed::{Observed, name_winner};
use crate::model::controller::workload::spec::WorkloadSpec;

/// Reason of Events about our `IngressClass`.
pub(crate) const INVALID_CLASS: &str = "InvalidIngressClass";
/// Reason of Events about an invalid Ingress.
const INVALID_INGRESS: &str = "InvalidIngressConfiguration";

/// An object that requests a name, or had one.
#[derive(Debug)]
pub(crate) struct IngressClaim<'a> {
    pub(crate) claimant: Publisher,
    pub(crate) object: Parent<'a>,
    pub(crate) assignment: GroupAssignment<'a>,
    /// Requests a name from this group now.
    pub(crate) is_requested: bool,
    /// This group writes its status: it is assigned to no other group.
    pub(crate) ours: bool,
    pub(crate) label: String,
    pub(crate) recorded: Vec<String>,
    /// Finalizer of the object for this plan.
    pub(crate) finalizer: &'static str,
    /// Whether the object has that finalizer of the Tailscale operator.
    pub(crate) is_foreign: bool,
}

impl IngressClaim<'_> {
    pub(crate) fn age(&self) -> Age<'_> {
        age(self.object.metadata())
    }

    /// Whether it has the name that it requests.
    fn holds(&self) -> bool {
        self.recorded.contains(&service_name(&self.label))
    }

    /// Whether its status shows that it is served.
    fn is_shown(&self) -> bool {
        let status = match self.object {
            Parent::Ingress(ingress) => ingress.status.as_ref().and_then(|status| Some(status.load_balancer.as_ref()?.ingress.is_some())),
            Parent::Service(service) => {
                Some([INGRESS_SVC_VALID, INGRESS_SVC_CONFIGURED].into_iter().any(|kind| conditions::is_true(service, kind)))
            }
        };
        status == Some(true)
    }

    /// Order of decisions: who has the requested name, then the oldest object.
    pub(crate) fn rank(&self) -> (bool, Age<'_>, &Publisher) {
        (!self.holds(), self.age(), &self.claimant)
    }

    /// Fault of its annotation or class, by which no group is named for it.
    pub(crate) fn fault(&self) -> Option<Rejection> {
        let reason = match (self.assignment, self.object) {
            (GroupAssignment::Unusable(_), _) => INVALID_CLASS,
            (_, Parent::Ingress(_)) => INVALID_INGRESS,
            (_, Parent::Service(_)) => reason::INGRESS_SVC_INVALID,
        };
        self.assignment.fault().map(|message| Rejection::new(reason, message))
    }
}

/// Record of an object in the config.
pub(crate) fn origin(claimant: &Publisher) -> Origin {
    Origin { kind: claimant.source.kind().to_owned(), namespace: claimant.namespace.clone(), name: claimant.name.clone() }
}

/// Subject of Events about an object.
pub(crate) fn subject(claimant: &Publisher) -> WorkloadKey {
    claimant.into()
}

/// All objects that are assigned to the group or have a record in it.
pub(crate) fn claims<'a>(observed: &'a Observed, before: &IngressConfigMap) -> Vec<IngressClaim<'a>> {
    let group = observed.key.group_name();
    let (rules, standalone_proxy) = (&*observed.assignment, observed.key.is_standalone());
    let releases = finalizers::releases_names(&observed.settings.types);
    let mut claims = Vec::new();
    let mut records: BTreeMap<&Origin, Vec<&String>> = BTreeMap::new();
    for (name, origin) in &before.origins {
        records.entry(origin).or_default().push(name);
    }
    let mut add = |object: Parent<'a>, assignment: GroupAssignment<'a>, label: String| {
        let (metadata, claimant) = (object.metadata(), object.publisher());
        let is_terminating = metadata.deletion_timestamp.is_some();
        let assigned = assignment.group();
        let standalone = matches!(object, Parent::Ingress(ingress) if standalone_proxy && rules.is_standalone_ingress(ingress));
        let marker = if standalone { names::FINALIZER } else { claimant.source.finalizer() };
        let finalized = finalizers::has(metadata, marker);
        let has_conditions = matches!(object, Parent::Service(service) if spec::has_conditions(service));
        let origin = origin(&claimant);
        let mut recorded: Vec<String> = records.get(&origin).into_iter().flatten().map(|name| (*name).clone()).collect();
        // The Tailscale operator keeps no record: match by name.
        let own = service_name(&label);
        if !before.origins.contains_key(&own) && (before.serve.contains_key(&own) || before.mappings.contains_key(&own)) {
            recorded.push(own);
        }
        // While undecided it stays where it is; if that is nowhere, its fault is reported to it.
        let (undecided, unassigned) = (assignment.is_undecided(), observed.key.group() == Some(""));
        let is_released = releases || !recorded.is_empty();
        let ours = match assigned {
            _ if undecided => unassigned || !recorded.is_empty(),
            Some(assigned) => assigned == group,
            // The Tailscale operator withdraws what it published.
            None => is_released || standalone_proxy,
        };
        let stays = undecided && !recorded.is_empty();
        let reported = unassigned && assignment.is_faulty();
        let is_requested = (assigned == Some(group) || stays || reported || standalone) && !is_terminating;
        let is_foreign = finalized && !standalone_proxy && !is_released;
        let claim = IngressClaim { claimant, object, assignment, is_requested, ours, label, recorded, finalizer: marker, is_foreign };
        if claim.is_requested || (ours && (finalized || has_conditions)) || !claim.recorded.is_empty() {
            claims.push(claim);
        }
    };
    for ingress in observed.publish.ingresses.values() {
        add(Parent::Ingress(ingress), rules.ingress(ingress), ingress_label(ingress));
    }
    for service in observed.services.values() {
        add(Parent::Service(service), rules.published(service), service_label(service));
    }
    assign_unrecorded(&mut claims, before);
    claims
}

/// Assigns each name whose object the config does not say to one claim: that of an object whose status has an address, else the oldest.
fn assign_unrecorded(claims: &mut [IngressClaim<'_>], before: &IngressConfigMap) {
    let mut owners: BTreeMap<String, (bool, (i64, String), Publisher)> = BTreeMap::new();
    let unrecorded = |claim: &IngressClaim<'_>| service_name(&claim.label);
    for claim in claims.iter().filter(|claim| claim.holds() && !before.origins.contains_key(&unrecorded(claim))) {
        let (created, uid) = claim.age();
        let rank = (!claim.is_shown(), (created, uid.to_owned()), claim.claimant.clone());
        let first = owners.entry(unrecorded(claim)).or_insert_with(|| rank.clone());
        *first = rank.min(first.clone());
    }
    for claim in claims {
        let name = service_name(&claim.label);
        if owners.get(&name).is_some_and(|(.., owner)| *owner != claim.claimant) {
            claim.recorded.retain(|recorded| *recorded != name);
        }
    }
}

/// Rejects a name that an object of another workload has, or requested earlier.
pub(crate) fn contest(observed: &Observed, claim: &IngressClaim<'_>) -> Result<(), Rejection> {
    let others = observed.publish.namesakes.get(&claim.label);
    let subject = WorkloadKey::from(&claim.claimant);
    match name_winner(&observed.key, (&subject, claim.age(), claim.holds()), others) {
        Some(winner) => Err(Rejection::new(reason::NAME_CONFLICT, name_conflict(winner, &claim.label))),
        None => Ok(()),
    }
}

/// Host names in the configs of a workload's replicas.
pub(crate) fn recorded_hostnames(observed: &Observed) -> BTreeSet<String> {
    observed.replicas.values().filter_map(|replica| replica.config.as_ref()).flat_map(|config| config.names()).collect()
}

/// The first host name of a workload's replicas that another workload has, of those that `is_rival` selects; with that workload.
pub(crate) fn taken_hostname(
    observed: &Observed,
    (spec, age): (&WorkloadSpec<'_>, Age<'_>),
    is_rival: impl Fn(&WorkloadKey) -> bool,
) -> Option<(WorkloadKey, String)> {
    let namesakes = &observed.publish.namesakes;
    let recorded = if namesakes.is_empty() { return None } else { recorded_hostnames(observed) };
    (0..spec.replicas).map(|ordinal| spec.hostname(ordinal)).find_map(|hostname| {
        let rivals = namesakes.get(&hostname)?.iter().filter(|other| is_rival(&other.workload)).cloned().collect();
        let holds = recorded.contains(&hostname);
        let winner = name_winner(&observed.key, (&observed.key, age, holds), Some(&rivals)).cloned();
        Some((winner?, hostname))
    })
}

/// Message to an object whose name another one has.
pub(crate) fn name_conflict(first: &WorkloadKey, label: &str) -> String {
    format!("{first} has the name {label} already: give this one another name in the tailnet, or remove one of them.")
}

/// Parses the request. `issues`: whether the control plane issues the certificates of the domain. `device`: whole name of the device that
/// serves it, if that is its name.
pub(crate) fn read(
    observed: &Observed,
    claim: &IngressClaim<'_>,
    (suffix, issues): (&str, bool),
    device: Option<&str>,
) -> Result<PublishSpec, Rejection> {
    let services =
        |namespace: &str, name: &str| observed.publish.backends.get(&(namespace.to_owned(), name.to_owned())).map(|service| &**service);
    let (namespace, certificates) = (&*observed.settings.namespace, &observed.publish.certificates);
    let reserved = &observed.publish.reserved;
    let context = SpecContext { suffix, issues, device, services: &services, namespace, certificates, reserved, now: observed.now };
    let (read, reason) = match claim.object {
        Parent::Ingress(_) if observed.publish.class_fault.is_some() => {
            let why = observed.publish.class_fault.clone().unwrap_or_default();
            return Err(Rejection::new(INVALID_CLASS, why));
        }
        Parent::Ingress(ingress) => (spec::ingress::ingress(ingress, &context), INVALID_INGRESS),
        Parent::Service(service) => (spec::service::service(service), reason::INGRESS_SVC_INVALID),
    };
    read.map_err(|wrong| Rejection::new(reason, wrong.join(" ")))
}

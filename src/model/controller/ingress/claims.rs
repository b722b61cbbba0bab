//! Objects that request a name from a group, or had one, and the selection of one object for each name.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::condition::reason;
use crate::api::names;
use crate::api::routes::Origin;
use crate::model::controller::ingress::spec::{PublishSpec, SpecContext, service_name};
use crate::model::controller::ingress::{Rejection, spec};
use crate::model::controller::key::Publisher;
use crate::model::controller::policy::assignment::GroupAssignment;
use crate::model::controller::policy::requests::{Parent, ingress_label, service_label};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::observed::{Namesake, Observed};

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
    pub(crate) asks: bool,
    /// This group writes its status: it is assigned to no other group.
    pub(crate) ours: bool,
    pub(crate) label: String,
    pub(crate) recorded: Vec<String>,
    /// Finalizer of the object for this plan.
    pub(crate) finalizer: &'static str,
}

impl IngressClaim<'_> {
    /// Creation time in seconds.
    pub(crate) fn created(&self) -> i64 {
        created(self.object.metadata())
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

/// Creation time of an object in seconds; unknown sorts last.
pub(crate) fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map_or(i64::MAX, |created| created.0.as_second())
}

/// All objects that are assigned to the group or have a record in it.
pub(crate) fn claims<'a>(observed: &'a Observed, before: &IngressConfigMap) -> Vec<IngressClaim<'a>> {
    let group = observed.key.group_name();
    let (rules, alone) = (&*observed.assignment, observed.key.is_standalone());
    let mut claims = Vec::new();
    let mut records: BTreeMap<&Origin, Vec<&String>> = BTreeMap::new();
    for (name, origin) in &before.origins {
        records.entry(origin).or_default().push(name);
    }
    let mut add = |object: Parent<'a>, assignment: GroupAssignment<'a>, label: String| {
        let (metadata, claimant) = (object.metadata(), object.publisher());
        let going = metadata.deletion_timestamp.is_some();
        let assigned = assignment.group();
        let standalone = matches!(object, Parent::Ingress(ingress) if alone && rules.is_standalone_ingress(ingress));
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
        let ours = if undecided { unassigned || !recorded.is_empty() } else { assigned.is_none_or(|assigned| assigned == group) };
        let stays = undecided && !recorded.is_empty();
        let reported = unassigned && assignment.is_faulty();
        let asks = (assigned == Some(group) || stays || reported || standalone) && !going;
        let claim = IngressClaim { claimant, object, assignment, asks, ours, label, recorded, finalizer: marker };
        if claim.asks || (ours && (finalized || has_conditions)) || !claim.recorded.is_empty() {
            claims.push(claim);
        }
    };
    for ingress in observed.publish.ingresses.values() {
        add(Parent::Ingress(ingress), rules.ingress(ingress), ingress_label(ingress));
    }
    for service in observed.services.values() {
        add(Parent::Service(service), rules.published(service), service_label(service));
    }
    claims
}

/// The oldest object for each label, in any group: it gets the name. Of this group only those that may have it.
pub(crate) fn firsts<'a, 'b>(
    observed: &'a Observed,
    claims: &'a [IngressClaim<'b>],
    is_permitted: impl Fn(&IngressClaim<'b>) -> bool,
) -> BTreeMap<&'a str, (i64, &'a Publisher)> {
    let mut firsts: BTreeMap<&str, (i64, &Publisher)> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.asks && is_permitted(claim)) {
        let others = observed.publish.rivals.get(&service_name(&claim.label)).into_iter().flatten();
        let others = others.map(|rival| (rival.created, &rival.claimant));
        for rank in others.chain([(claim.created(), &claim.claimant)]) {
            let first = firsts.entry(&claim.label).or_insert(rank);
            *first = rank.min(*first);
        }
    }
    firsts
}

pub(crate) fn contest(firsts: &BTreeMap<&str, (i64, &Publisher)>, claim: &IngressClaim<'_>) -> Result<(), Rejection> {
    let Some((_, first)) = firsts.get(claim.label.as_str()).filter(|(_, first)| **first != claim.claimant) else { return Ok(()) };
    Err(Rejection::new(reason::NAME_CONFLICT, name_conflict(first, &claim.label)))
}

/// Rejects a name that an object with a proxy of its own has, or requested earlier.
pub(crate) fn contest_proxies(observed: &Observed, claim: &IngressClaim<'_>) -> Result<(), Rejection> {
    let holds = claim.recorded.contains(&service_name(&claim.label));
    let own = Namesake { claimant: claim.claimant.clone(), created: claim.created(), holds };
    let others = observed.publish.namesakes.get(&claim.label).map(Vec::as_slice).unwrap_or_default();
    match own.winner(others) {
        Some(winner) => Err(Rejection::new(reason::NAME_CONFLICT, name_conflict(&winner.claimant, &claim.label))),
        None => Ok(()),
    }
}

/// Message to an object whose name another one has.
pub(crate) fn name_conflict(first: &Publisher, label: &str) -> String {
    format!("{first} has the name {label} already: give this one another name in the tailnet, or remove one of them.")
}

/// Parses the request. `device`: whole name of the device that serves it, if that is its name.
pub(crate) fn read(observed: &Observed, claim: &IngressClaim<'_>, suffix: &str, device: Option<&str>) -> Result<PublishSpec, Rejection> {
    let services =
        |namespace: &str, name: &str| observed.publish.backends.get(&(namespace.to_owned(), name.to_owned())).map(|service| &**service);
    let (namespace, certificates) = (&*observed.settings.namespace, &observed.publish.certificates);
    let reserved = &observed.publish.reserved;
    let context = SpecContext { suffix, device, services: &services, namespace, certificates, reserved, now: observed.now };
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

//! The egress Services of a group: their children, and the one config that the replicas forward by.
//!
//! A child is made before the config names its ports, for it is their record; a child is gone before the config forgets it.
//! Conditions and names of the users' Services are told by [`super::services`].

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::claims::{self, Claim, Role, claims};
use super::memo::{Entries, Known, Stood};
use super::work::Work;
use super::{quota, readiness, room, services};
use crate::api::{egress, names};
use crate::model::base::conditions;
use crate::model::controller::match_ports::Ports;
use crate::model::controller::objects::{Child, Kind, ObjectRef, Owner, Shape, egress_config, egress_config_ref, next_port};
use crate::model::controller::tenancy::Tenancy;

/// What came of a Service.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is served as it was.
    Known,
    /// It is served, or will be once everything is written and taken up.
    Served(Serving),
    /// It cannot be served; why, and what to do.
    Refused(String),
    /// It is as it was.
    Held,
    /// It is let go.
    Released,
}

/// How a Service is served.
#[derive(Debug)]
pub(super) struct Serving {
    /// Its child.
    pub(super) child: Arc<Child>,
    /// Its entry in the config.
    pub(super) entry: Arc<egress::Service>,
    /// Whether the child is as it must be.
    pub(super) settled: bool,
}

impl Known {
    /// How it is served.
    pub(super) fn serving(&self) -> Serving {
        Serving { child: Arc::clone(&self.child), entry: Arc::clone(&self.entry), settled: true }
    }
}

/// Wants everything that the Services need, and tells their users.
pub(super) fn egress(work: &mut Work<'_>, shape: &Shape<'_>) {
    let tenancy = Tenancy::of(shape.spec, shape.settings.tenancy, &work.observed.namespaces);
    work.memory.on(shape, &tenancy);
    let mut claims = claims(work.observed, work.memory);
    quota::deny(&mut claims, &tenancy, &shape.owner.group);
    let observed = work.owned(&egress_config_ref(&shape.owner));
    let plain = |claim: &Claim<'_>| claim.role == Role::Serve && claim.object.is_some();
    // Looked into only if something of it is needed.
    let before = if claims.iter().all(plain) { Arc::default() } else { before(work, observed) };
    let mut ports = Ports::new(shape.ports(), shape.reserved(), observed.and_then(|held| next_port(held)));
    // What is there goes before what is to come, and what nobody can change before what can.
    for first in [true, false] {
        for claim in claims.iter_mut().filter(|claim| (claim.role != Role::Serve) == first) {
            claim.keep(&work.observed.name, &before, &mut ports);
        }
    }
    let exceeding = quota::exceeding(&claims, &tenancy, &shape.owner.group);
    let mut outcomes: Vec<_> = claims
        .iter()
        .map(|claim| match exceeding.get(&claim.key) {
            Some(why) => Outcome::Refused(why.clone()),
            None => one(work, shape, claim, &mut ports),
        })
        .collect();
    let mut entries: Arc<Entries> = Arc::new(claims.iter().zip(&outcomes).filter_map(|both| named(both, &before)).collect());
    let mut config = work.memory.config(&shape.owner, &entries, shape.replicas, ports.next());
    if !config.fits(shape.stock()) {
        entries = Arc::new(room::fitting(&claims, &self::before(work, observed), &entries, shape));
        room::refuse(work, &claims, &entries, &mut outcomes, shape.stock());
        // Ports of those that were refused are not given: the next ones are looked for from where they were.
        let next = observed.and_then(|held| next_port(held)).unwrap_or(ports.next());
        config = work.memory.config(&shape.owner, &entries, shape.replicas, next);
    }
    let written = work.memory.held(observed) || work.write(&shape.owner, config.manifest());
    let standing = readiness::Standing::of(work.observed, shape.replicas, config.fingerprint().to_owned());
    tell(work, claims, outcomes, written, standing);
    slices(work, &shape.owner);
}

/// The services of the config as it is.
fn before(work: &Work<'_>, observed: Option<&Arc<Value>>) -> Arc<Entries> {
    let read = |held: &Arc<Value>| egress_config(held).into_iter().map(|(name, entry)| (name.into(), Arc::new(entry))).collect();
    observed.map(|held| work.memory.entries(held).unwrap_or_else(|| Arc::new(read(held)))).unwrap_or_default()
}

/// A Service in the config, if it is to be there: as it was if it is not served as it is.
fn named((claim, outcome): (&Claim<'_>, &Outcome), before: &Entries) -> Option<(Arc<str>, Arc<egress::Service>)> {
    let entry = match (outcome, &claim.known) {
        (Outcome::Known, Some(known)) => &known.entry,
        (Outcome::Served(serving), _) => &serving.entry,
        _ => claim.object.and_then(|_| before.get(&claim.name))?,
    };
    Some((Arc::clone(&claim.name), Arc::clone(entry)))
}

/// Tells the users, and remembers what became of their Services.
fn tell(work: &mut Work<'_>, claims: Vec<Claim<'_>>, outcomes: Vec<Outcome>, written: bool, standing: readiness::Standing) {
    let judged = claims.iter().filter(|claim| claim.known.is_none()).count();
    let told = services::Told { written, same: work.memory.stands(&standing), standing: &standing };
    let mut known = Vec::with_capacity(claims.len());
    for (claim, outcome) in claims.into_iter().zip(outcomes) {
        let told = services::tell(work, &claim, &outcome, &told);
        known.extend(remembered(claim, outcome, told));
    }
    work.memory.keep(known, judged, standing);
}

/// What is remembered of a Service that is served, and whose child is as it must be.
fn remembered(claim: Claim<'_>, outcome: Outcome, told: Option<Stood>) -> Option<Arc<Known>> {
    match (outcome, claim.known, claim.service, claim.object) {
        (Outcome::Known, Some(known), ..) if known.told == told => Some(known),
        (Outcome::Known, Some(known), ..) => Some(Arc::new(Known { told, ..(*known).clone() })),
        (Outcome::Served(Serving { child, entry, settled: true }), _, Some(service), Some(object)) => {
            let (service, object, name) = (Arc::clone(service), Arc::clone(object), claim.name);
            (name == claims::plain(claim.key)).then(|| Arc::new(Known { service, object, child, entry, name, told }))
        }
        _ => None,
    }
}

/// Wants one child, or has it go.
fn one(work: &mut Work<'_>, shape: &Shape<'_>, claim: &Claim<'_>, ports: &mut Ports) -> Outcome {
    for object in &claim.surplus {
        work.delete(&shape.owner, object);
    }
    match claim.role {
        Role::Serve if claim.known.is_some() => return Outcome::Known,
        Role::Serve => {}
        Role::Hold => return Outcome::Held,
        Role::Moved if !retired(work, claim) => return Outcome::Held,
        Role::Moved | Role::Release => {
            release(work, &shape.owner, claim);
            return Outcome::Released;
        }
    }
    let Some((child, service)) = claims::child(work.observed, claim, ports, shape.health_port()).zip(claim.service) else {
        let range = shape.ports();
        return Outcome::Refused(format!(
            "All ports of {range} are taken: widen spec.tailyard.matchPortRange of the ProxyGroup, or use another group."
        ));
    };
    let settled = claim.object.is_some_and(|held| child.holds(held)) || work.write(&shape.owner, child.manifest());
    let object = ObjectRef::new(Kind::Service, &child.namespace, child.name.clone());
    if !settled && work.foreign(&shape.owner, &object) {
        return Outcome::Refused(format!("{object} is in the way: it was not made for this Service. Delete it."));
    }
    let entry = Arc::new(entry(work, service, &child));
    Outcome::Served(Serving { child: Arc::new(child), entry, settled })
}

/// Has the child of a Service go that nobody wants any more.
pub(super) fn release(work: &mut Work<'_>, owner: &Owner, claim: &Claim<'_>) {
    if let Some(record) = &claim.record {
        let object = ObjectRef::new(Kind::Service, &owner.namespace, record.name);
        work.delete(owner, &object);
    }
}

/// Whether a Service that moved has its name elsewhere, for longer than anybody holds the old answer of the DNS.
fn retired(work: &mut Work<'_>, claim: &Claim<'_>) -> bool {
    let (Some(service), Some(record)) = (claim.service, &claim.record) else { return true };
    let name = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref()).unwrap_or_default();
    let held = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions::get(held, crate::api::condition::EGRESS_SVC_READY).filter(|ready| ready.status == "True");
    let Some(ready) = ready.filter(|_| name != host(work, record.name)) else { return false };
    let linger = work.observed.settings.linger;
    let since = readiness::elapsed(ready.last_transition_time.0, work.observed.now);
    if since < linger {
        work.again(linger.saturating_sub(since));
    }
    since >= linger
}

/// The name of a child in the cluster's DNS.
pub(super) fn host(work: &Work<'_>, child: &str) -> String {
    let settings = &work.observed.settings;
    format!("{child}.{}.svc.{}", settings.namespace, settings.cluster_domain)
}

fn entry(work: &Work<'_>, service: &k8s_openapi::api::core::v1::Service, child: &Child) -> egress::Service {
    let text = |key: &str| super::validate::annotation(service, key).unwrap_or_default().to_owned();
    let port = |port: &crate::model::controller::objects::ChildPort| egress::PortMap {
        protocol: port.protocol.to_owned(),
        match_port: port.match_port.into(),
        target_port: port.port.into(),
    };
    egress::Service {
        health_check_endpoint: format!("http://{}:{}/healthz", host(work, &child.name), child.health),
        tailnet_target: egress::Target { ip: text(names::TAILNET_IP), fqdn: text(names::TAILNET_FQDN) },
        ports: child.ports.iter().map(port).collect(),
    }
}

fn managed_by(slice: &Value, who: &str) -> bool {
    slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == *who
}

/// Whether a slice is one that the Tailscale operator wrote by hand.
#[must_use]
pub fn by_hand(slice: &Value) -> bool {
    managed_by(slice, "tailscale.com")
}

/// Has the slices go that the Tailscale operator wrote by hand, once Kubernetes' own have taken their place.
fn slices(work: &mut Work<'_>, owner: &Owner) {
    let slices = || work.observed.of(Kind::EndpointSlice);
    let label = |slice: &'_ Value, key: &str| slice["metadata"]["labels"][key].as_str().map(str::to_owned);
    if !slices().any(|(_, slice)| by_hand(slice)) {
        return;
    }
    let ready = |slice: &Value| {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        managed_by(slice, "endpointslice-controller.k8s.io") && endpoints.clone().any(|endpoint| endpoint["conditions"]["ready"] != false)
    };
    let of = |slice: &Value| label(slice, "kubernetes.io/service-name");
    let served: BTreeSet<_> = slices().filter(|(_, slice)| ready(slice)).filter_map(|(_, slice)| of(slice)).collect();
    let there = |child: &str| work.observed.owned.contains_key(&ObjectRef::new(Kind::Service, &owner.namespace, child));
    let old = slices().filter(|(_, slice)| by_hand(slice));
    let gone = old.filter(|(_, slice)| of(slice).is_none_or(|child| served.contains(&child) || !there(&child)));
    let gone: Vec<_> = gone.map(|(object, _)| object.clone()).collect();
    for object in gone {
        work.delete(owner, &object);
    }
}

//! The egress Services of a group: their children, and the one config that the replicas forward by.
//!
//! A child is made before the config names its ports, for it is their record; a child is gone before the config forgets it.
//! Conditions and names of the users' Services are told by [`super::services`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::claims::{self, Claim, Key, Role, claims, protocol};
use super::memory::{Entries, Known};
use super::work::Work;
use super::{acks, room, services};
use crate::api::{egress, names};
use crate::model::conditions;
use crate::model::objects::{Child, Kind, ObjectRef, Owner, Protocol, Shape, egress_config, egress_config_ref, next_port};
use crate::model::ports::Ports;

/// What came of a Service.
#[derive(Debug)]
pub(super) enum Outcome {
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

/// Wants everything that the Services need, and tells their users.
pub(super) fn egress(work: &mut Work<'_>, shape: &Shape<'_>) {
    work.memory.on(shape);
    let claims = claims(work.observed, work.memory);
    let keys = claims::keys(&claims);
    let observed = work.owned(&egress_config_ref(&shape.owner));
    let plain = |claim: &Claim<'_>| claim.role == Role::Serve && claim.record.is_some();
    // Parsed only if something of it is needed.
    let before = observed.filter(|_| !claims.values().all(plain)).map(|held| egress_config(held)).unwrap_or_default();
    let mut ports = Ports::new(shape.ports(), shape.reserved(), observed.and_then(|held| next_port(held)));
    let kept = kept(&claims, &keys, &before, &mut ports);
    let (mut outcomes, mut entries) = (BTreeMap::new(), Entries::new());
    for (key, claim) in &claims {
        let outcome = one(work, shape, *key, claim, kept.get(key).map(Vec::as_slice).unwrap_or_default(), &mut ports);
        let name = &keys[key];
        let entry = match &outcome {
            Outcome::Served(serving) => Some(Arc::clone(&serving.entry)),
            _ => claim.record.as_ref().and_then(|_| before.get(name).cloned().map(Arc::new)),
        };
        entries.extend(entry.map(|entry| (name.clone(), entry)));
        outcomes.insert(*key, outcome);
    }
    let mut config = work.memory.config(&shape.owner, entries.clone(), shape.replicas, ports.next());
    if !config.fits(shape.stock()) {
        let before = observed.map(|held| egress_config(held)).unwrap_or_default();
        entries = room::fitting(&claims, &keys, &before, &entries, shape);
        room::refuse(work, &keys, &entries, &mut outcomes, shape.stock());
        // Ports of those that were refused are not given: the next ones are looked for from where they were.
        let next = observed.and_then(|held| next_port(held)).unwrap_or(ports.next());
        config = work.memory.config(&shape.owner, entries, shape.replicas, next);
    }
    let written = work.memory.held(observed) || work.write(&shape.owner, config.manifest());
    let standing = acks::Standing::of(work.observed, shape.replicas, config.fingerprint().to_owned());
    tell(work, &claims, &keys, outcomes, written, &standing);
    slices(work, &shape.owner);
}

/// Tells the users, and remembers what became of their Services.
fn tell<'a>(
    work: &mut Work<'_>,
    claims: &BTreeMap<Key<'a>, Claim<'_>>,
    keys: &BTreeMap<Key<'a>, String>,
    outcomes: BTreeMap<Key<'a>, Outcome>,
    written: bool,
    standing: &acks::Standing<'_>,
) {
    let (mut known, mut judged) = (Vec::new(), 0);
    for ((key, claim), outcome) in claims.iter().zip(outcomes.into_values()) {
        judged += usize::from(work.memory.known(claim).is_none());
        let told = services::tell(work, *key, claim, &outcome, &services::Told { key: &keys[key], written, standing });
        if let (Outcome::Served(Serving { child, entry, settled: true }), Some(service), Some(object)) =
            (outcome, claim.service, claim.object)
        {
            known.push(Known { service: Arc::clone(service), object: Arc::clone(object), child, entry, told });
        }
    }
    work.memory.keep(known, judged);
}

/// Which ports stay with whom. What is there goes before what is to come, and what nobody can change before what can.
fn kept<'a>(
    claims: &BTreeMap<Key<'a>, Claim<'_>>,
    keys: &BTreeMap<Key<'a>, String>,
    before: &BTreeMap<String, egress::Service>,
    ports: &mut Ports,
) -> BTreeMap<Key<'a>, Vec<(Protocol, u16, u16)>> {
    let mut kept = BTreeMap::new();
    for first in [true, false] {
        for (key, claim) in claims.iter().filter(|(_, claim)| (claim.role != Role::Serve) == first) {
            let recorded = claim.record.as_ref().map(|record| record.ports.clone());
            let configured = || {
                let entry = before.get(&keys[key]).map(|entry| entry.ports.as_slice()).unwrap_or_default();
                let port = |port: &u64| u16::try_from(*port).ok();
                entry.iter().filter_map(|held| Some((held.protocol.as_str(), port(&held.target_port)?, port(&held.match_port)?))).collect()
            };
            let held: Vec<_> = recorded.unwrap_or_else(configured);
            let mine = held.into_iter().filter(|held| ports.keep(held.2)).map(|(name, port, held)| (protocol(Some(name)), port, held));
            kept.insert(*key, mine.collect());
        }
    }
    kept
}

/// Wants one child, or has it go.
fn one(
    work: &mut Work<'_>,
    shape: &Shape<'_>,
    key: Key<'_>,
    claim: &Claim<'_>,
    kept: &[(Protocol, u16, u16)],
    ports: &mut Ports,
) -> Outcome {
    for object in &claim.surplus {
        work.delete(&shape.owner, object);
    }
    match claim.role {
        Role::Serve => {}
        Role::Hold => return Outcome::Held,
        Role::Moved if !retired(work, claim) => return Outcome::Held,
        Role::Moved | Role::Release => {
            release(work, &shape.owner, claim);
            return Outcome::Released;
        }
    }
    if let Some(known) = work.memory.known(claim).filter(|known| known.child.ports.len() == kept.len()) {
        let (child, entry) = (Arc::clone(&known.child), Arc::clone(&known.entry));
        return Outcome::Served(Serving { child, entry, settled: true });
    }
    let Some((child, service)) = claims::child(work.observed, key, claim, ports, kept, shape.health_port()).zip(claim.service) else {
        let range = shape.ports();
        return Outcome::Refused(format!(
            "All ports of {range} are taken: widen spec.tailyard.ports of the ProxyGroup, or use another group."
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
    let since = acks::elapsed(ready.last_transition_time.0, work.observed.now);
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
    let port = |port: &crate::model::objects::ChildPort| egress::PortMap {
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

/// Has the slices go that the Tailscale operator wrote by hand, once Kubernetes' own have taken their place.
fn slices(work: &mut Work<'_>, owner: &Owner) {
    let slices = || work.observed.of(Kind::EndpointSlice);
    let label = |slice: &'_ Value, key: &str| slice["metadata"]["labels"][key].as_str().map(str::to_owned);
    let by = |slice: &Value, who: &str| slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == *who;
    if !slices().any(|(_, slice)| by(slice, "tailscale.com")) {
        return;
    }
    let ready = |slice: &Value| {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        by(slice, "endpointslice-controller.k8s.io") && endpoints.clone().any(|endpoint| endpoint["conditions"]["ready"] != false)
    };
    let of = |slice: &Value| label(slice, "kubernetes.io/service-name");
    let served: BTreeSet<_> = slices().filter(|(_, slice)| ready(slice)).filter_map(|(_, slice)| of(slice)).collect();
    let there = |child: &str| work.observed.owned.contains_key(&ObjectRef::new(Kind::Service, &owner.namespace, child));
    let old = slices().filter(|(_, slice)| by(slice, "tailscale.com"));
    let gone = old.filter(|(_, slice)| of(slice).is_none_or(|child| served.contains(&child) || !there(&child)));
    let gone: Vec<_> = gone.map(|(object, _)| object.clone()).collect();
    for object in gone {
        work.delete(owner, &object);
    }
}

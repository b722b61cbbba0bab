//! The egress Services of a group: their children, and the one config that the replicas forward by.
//!
//! A child is made before the config names its ports, for it is their record; a child is gone before the config forgets it.
//! Conditions and names of the users' Services are told by [`super::services`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::claims::{self, Claim, Key, Role, claims, protocol};
use super::work::Work;
use super::{acks, services};
use crate::api::{egress, names};
use crate::model::conditions;
use crate::model::config::fingerprint;
use crate::model::objects::{Child, EgressConfig, Kind, ObjectRef, Owner, Protocol, Shape, egress_config, egress_config_ref, next_port};
use crate::model::ports::Ports;

/// What came of a Service.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is served, or will be once everything is written and taken up.
    Served {
        /// Its child.
        child: Child,
        /// Whether the child is as it must be.
        settled: bool,
    },
    /// It cannot be served; why, and what to do.
    Refused(String),
    /// It is as it was.
    Held,
    /// It is let go.
    Released,
}

/// Wants everything that the Services need, and tells their users.
pub(super) fn egress(work: &mut Work<'_>, shape: &Shape<'_>) {
    let claims = claims(work.observed);
    let keys = claims::keys(&claims);
    let observed = work.owned(&egress_config_ref(&shape.owner)).map(|held| &**held);
    let plain = |claim: &Claim<'_>| claim.role == Role::Serve && claim.record.is_some();
    // Parsed only if something of it is needed.
    let before = observed.filter(|_| !claims.values().all(plain)).map(egress_config).unwrap_or_default();
    let mut ports = Ports::new(shape.ports(), shape.reserved(), observed.and_then(next_port));
    let kept = kept(&claims, &keys, &before, &mut ports);
    let (mut outcomes, mut entries) = (BTreeMap::new(), BTreeMap::new());
    for (key, claim) in &claims {
        let outcome = one(work, shape, *key, claim, kept.get(key).map(Vec::as_slice).unwrap_or_default(), &mut ports);
        let name = &keys[key];
        let entry = match &outcome {
            Outcome::Served { child, .. } => claim.service.map(|service| entry(work, service, child)),
            _ => claim.record.as_ref().and_then(|_| before.get(name).cloned()),
        };
        entries.extend(entry.map(|entry| (name.clone(), entry)));
        outcomes.insert(*key, outcome);
    }
    let mut config = EgressConfig::new(&shape.owner, &entries, shape.replicas, ports.next());
    if shape.stock() && !config.fits() {
        refuse(&keys, &before, &mut entries, &mut outcomes);
        config = EgressConfig::new(&shape.owner, &entries, shape.replicas, ports.next());
    }
    let written = observed.is_some_and(|held| config.holds(held)) || work.write(&shape.owner, config.manifest());
    let standing = acks::Standing::of(work.observed, shape.replicas, fingerprint(config.text()));
    for (key, claim) in &claims {
        let told = services::Told { key: &keys[key], entry: entries.get(&keys[key]), written, standing: &standing };
        services::tell(work, *key, claim, &outcomes[key], &told);
    }
    slices(work, &shape.owner);
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
    let Some(child) = claims::child(work.observed, key, claim, ports, kept, shape.health_port()) else {
        let range = shape.ports();
        return Outcome::Refused(format!(
            "All ports of {range} are taken: widen spec.tailyard.ports of the ProxyGroup, or use another group."
        ));
    };
    let settled = claim.object.is_some_and(|held| child.holds(held)) || work.write(&shape.owner, child.manifest());
    Outcome::Served { child, settled }
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

/// Takes back what is new in a config that does not fit.
fn refuse<'a>(
    keys: &BTreeMap<Key<'a>, String>,
    before: &BTreeMap<String, egress::Service>,
    entries: &mut BTreeMap<String, egress::Service>,
    outcomes: &mut BTreeMap<Key<'a>, Outcome>,
) {
    for (key, name) in keys.iter().filter(|(_, name)| !before.contains_key(*name)) {
        if entries.remove(name).is_some() {
            let full = "The egress config is full: use another ProxyGroup, or Tailyard's own image, whose limit is higher.";
            outcomes.insert(*key, Outcome::Refused(full.to_owned()));
        }
    }
}

/// Has the slices go that the Tailscale operator wrote by hand, once Kubernetes' own have taken their place.
fn slices(work: &mut Work<'_>, owner: &Owner) {
    let slices = || work.observed.owned.iter().filter(|(object, _)| object.kind == Kind::EndpointSlice);
    let label = |slice: &'_ Value, key: &str| slice["metadata"]["labels"][key].as_str().map(str::to_owned);
    let by = |slice: &Value, who: &str| label(slice, "endpointslice.kubernetes.io/managed-by").as_deref() == Some(who);
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

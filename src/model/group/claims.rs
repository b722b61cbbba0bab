//! What becomes of each Service that has to do with a group, and which ports stand for it.
//!
//! Keyed on what is recorded (children by their labels) and on what is wanted (annotations), never on annotations alone. A
//! Service that stops being valid, or is moved to another group, keeps what it had until something better is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::validate::{self, annotation};
use super::{Memory, Observed, work};
use crate::api::names;
use crate::model::objects::{Child, ChildPort, Kind, ObjectRef, Protocol, Record, child_name, health_port};
use crate::model::ports::Ports;

/// A Service by namespace and name.
pub(super) type Key<'a> = (&'a str, &'a str);

/// What a Service is to this group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The group serves it as it is.
    Serve,
    /// The group serves it as it was: it is not valid now.
    Hold,
    /// Another group is to serve it; this one does for as long as the Service's name points here.
    Moved,
    /// Nobody wants it any more.
    Release,
}

/// A Service, and the child of it that the group has.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) role: Role,
    /// The user's Service, if it exists.
    pub(super) service: Option<&'a Arc<Service>>,
    /// What is wrong with it.
    pub(super) wrong: Vec<String>,
    /// Its child as it is. The first by name if somebody made several; the others go.
    pub(super) record: Option<Record<'a>>,
    pub(super) object: Option<&'a Arc<Value>>,
    pub(super) surplus: Vec<ObjectRef>,
}

/// Every Service that has to do with the group.
pub(super) fn claims<'a>(observed: &'a Observed, memory: &Memory) -> BTreeMap<Key<'a>, Claim<'a>> {
    let mut claims = BTreeMap::new();
    for ((namespace, name), service) in &observed.services {
        let role = role(&observed.name, service);
        if let Some(role) = role {
            let wrong = if role == Role::Serve && !memory.valid(service) { validate::service(service) } else { Vec::new() };
            let role = if wrong.is_empty() { role } else { Role::Hold };
            let claim = Claim { role, service: Some(service), wrong, record: None, object: None, surplus: Vec::new() };
            claims.insert((namespace.as_str(), name.as_str()), claim);
        }
    }
    for (object, value) in observed.of(Kind::Service) {
        let Some(record) = Record::read(value, &observed.name).filter(|_| !work::going(value)) else { continue };
        let service = || observed.services.get(&(record.parent.0.to_owned(), record.parent.1.to_owned()));
        let claim = claims.entry(record.parent).or_insert_with(|| Claim {
            role: Role::Release,
            service: service(),
            wrong: Vec::new(),
            record: None,
            object: None,
            surplus: Vec::new(),
        });
        if claim.record.is_some() {
            claim.surplus.push(object.clone());
        } else {
            (claim.record, claim.object) = (Some(record), Some(value));
        }
    }
    claims
}

/// What a user's Service is to a group; none if it has nothing to do with egress.
fn role(group: &str, service: &Service) -> Option<Role> {
    let target = annotation(service, names::TAILNET_FQDN).or_else(|| annotation(service, names::TAILNET_IP));
    let named = annotation(service, names::PROXY_GROUP);
    match (service.metadata.deletion_timestamp.is_some(), target, named) {
        (false, Some(_), Some(named)) if named == group => Some(Role::Serve),
        (false, Some(_), Some(_)) => Some(Role::Moved),
        (true, Some(_), Some(named)) if named == group => Some(Role::Release),
        _ => recorded(service).then_some(Role::Release),
    }
}

/// Whether a Service has conditions that only egress Services have.
pub(super) fn recorded(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_.starts_with("TailscaleEgressSvc"))
}

/// The key of a Service in the egress config. Two Services whose names run together get different ones.
pub(super) fn keys<'a>(claims: &BTreeMap<Key<'a>, Claim<'_>>) -> BTreeMap<Key<'a>, String> {
    let mut taken = BTreeSet::new();
    let mut order: Vec<_> = claims.iter().map(|(key, claim)| (created(claim), *key)).collect();
    order.sort_unstable();
    let named = order.into_iter().map(|(_, (namespace, name))| {
        let plain = format!("{namespace}-{name}");
        let unique = if taken.insert(plain.clone()) { plain } else { child_name(namespace, name, "") };
        ((namespace, name), unique)
    });
    named.collect()
}

/// When a Service was made; one that is gone comes first, for it was there before.
pub(super) fn created(claim: &Claim<'_>) -> i64 {
    let created = claim.service.and_then(|service| service.metadata.creation_timestamp.as_ref());
    created.map_or(i64::MIN, |created| created.0.as_second())
}

/// The child that a valid Service must have; none if there is no port left. `before` are the ports that the egress config
/// has for it, for a child that got lost.
pub(super) fn child(
    observed: &Observed,
    key: Key<'_>,
    claim: &Claim<'_>,
    ports: &mut Ports,
    before: &[(Protocol, u16, u16)],
    health_target: u16,
) -> Option<Child> {
    let spec = claim.service?.spec.as_ref()?;
    let mut made = Vec::new();
    for port in spec.ports.iter().flatten() {
        let (protocol, number) = (protocol(port.protocol.as_deref()), u16::try_from(port.port).ok()?);
        let same = |held: &&(Protocol, u16, u16)| held.0 == protocol && held.1 == number;
        let match_port = before.iter().find(same).map(|held| held.2).or_else(|| ports.take())?;
        made.push(ChildPort { name: port.name.clone().unwrap_or_default(), protocol, port: number, match_port });
    }
    let used = |port: u16| made.iter().any(|held| held.protocol == "TCP" && held.port == port);
    let health = health_port(claim.record.as_ref().and_then(|record| record.health), used);
    let name = claim.record.as_ref().map_or_else(|| child_name(key.0, key.1, &observed.name), |record| record.name.to_owned());
    let (namespace, group) = (observed.settings.namespace.clone(), observed.name.clone());
    Some(Child { name, namespace, parent: (key.0.to_owned(), key.1.to_owned()), group, ports: made, health, health_target })
}

/// A protocol as the child spells it.
pub(super) fn protocol(text: Option<&str>) -> Protocol {
    if text == Some("UDP") { "UDP" } else { "TCP" }
}

//! What becomes of each Service that has to do with a group, and which ports stand for it.
//!
//! Keyed on what is recorded (children by their labels) and on what is wanted (annotations), never on annotations alone. A
//! Service that stops being valid, or is moved to another group, keeps what it had until something better is there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::memo::{Entries, ServedService, address};
use super::validate::{self, annotation};
use super::{Memory, Observed, work};
use crate::api::names;
use crate::model::controller::match_ports::MatchPorts;
use crate::model::controller::objects::{ChildPort, ChildRecord, ChildService, Kind, ObjectRef, PortProtocol, child_name, health_port};

/// A Service by namespace and name.
pub(super) type ServiceKey<'a> = (&'a str, &'a str);

/// What a Service is to this group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceRole {
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
pub(super) struct ServiceClaim<'a> {
    pub(super) key: ServiceKey<'a>,
    /// What it is called in the egress config.
    pub(super) name: Arc<str>,
    pub(super) role: ServiceRole,
    /// The user's Service, if it exists.
    pub(super) service: Option<&'a Arc<Service>>,
    pub(super) wrong: Vec<String>,
    /// Its child as it is. The first by name if somebody made several; the others go.
    pub(super) object: Option<&'a Arc<Value>>,
    pub(super) surplus: Vec<ObjectRef>,
    /// What is known, if the Service is as it was and so is its child: neither is looked into.
    pub(super) served: Option<Arc<ServedService>>,
    /// What the child is else, read.
    pub(super) record: Option<ChildRecord<'a>>,
    /// The ports that stay with it; not if they are known.
    pub(super) reserved: Vec<(PortProtocol, u16, u16)>,
}

/// Every Service that has to do with the group, in order.
pub(super) fn claims<'a>(observed: &'a Observed, memory: &Memory) -> Vec<ServiceClaim<'a>> {
    let mut children: HashMap<usize, &Arc<Value>> = observed.of(Kind::Service).map(|(_, value)| (address(value), value)).collect();
    let mut claims = Vec::with_capacity(observed.services.len());
    for ((namespace, name), service) in &observed.services {
        let (key, served) = ((namespace.as_str(), name.as_str()), memory.served(service));
        let as_it_was = served.and_then(|served| Some((served, children.remove(&address(&served.object))?)));
        if let Some((served, object)) = as_it_was {
            let (name, served) = (Arc::clone(&served.name), Some(Arc::clone(served)));
            claims.push(ServiceClaim { name, served, object: Some(object), ..ServiceClaim::new(key, ServiceRole::Serve, Some(service)) });
        } else if let Some(role) = role(&observed.name, service) {
            let wrong = if role == ServiceRole::Serve && served.is_none() { validate::service(service) } else { Vec::new() };
            let role = if wrong.is_empty() { role } else { ServiceRole::Hold };
            claims.push(ServiceClaim { wrong, name: plain(key), ..ServiceClaim::new(key, role, Some(service)) });
        }
    }
    let mut others: BTreeMap<ServiceKey<'a>, ServiceClaim<'a>> = BTreeMap::new();
    for (object, value) in observed.of(Kind::Service).filter(|(_, value)| children.contains_key(&address(value))) {
        let Some(record) = ChildRecord::read(value, &observed.name).filter(|_| !work::going(value)) else { continue };
        let key = record.parent;
        let claim = match claims.binary_search_by_key(&key, |claim| claim.key) {
            Ok(at) => &mut claims[at],
            Err(_) => others.entry(key).or_insert_with(|| {
                let service = observed.services.get(&(key.0.to_owned(), key.1.to_owned()));
                ServiceClaim { name: plain(key), ..ServiceClaim::new(key, ServiceRole::Release, service) }
            }),
        };
        claim.add(&observed.name, object, value, record);
    }
    if !others.is_empty() {
        claims.extend(others.into_values());
        claims.sort_by_key(|claim| claim.key);
    }
    part(&mut claims, &observed.name);
    claims
}

impl<'a> ServiceClaim<'a> {
    fn new(key: ServiceKey<'a>, role: ServiceRole, service: Option<&'a Arc<Service>>) -> Self {
        let (wrong, surplus, reserved) = (Vec::new(), Vec::new(), Vec::new());
        Self { key, name: Arc::default(), role, service, wrong, object: None, surplus, served: None, record: None, reserved }
    }

    /// Takes in a child.
    fn add(&mut self, group: &str, object: &ObjectRef, value: &'a Arc<Value>, record: ChildRecord<'a>) {
        self.look(group);
        match &self.record {
            Some(recorded) if recorded.name < record.name => self.surplus.push(object.clone()),
            existing => {
                self.surplus.extend(existing.as_ref().map(|found| ObjectRef { name: found.name.to_owned(), ..object.clone() }));
                (self.record, self.object) = (Some(record), Some(value));
            }
        }
    }

    /// Looks at it as if nothing were known.
    fn look(&mut self, group: &str) {
        if self.served.take().is_some() {
            self.record = self.object.and_then(|object| ChildRecord::read(object, group));
        }
    }

    /// Has the ports stay that it has, by its child, else by the config: all that are nobody else's.
    pub(super) fn keep(&mut self, group: &str, before: &Entries, ports: &mut MatchPorts) {
        if let Some(served) = &self.served {
            let mine = || served.child.ports.iter().map(|port| port.match_port);
            if mine().all(|port| ports.free(port)) {
                for port in mine() {
                    ports.keep(port);
                }
                return;
            }
            self.look(group);
        }
        let configured = || {
            let entry = before.get(&self.name).map(|entry| entry.ports.as_slice()).unwrap_or_default();
            let port = |port: &u64| u16::try_from(*port).ok();
            entry
                .iter()
                .filter_map(|mapped| Some((mapped.protocol.as_str(), port(&mapped.target_port)?, port(&mapped.match_port)?)))
                .collect()
        };
        let mapped_ports: Vec<_> = self.record.as_ref().map_or_else(configured, |record| record.ports.clone());
        let mine = mapped_ports
            .into_iter()
            .filter(|mapped| ports.keep(mapped.2))
            .map(|(name, port, match_port)| (protocol(Some(name)), port, match_port));
        self.reserved = mine.collect();
    }
}

/// What a Service is called in the egress config.
pub(super) fn plain((namespace, name): ServiceKey<'_>) -> Arc<str> {
    format!("{namespace}-{name}").into()
}

/// Tells those apart whose names run together: the oldest is called so, the others by a hash. What is known of one is known of the name
/// that it has by itself.
fn part(claims: &mut [ServiceClaim<'_>], group: &str) {
    let mut order: Vec<&mut ServiceClaim<'_>> = claims.iter_mut().collect();
    order.sort_by(|one, other| one.name.cmp(&other.name));
    for same in order.chunk_by_mut(|one, other| one.name == other.name).filter(|same| same.len() > 1) {
        same.sort_by_key(|claim| (created(claim), claim.key));
        for claim in same.iter_mut().skip(1) {
            claim.name = child_name(claim.key.0, claim.key.1, "").into();
            claim.look(group);
        }
    }
}

/// What a user's Service is to a group; none if it has nothing to do with egress.
fn role(group: &str, service: &Service) -> Option<ServiceRole> {
    let target = annotation(service, names::TAILNET_FQDN).or_else(|| annotation(service, names::TAILNET_IP));
    let named = annotation(service, names::PROXY_GROUP);
    match (service.metadata.deletion_timestamp.is_some(), target, named) {
        (false, Some(_), Some(named)) if named == group => Some(ServiceRole::Serve),
        (false, Some(_), Some(_)) => Some(ServiceRole::Moved),
        (true, Some(_), Some(named)) if named == group => Some(ServiceRole::Release),
        _ => recorded(service).then_some(ServiceRole::Release),
    }
}

/// Whether a Service has conditions that only egress Services have.
pub(super) fn recorded(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_.starts_with("TailscaleEgressSvc"))
}

/// When a Service was made; one that is gone comes first, for it was there before.
pub(super) fn created(claim: &ServiceClaim<'_>) -> i64 {
    let created = claim.service.and_then(|service| service.metadata.creation_timestamp.as_ref());
    created.map_or(i64::MIN, |created| created.0.as_second())
}

/// The child that a valid Service must have; none if there is no port left.
pub(super) fn child(observed: &Observed, claim: &ServiceClaim<'_>, ports: &mut MatchPorts, health_target: u16) -> Option<ChildService> {
    let (key, before) = (claim.key, &claim.reserved);
    let spec = claim.service?.spec.as_ref()?;
    let mut made = Vec::new();
    for port in spec.ports.iter().flatten() {
        let (protocol, number) = (protocol(port.protocol.as_deref()), u16::try_from(port.port).ok()?);
        let same = |entry: &&(PortProtocol, u16, u16)| entry.0 == protocol && entry.1 == number;
        let match_port = before.iter().find(same).map(|recorded| recorded.2).or_else(|| ports.take())?;
        made.push(ChildPort { name: port.name.clone().unwrap_or_default(), protocol, port: number, match_port });
    }
    let used = |port: u16| made.iter().any(|port_map| port_map.protocol == "TCP" && port_map.port == port);
    let health = health_port(claim.record.as_ref().and_then(|record| record.health), used);
    let name = claim.record.as_ref().map_or_else(|| child_name(key.0, key.1, &observed.name), |record| record.name.to_owned());
    let (namespace, group) = (observed.settings.namespace.clone(), observed.name.clone());
    Some(ChildService { name, namespace, parent: (key.0.to_owned(), key.1.to_owned()), group, ports: made, health, health_target })
}

/// A protocol as the child spells it.
pub(super) fn protocol(text: Option<&str>) -> PortProtocol {
    if text == Some("UDP") { "UDP" } else { "TCP" }
}

//! What becomes of each Service that has to do with a group, and which ports stand for it.
//!
//! Keyed on what is recorded (children by their labels) and on what is wanted (annotations), never on annotations alone. A
//! Service that stops being valid, or is moved to another group, keeps what it had until something better is there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::memo::{Entries, Known, address};
use super::validate::{self, annotation};
use super::{Memory, Observed, work};
use crate::api::names;
use crate::model::controller::match_ports::Ports;
use crate::model::controller::objects::{Child, ChildPort, Kind, ObjectRef, Protocol, Record, child_name, health_port};

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
    pub(super) key: Key<'a>,
    /// What it is called in the egress config.
    pub(super) name: Arc<str>,
    pub(super) role: Role,
    /// The user's Service, if it exists.
    pub(super) service: Option<&'a Arc<Service>>,
    /// What is wrong with it.
    pub(super) wrong: Vec<String>,
    /// Its child as it is. The first by name if somebody made several; the others go.
    pub(super) object: Option<&'a Arc<Value>>,
    pub(super) surplus: Vec<ObjectRef>,
    /// What is known, if the Service is as it was and so is its child: neither is looked into.
    pub(super) known: Option<Arc<Known>>,
    /// What the child is else, read.
    pub(super) record: Option<Record<'a>>,
    /// The ports that stay with it; not if they are known.
    pub(super) kept: Vec<(Protocol, u16, u16)>,
}

/// Every Service that has to do with the group, in order.
pub(super) fn claims<'a>(observed: &'a Observed, memory: &Memory) -> Vec<Claim<'a>> {
    let mut children: HashMap<usize, &Arc<Value>> = observed.of(Kind::Service).map(|(_, value)| (address(value), value)).collect();
    let mut claims = Vec::with_capacity(observed.services.len());
    for ((namespace, name), service) in &observed.services {
        let (key, known) = ((namespace.as_str(), name.as_str()), memory.known(service));
        let as_it_was = known.and_then(|known| Some((known, children.remove(&address(&known.object))?)));
        if let Some((known, object)) = as_it_was {
            let (name, known) = (Arc::clone(&known.name), Some(Arc::clone(known)));
            claims.push(Claim { name, known, object: Some(object), ..Claim::new(key, Role::Serve, Some(service)) });
        } else if let Some(role) = role(&observed.name, service) {
            let wrong = if role == Role::Serve && known.is_none() { validate::service(service) } else { Vec::new() };
            let role = if wrong.is_empty() { role } else { Role::Hold };
            claims.push(Claim { wrong, name: plain(key), ..Claim::new(key, role, Some(service)) });
        }
    }
    let mut others: BTreeMap<Key<'a>, Claim<'a>> = BTreeMap::new();
    for (object, value) in observed.of(Kind::Service).filter(|(_, value)| children.contains_key(&address(value))) {
        let Some(record) = Record::read(value, &observed.name).filter(|_| !work::going(value)) else { continue };
        let key = record.parent;
        let claim = match claims.binary_search_by_key(&key, |claim| claim.key) {
            Ok(at) => &mut claims[at],
            Err(_) => others.entry(key).or_insert_with(|| {
                let service = observed.services.get(&(key.0.to_owned(), key.1.to_owned()));
                Claim { name: plain(key), ..Claim::new(key, Role::Release, service) }
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

impl<'a> Claim<'a> {
    fn new(key: Key<'a>, role: Role, service: Option<&'a Arc<Service>>) -> Self {
        let (wrong, surplus, kept) = (Vec::new(), Vec::new(), Vec::new());
        Self { key, name: Arc::default(), role, service, wrong, object: None, surplus, known: None, record: None, kept }
    }

    /// Takes in a child.
    fn add(&mut self, group: &str, object: &ObjectRef, value: &'a Arc<Value>, record: Record<'a>) {
        self.look(group);
        match &self.record {
            Some(held) if held.name < record.name => self.surplus.push(object.clone()),
            held => {
                self.surplus.extend(held.as_ref().map(|held| ObjectRef { name: held.name.to_owned(), ..object.clone() }));
                (self.record, self.object) = (Some(record), Some(value));
            }
        }
    }

    /// Looks at it as if nothing were known.
    fn look(&mut self, group: &str) {
        if self.known.take().is_some() {
            self.record = self.object.and_then(|object| Record::read(object, group));
        }
    }

    /// Has the ports stay that it has, by its child, else by the config: all that are nobody else's.
    pub(super) fn keep(&mut self, group: &str, before: &Entries, ports: &mut Ports) {
        if let Some(known) = &self.known {
            let mine = || known.child.ports.iter().map(|port| port.match_port);
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
            entry.iter().filter_map(|held| Some((held.protocol.as_str(), port(&held.target_port)?, port(&held.match_port)?))).collect()
        };
        let held: Vec<_> = self.record.as_ref().map_or_else(configured, |record| record.ports.clone());
        let mine = held.into_iter().filter(|held| ports.keep(held.2)).map(|(name, port, held)| (protocol(Some(name)), port, held));
        self.kept = mine.collect();
    }
}

/// What a Service is called in the egress config.
pub(super) fn plain((namespace, name): Key<'_>) -> Arc<str> {
    format!("{namespace}-{name}").into()
}

/// Tells those apart whose names run together: the oldest is called so, the others by a hash. What is known of one is known of the name
/// that it has by itself.
fn part(claims: &mut [Claim<'_>], group: &str) {
    let mut order: Vec<&mut Claim<'_>> = claims.iter_mut().collect();
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

/// When a Service was made; one that is gone comes first, for it was there before.
pub(super) fn created(claim: &Claim<'_>) -> i64 {
    let created = claim.service.and_then(|service| service.metadata.creation_timestamp.as_ref());
    created.map_or(i64::MIN, |created| created.0.as_second())
}

/// The child that a valid Service must have; none if there is no port left.
pub(super) fn child(observed: &Observed, claim: &Claim<'_>, ports: &mut Ports, health_target: u16) -> Option<Child> {
    let (key, before) = (claim.key, &claim.kept);
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

//! Role of each Service that concerns a group, and its match ports.
//!
//! Services come from records (children, by labels) and from annotations. A Service that becomes invalid, or moves to another group, keeps
//! its ports until its replacement serves.

use crate::api::names;
use crate::model::controller::egress::validate;
use crate::model::controller::policy::age::{Age, age};
use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use crate::model::controller::egress::memo::{Entries, Memory, ServedService, address};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::match_ports::MatchPorts;
use crate::model::controller::workload::objects::child::{ChildPort, ChildRecord, ChildService, PortProtocol, child_name, health_port};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::pass::is_terminating;

/// Namespace and name of a Service.
pub(crate) type ServiceKey<'a> = (&'a str, &'a str);

/// Role of a Service for this group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceRole {
    Serve,
    /// Invalid now: served as before.
    Hold,
    /// Assigned to another group: served while the Service's `externalName` points here.
    Moved,
    /// No longer requested.
    Release,
}

/// A Service and its child in this group.
#[derive(Debug)]
pub(crate) struct ServiceClaim<'a> {
    pub(crate) key: ServiceKey<'a>,
    /// Name in the egress config.
    pub(crate) name: Arc<str>,
    pub(crate) role: ServiceRole,
    /// User's Service, if it exists.
    pub(crate) service: Option<&'a Arc<Service>>,
    pub(crate) wrong: Vec<String>,
    /// Observed child: the first by name; duplicates are deleted.
    pub(crate) object: Option<&'a Arc<Value>>,
    pub(crate) surplus: Vec<ObjectRef>,
    /// Remembered result, if Service and child are unchanged: then neither is read.
    pub(crate) served: Option<Arc<ServedService>>,
    /// Parsed child otherwise.
    pub(crate) record: Option<ChildRecord<'a>>,
    /// Recorded ports; empty with a remembered result.
    pub(crate) reserved: Vec<(PortProtocol, u16, u16)>,
}

/// Every Service that concerns the group, in order.
pub(crate) fn claims<'a>(observed: &'a Observed, memory: &Memory) -> Vec<ServiceClaim<'a>> {
    let mut children: HashMap<usize, &Arc<Value>> = observed.of(Kind::Service).map(|(_, value)| (address(value), value)).collect();
    let mut claims = Vec::with_capacity(observed.services.len());
    for ((namespace, name), service) in &observed.services {
        let (key, served) = ((namespace.as_str(), name.as_str()), memory.served(service));
        let as_it_was = served.and_then(|served| Some((served, children.remove(&address(&served.object))?)));
        if let Some((served, object)) = as_it_was {
            let (name, served) = (Arc::clone(&served.name), Some(Arc::clone(served)));
            claims.push(ServiceClaim { name, served, object: Some(object), ..ServiceClaim::new(key, ServiceRole::Serve, Some(service)) });
        } else if let Some(role) = role(observed, service) {
            let wrong = match role {
                ServiceRole::Serve if served.is_none() => validate::service(service),
                ServiceRole::Hold => observed.assignment.egress(service).fault().into_iter().collect(),
                _ => Vec::new(),
            };
            let role = if wrong.is_empty() { role } else { ServiceRole::Hold };
            claims.push(ServiceClaim { wrong, name: plain(key), ..ServiceClaim::new(key, role, Some(service)) });
        }
    }
    let mut others: BTreeMap<ServiceKey<'a>, ServiceClaim<'a>> = BTreeMap::new();
    for (object, value) in observed.of(Kind::Service).filter(|(_, value)| children.contains_key(&address(value))) {
        let Some(record) = ChildRecord::read(value, observed.key.group_name()).filter(|_| !is_terminating(value)) else { continue };
        let key = record.parent;
        let claim = match claims.binary_search_by_key(&key, |claim| claim.key) {
            Ok(at) => &mut claims[at],
            Err(_) => others.entry(key).or_insert_with(|| {
                let service = observed.services.get(&(key.0.to_owned(), key.1.to_owned()));
                ServiceClaim { name: plain(key), ..ServiceClaim::new(key, ServiceRole::Release, service) }
            }),
        };
        claim.add(observed.key.group_name(), object, value, record);
    }
    if !others.is_empty() {
        claims.extend(others.into_values());
        claims.sort_by_key(|claim| claim.key);
    }
    let config = ObjectRef::new(Kind::ConfigMap, &observed.settings.namespace, names::egress_config(observed.key.group_name()));
    part(&mut claims, observed.key.group_name(), || memory.before(observed.owned.get(&config)));
    claims
}

impl<'a> ServiceClaim<'a> {
    /// Age of the Service; deleted ones sort first.
    pub(crate) fn age(&self) -> Option<Age<'a>> {
        self.service.map(|service| age(&service.metadata))
    }

    fn new(key: ServiceKey<'a>, role: ServiceRole, service: Option<&'a Arc<Service>>) -> Self {
        let (wrong, surplus, reserved) = (Vec::new(), Vec::new(), Vec::new());
        Self { key, name: Arc::default(), role, service, wrong, object: None, surplus, served: None, record: None, reserved }
    }

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

    /// Discards the remembered result and parses the child.
    fn look(&mut self, group: &str) {
        if self.served.take().is_some() {
            self.record = self.object.and_then(|object| ChildRecord::read(object, group));
        }
    }

    /// Reserves its recorded ports, from its child, else from the config, as far as they are free.
    pub(crate) fn keep(&mut self, group: &str, before: &Entries, ports: &mut MatchPorts) {
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
        let mine = mapped_ports.into_iter().filter(|mapped| ports.keep(mapped.2));
        self.reserved = mine.map(|(name, port, match_port)| (protocol(Some(name)), port, match_port)).collect();
    }
}

/// Default name in the egress config.
pub(crate) fn plain((namespace, name): ServiceKey<'_>) -> Arc<str> {
    format!("{namespace}-{name}").into()
}

/// Name in the egress config of a Service whose default name an older one has. The separator is a dot, which is in no default name; in names
/// of former versions it is a dash.
fn hashed((namespace, name): ServiceKey<'_>, separator: char) -> Arc<str> {
    let child = child_name(namespace, name, "");
    child.rsplit_once('-').map(|(prefix, hash)| format!("{prefix}{separator}{hash}")).unwrap_or(child).into()
}

/// Resolves equal names: the oldest Service keeps the default name, the others get a hash. A name of former versions in the config stays,
/// unless an older Service has it as its default name. Remembered results apply to default names only.
fn part(claims: &mut [ServiceClaim<'_>], group: &str, before: impl FnOnce() -> Arc<Entries>) {
    let mut order: Vec<&mut ServiceClaim<'_>> = claims.iter_mut().collect();
    let recorded = LazyCell::new(before);
    for is_last in [false, true] {
        order.sort_by(|one, other| one.name.cmp(&other.name));
        for same in order.chunk_by_mut(|one, other| one.name == other.name).filter(|same| same.len() > 1) {
            same.sort_by_key(|claim| (claim.age(), claim.key));
            for claim in same.iter_mut().skip(1) {
                let (former, new) = (hashed(claim.key, '-'), hashed(claim.key, '.'));
                let stays = !is_last && recorded.contains_key(&former) && !recorded.contains_key(&new);
                claim.name = if stays { former } else { new };
                claim.look(group);
            }
        }
    }
}

/// Role of a user's Service for a group; `None` if it is not an egress Service.
fn role(observed: &Observed, service: &Service) -> Option<ServiceRole> {
    let assignment = observed.assignment.egress(service);
    match (service.metadata.deletion_timestamp.is_some(), assignment.group()) {
        // It stays in the group that has a child of it, as the finalizer says; without one, its fault is reported to it.
        (false, None) if assignment.is_undecided() => {
            let is_elsewhere = observed.key.group() == Some("") && finalizers::has(&service.metadata, names::FINALIZER);
            (!is_elsewhere).then_some(ServiceRole::Hold)
        }
        (false, Some(group)) if group == observed.key.group_name() => Some(ServiceRole::Serve),
        (false, Some(_)) => Some(ServiceRole::Moved),
        (true, Some(group)) if group == observed.key.group_name() => Some(ServiceRole::Release),
        _ => recorded(service).then_some(ServiceRole::Release),
    }
}

/// Whether a Service has conditions of egress Services.
pub(crate) fn recorded(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_.starts_with("TailscaleEgressSvc"))
}

/// Name of a Service's child: the recorded one, else a new one.
pub(crate) fn name_of_child(observed: &Observed, claim: &ServiceClaim<'_>) -> String {
    let (namespace, name) = claim.key;
    claim.record.as_ref().map_or_else(|| child_name(namespace, name, observed.key.group_name()), |record| record.name.to_owned())
}

/// Desired child of a valid Service; `None` if too few ports are free: then it takes none.
pub(crate) fn child(
    observed: &Observed,
    claim: &ServiceClaim<'_>,
    ports: &mut MatchPorts,
    shape: &RenderContext<'_>,
) -> Option<ChildService> {
    let (key, before) = (claim.key, &claim.reserved);
    let spec = claim.service?.spec.as_ref()?;
    let mut requested = Vec::new();
    for port in spec.ports.iter().flatten() {
        let (protocol, number) = (protocol(port.protocol.as_deref()), u16::try_from(port.port).ok()?);
        let same = |entry: &&(PortProtocol, u16, u16)| entry.0 == protocol && entry.1 == number;
        let recorded = before.iter().find(same).map(|recorded| recorded.2);
        requested.push((port.name.clone().unwrap_or_default(), protocol, number, recorded));
    }
    let mut new = ports.take(requested.iter().filter(|(.., recorded)| recorded.is_none()).count())?.into_iter();
    let made = requested.into_iter().filter_map(|(name, protocol, port, recorded)| {
        let match_port = recorded.or_else(|| new.next())?;
        Some(ChildPort { name, protocol, port, match_port })
    });
    let made: Vec<_> = made.collect();
    let used = |port: u16| made.iter().any(|port_map| port_map.protocol == "TCP" && port_map.port == port);
    let health = health_port(claim.record.as_ref().and_then(|record| record.health), used);
    let name = name_of_child(observed, claim);
    let (health_target, distribution) = (shape.health_port(), shape.traffic_distribution());
    let (namespace, group) = (observed.settings.namespace.clone(), observed.key.group_name().to_owned());
    Some(ChildService {
        name,
        namespace,
        parent: (key.0.to_owned(), key.1.to_owned()),
        group,
        ports: made,
        health,
        health_target,
        distribution,
    })
}

/// Protocol in the child's notation.
pub(crate) fn protocol(text: Option<&str>) -> PortProtocol {
    if text == Some("UDP") { "UDP" } else { "TCP" }
}

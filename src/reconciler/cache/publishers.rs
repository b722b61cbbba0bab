//! Publication requests: their publisher, group and name, and conflicting requests of the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::name_index::ClaimState;
use super::{CachedObject, ClusterCache, Id, WatchRole};
use crate::api::connector::Connector;
use crate::api::names;
use crate::api::routes::Origin;
use crate::api::vip::PREFIX;
use crate::model::controller::ingress::advertise::serves;
use crate::model::controller::ingress::spec::backend::backends;
use crate::model::controller::ingress::spec::ingress::certificates;
use crate::model::controller::ingress::spec::{has_conditions, service_name};
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::kinds::connector::hostnames;
use crate::model::controller::kinds::standalone::handover::proxy_conflict;
use crate::model::controller::policy::requests::{ingress_label, is_recorded, service_label};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::{NameConflict, PublishInputs};

pub(super) fn of(origin: &Origin) -> Option<Publisher> {
    let source = PublishSource::ALL.into_iter().find(|source| source.kind() == origin.kind)?;
    Some(Publisher { source, namespace: origin.namespace.clone(), name: origin.name.clone() })
}

pub(super) fn role(source: PublishSource) -> WatchRole {
    match source {
        PublishSource::Ingress => WatchRole::Ingress,
        PublishSource::Service => WatchRole::Service,
        PublishSource::ProxyGroup => WatchRole::Group,
    }
}

/// Key of the operator's device.
pub(in crate::reconciler) fn own_request(namespace: impl AsRef<str>) -> WorkloadKey {
    WorkloadKey::of_object(PublishSource::Service, namespace.as_ref(), names::API_SERVER_SERVICE)
}

/// Kind of the objects of a role that can request a name.
pub(super) fn source(of: WatchRole) -> Option<PublishSource> {
    PublishSource::ALL.into_iter().find(|source| role(*source) == of)
}

#[derive(Debug)]
pub(super) struct PublishRequest {
    pub(super) claimant: Publisher,
    /// The assigned group; while that is undecided, the group whose config has the object. Of a standalone Ingress its key.
    pub(super) key: Option<WorkloadKey>,
    /// Whether it requests a name, also while its group is undecided.
    pub(super) wants: bool,
    /// Whether its annotation or `IngressClass` names no usable group.
    faulty: bool,
    pub(super) label: String,
}

impl ClusterCache {
    /// The request of an Ingress or Service, which may be none; `None` for other objects.
    pub(super) fn publish_request(&self, id: &Id, object: &CachedObject) -> Option<PublishRequest> {
        let (source, assignment, label) = match object {
            CachedObject::Ingress(ingress) => (PublishSource::Ingress, self.assignment.ingress(ingress), ingress_label(ingress)),
            CachedObject::Service(service) => (PublishSource::Service, self.assignment.published(service), service_label(service)),
            _ => return None,
        };
        let claimant = Publisher { source, namespace: id.0.clone(), name: id.1.clone() };
        let recorded = || self.indices.recorded.get(&claimant)?.first().cloned();
        let standalone = matches!(object, CachedObject::Ingress(ingress) if self.assignment.is_standalone_ingress(ingress));
        let key = match assignment.group() {
            _ if standalone => Some(WorkloadKey::from(&claimant)),
            None if assignment.is_undecided() => recorded(),
            assigned => assigned.map(WorkloadKey::of_group),
        };
        let (wants, faulty) = (key.is_some() || assignment.is_undecided(), assignment.is_faulty());
        Some(PublishRequest { claimant, key, wants, faulty, label })
    }

    /// Groups that an object concerns by its current or earlier request. The empty name means no group.
    pub(super) fn publishers(&self, id: &Id, object: &CachedObject) -> BTreeSet<WorkloadKey> {
        let Some((request, metadata)) = self.publish_request(id, object).zip(object.user_metadata()) else { return BTreeSet::new() };
        let PublishRequest { claimant, key, faulty, .. } = request;
        let recorded = self.indices.recorded.get(&claimant).into_iter().flatten().cloned();
        let mut keys: BTreeSet<WorkloadKey> = key.into_iter().chain(recorded).collect();
        // The proxy of an Ingress outlives the request.
        let proxied = claimant.source == PublishSource::Ingress && finalizers::has(metadata, names::FINALIZER);
        keys.extend((proxied && self.assignment.standalone.has(&id.0)).then(|| WorkloadKey::from(&claimant)));
        let finalized = finalizers::has(metadata, claimant.source.finalizer()) && finalizers::releases_names(&self.types);
        // A proxy of its own does not remove the finalizer of a group.
        let is_orphan = finalized && keys.iter().all(WorkloadKey::is_standalone);
        let has_conditions = || matches!(object, CachedObject::Service(service) if has_conditions(service));
        // The key of its own proxy reports a fault.
        let is_proxied =
            || matches!(object, CachedObject::Service(service) if self.assignment.standalone.has(&id.0) && is_recorded(service));
        if is_orphan || (keys.is_empty() && ((faulty && !is_proxied()) || has_conditions())) {
            keys.insert(WorkloadKey::of_group(""));
        }
        keys
    }

    pub(super) fn publishing(&self, key: &WorkloadKey, namespace: &str) -> PublishInputs {
        let members = self.indices.workloads.get(key);
        let ingresses = members.map(|members| members.ingresses.clone()).unwrap_or_default();
        let named =
            ingresses.iter().flat_map(|((namespace, _), ingress)| backends(ingress).map(move |name| (namespace.clone(), name.to_owned())));
        let named: BTreeSet<Id> = named.collect();
        let found = |id: Id| Some((self.one(WatchRole::Service, &id)?.as_backend()?, id));
        let backends = named.into_iter().filter_map(found).map(|(service, id)| (id, service)).collect();
        // Services of an egress group, possibly very many, request nothing.
        let services = self.services(key);
        let asking: Vec<_> = services.iter().filter(|(_, service)| self.assignment.published(service).group().is_some()).collect();
        let backed = asking.iter().map(|(id, _)| *id).filter(|id| self.indices.backed.contains_key(*id)).cloned().collect();
        let config = ObjectRef::new(Kind::ConfigMap, namespace, names::ingress_config(key.group_name()));
        let origins = members.and_then(|members| members.owned.get(&config)).map(|config| IngressConfigMap::origins(config));
        let origins = origins.unwrap_or_default();
        let recorded = origins.keys().filter_map(|name| name.strip_prefix(PREFIX).map(str::to_owned));
        let labels = ingresses.values().map(|ingress| ingress_label(ingress));
        let labels = labels.chain(asking.iter().map(|(_, service)| service_label(service))).chain(recorded);
        let hostnames = self.connector_labels(key).into_iter().chain(self.connector_hostnames(key));
        let labels: BTreeSet<String> = labels.chain(self.api_server_label(key)).chain(hostnames).collect();
        let namesakes = self.namesakes(key, &labels);
        let rivals = labels.iter().map(|label| (service_name(label), self.rivals(key, label)));
        let mut rivals: BTreeMap<_, _> = rivals.filter(|(_, rivals)| !rivals.is_empty()).collect();
        let publisher = |source, (namespace, name): &Id| Publisher { source, namespace: namespace.clone(), name: name.clone() };
        let requests = ingresses.iter().map(|(id, ingress)| (service_name(&ingress_label(ingress)), publisher(PublishSource::Ingress, id)));
        let requests = requests
            .chain(asking.iter().map(|(id, service)| (service_name(&service_label(service)), publisher(PublishSource::Service, id))))
            .chain(origins.iter().filter_map(|(name, origin)| Some((name.clone(), of(origin)?))));
        for (name, claimant) in requests.collect::<BTreeSet<_>>() {
            if let Some(conflict) = self.proxy(key, &claimant) {
                rivals.entry(name).or_default().push(conflict);
            }
        }
        let claimants = ingresses.keys().map(|id| publisher(PublishSource::Ingress, id));
        let claimants = claimants.chain(asking.iter().map(|(id, _)| publisher(PublishSource::Service, id)));
        // Objects that the config of another group has.
        let is_elsewhere = |groups: &BTreeSet<WorkloadKey>| groups.iter().any(|group| group != key);
        let served_by_others = claimants.filter(|claimant| self.indices.recorded.get(claimant).is_some_and(is_elsewhere)).collect();
        PublishInputs {
            class_fault: self.class_fault(),
            ingresses,
            certificates: self.own_certificates(key),
            reserved: self.reserved_certificates(key),
            recorded_certificates: OrdMap::new(),
            backends,
            backed,
            rivals,
            namesakes,
            served_by_others,
            listed: None,
            approved: OrdMap::new(),
        }
    }

    /// The proxy that an object of a group has or gets.
    fn proxy(&self, of: &WorkloadKey, claimant: &Publisher) -> Option<NameConflict> {
        let key = WorkloadKey::from(claimant);
        self.indices.workloads.get(&key).filter(|_| key != *of)?;
        let (mut replicas, _) = self.with_waiting(&key, &self.workload(&key));
        self.live(claimant)?;
        let conflict = proxy_conflict(self.standalone_parent(&key)?, &self.assignment, replicas.remove(&0).as_ref())?;
        Some(NameConflict { is_device: conflict.is_device && self.is_same_tailnet(of, &key), ..conflict })
    }

    /// Groups with an Ingress that names this Secret as a certificate, and those that name it for the Kubernetes API.
    pub(super) fn showing(&self, secret: &str) -> BTreeSet<WorkloadKey> {
        let shown = |ingress: &Arc<Ingress>| certificates(ingress).any(|named| named == secret);
        let groups = self.indices.workloads.iter().filter(|(_, members)| members.ingresses.values().any(shown));
        let of_api = self.groups().map(|(name, _)| WorkloadKey::of_group(name)).chain(self.namespace.iter().map(own_request));
        let of_api = of_api.filter(|key| self.api_server_certificate(key) == Some(secret));
        groups.map(|(group, _)| group.clone()).chain(of_api).collect()
    }

    /// Labels that Ingresses request from a group, and those of the Kubernetes API.
    pub(super) fn requested_labels(&self, key: &WorkloadKey) -> impl Iterator<Item = String> {
        let ingresses = self.indices.workloads.get(key).into_iter().flat_map(|members| &members.ingresses);
        ingresses.map(|(_, ingress)| ingress_label(ingress)).chain(self.api_server_label(key)).chain(self.device_labels(key))
    }

    /// Label of the Kubernetes API, of a group that publishes it, or of the operator's device.
    fn api_server_label(&self, key: &WorkloadKey) -> Option<String> {
        match key.group() {
            Some(group) => self.group(group)?.api_server_hostname().map(str::to_owned),
            None => self.operator_device(key).map(|device| device.hostname.clone()),
        }
    }

    /// Labels of the names in the config of the operator's device: the control plane may have numbered the requested one.
    fn device_labels(&self, key: &WorkloadKey) -> BTreeSet<String> {
        let members = self.indices.workloads.get(key).filter(|_| *key == own_request(&self.assignment.own_namespace));
        let config_maps = members.into_iter().flat_map(|members| &members.owned).filter(|(object, _)| object.kind == Kind::ConfigMap);
        let sites = config_maps.flat_map(|(_, config)| IngressConfigMap::read(config).routes.into_values());
        sites.flat_map(|site| site.hosts.into_keys()).filter_map(|dns| Some(dns.split_once('.')?.0.to_owned())).collect()
    }

    /// Host names of a Connector's devices.
    fn connector_labels(&self, key: &WorkloadKey) -> BTreeSet<String> {
        let connector = if let WorkloadKey::Connector(name) = key { self.get::<Connector>(name) } else { None };
        connector.map(|connector| hostnames(connector)).unwrap_or_default()
    }

    /// Requests of other groups for a name: of each group the oldest one, and those of objects that this workload has.
    pub(super) fn rivals(&self, of: &WorkloadKey, label: &str) -> Vec<NameConflict> {
        let is_group = |key: &WorkloadKey| key.group().is_some_and(|name| self.group(name).is_some());
        let (claimants, own) = (&self.indices.claimants, self.own_claimants(of, label));
        let of_group = |group: &String| {
            let key = WorkloadKey::of_group(group);
            if key == *of || !is_group(&key) || (is_group(of) && !self.is_same_tailnet(of, &key)) {
                return Vec::new();
            }
            let name = service_name(label);
            let serving = self.replicas(&key, group).values().any(|replica| serves(replica, &name));
            let is_own = |object: &&&WorkloadKey| {
                let mut claims = claimants.claims(object, label);
                claims.any(|claim| claim.state == ClaimState::Requested && claim.group.as_ref() == Some(group))
            };
            let oldest = claimants.oldest(label, Some(group), ClaimState::Requested).take(1);
            let objects: BTreeSet<&WorkloadKey> = own.iter().filter(is_own).copied().chain(oldest).collect();
            let claimants = objects.into_iter().filter_map(WorkloadKey::publisher);
            claimants.map(|claimant| NameConflict { claimant, key: key.clone(), serving, is_device: false }).collect()
        };
        claimants.groups(label).into_iter().flat_map(of_group).collect()
    }

    /// Metadata of an object that exists and is not in deletion: then it requests nothing.
    pub fn live(&self, claimant: &Publisher) -> Option<&ObjectMeta> {
        self.claimant(claimant)?.1.user_metadata().filter(|metadata| metadata.deletion_timestamp.is_none())
    }

    pub(super) fn claimant(&self, claimant: &Publisher) -> Option<(Id, &CachedObject)> {
        let id = (claimant.namespace.clone(), claimant.name.clone());
        self.one(role(claimant.source), &id).map(|object| (id, object))
    }

    pub(super) fn publisher(&self, source: PublishSource, id: &Id) -> Option<WorkloadKey> {
        self.publish_request(id, self.one(role(source), id)?)?.key
    }

    /// Fault of our `IngressClass`, if any.
    fn class_fault(&self) -> Option<String> {
        let class = &self.assignment.ingress_class;
        self.stores.get(&WatchRole::IngressClass)?;
        let make = format!("name the controller {} in it", names::INGRESS_CONTROLLER);
        let Some(found) = self.get::<IngressClass>(class) else {
            return Some(format!("IngressClass {class} does not exist: create it, and {make}."));
        };
        if found.spec.as_ref().and_then(|spec| spec.controller.as_deref()) != Some(names::INGRESS_CONTROLLER) {
            return Some(format!("IngressClass {class} is another controller's: {make}."));
        }
        let default = found.metadata.annotations.as_ref().is_some_and(|all| all.get(names::DEFAULT_CLASS).is_some_and(|is| is == "true"));
        default.then(|| {
            format!("IngressClass {class} is the default one, which is not supported: remove its annotation {}.", names::DEFAULT_CLASS)
        })
    }
}

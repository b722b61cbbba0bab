//! `DNSConfigs`, the objects of their nameserver, and the objects of users that have records. One work key stands for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::Value;

use super::WatchedKind;
use crate::api::dnsconfig::DNSConfig;
use crate::api::names;
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::kinds::nameserver;
use crate::model::controller::kinds::nameserver::inputs::{KINDS, NameserverInputs, is_named, object};
use crate::model::controller::kinds::nameserver::records::{RecordRank, RecordsPlan};
use crate::model::controller::kinds::nameserver::served::{ServingGroup, ServingProxies, ServingProxy, ServingSite};
use crate::model::controller::policy::annotations::is_on;
use crate::model::controller::policy::requests::{Parent, directions};
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::secret_name::SecretName;
use crate::model::controller::workload::settings::GroupSettings;
use crate::reconciler::cache::{ClusterCache, Id, WatchRole, WorkKey};

impl WatchedKind for DNSConfig {
    type Object = Self;

    fn prune(config: Self) -> Option<Self> {
        Some(config)
    }

    fn keys(&self, _cache: &ClusterCache, id: &Id) -> BTreeSet<WorkKey> {
        Self::own_key(id).into_iter().collect()
    }

    fn own_key(_: &Id) -> Option<WorkKey> {
        Some(WorkKey::Nameserver)
    }

    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl ClusterCache {
    /// The work key, if a change may concern a nameserver or a record of it.
    pub(in crate::reconciler::cache) fn nameserver_key(&self, role: WatchRole, id: &Id) -> Option<WorkKey> {
        let serves = self.has(WatchRole::DnsConfig);
        let is_its_own = || matches!(role, WatchRole::Owned(kind) if is_named(kind, &id.1));
        let concerns = serves && (is_its_own() || (self.may_have_records(role, id) && self.all_of::<DNSConfig>().next().is_some()));
        concerns.then_some(WorkKey::Nameserver)
    }

    /// Whether an object is one of those that [`ClusterCache::serving_proxies`] reads: of users' objects those with a child or a proxy.
    fn may_have_records(&self, role: WatchRole, id @ (namespace, name): &Id) -> bool {
        let has_proxy = |source| self.indices.workloads.contains_key(&WorkloadKey::of_object(source, namespace, name));
        match role {
            WatchRole::Service => self.indices.children.contains_key(id) || has_proxy(PublishSource::Service),
            WatchRole::Ingress => has_proxy(PublishSource::Ingress),
            WatchRole::Pod | WatchRole::Owned(Kind::Service) => true,
            WatchRole::Owned(Kind::ConfigMap) => {
                name.ends_with(names::EGRESS_CONFIG_SUFFIX) || name.ends_with(names::INGRESS_CONFIG_SUFFIX)
            }
            WatchRole::Owned(Kind::Secret) => matches!(SecretName::parse(name), SecretName::State { .. } | SecretName::Config { .. }),
            _ => false,
        }
    }

    /// The work key, if there are objects of a nameserver, also without a `DNSConfig`.
    pub(in crate::reconciler::cache) fn nameserver_leftovers(&self) -> Option<WorkKey> {
        let mut existing = self.nameserver_objects(self.namespace.as_deref()?).into_values();
        existing.any(|value| nameserver::is_labelled(&value)).then_some(WorkKey::Nameserver)
    }

    fn nameserver_objects(&self, namespace: &str) -> BTreeMap<ObjectRef, Arc<Value>> {
        let kinds = KINDS.into_iter().filter(|_| self.has(WatchRole::DnsConfig));
        let all = kinds.map(|kind| object(kind, namespace));
        all.filter_map(|object| self.owned_object(&object).cloned().map(|value| (object, value))).collect()
    }

    /// All `DNSConfigs`, and what the nameserver is built from, without records.
    pub fn nameserver_inputs(&self, settings: &GroupSettings) -> (Vec<Arc<DNSConfig>>, NameserverInputs) {
        let configs: Vec<_> = self.all_of::<DNSConfig>().map(|(_, config)| Arc::clone(config)).collect();
        let inputs = NameserverInputs {
            namespace: settings.namespace.clone(),
            image: settings.image.clone(),
            pull_secrets: settings.image_pull_secrets.clone(),
            records: RecordsPlan::default(),
            existing: self.nameserver_objects(&settings.namespace),
        };
        (configs, inputs)
    }

    /// Proxies of objects that request a target by name, or to be reached by the cluster at a name. What they serve is decided elsewhere.
    pub fn serving_proxies(&self) -> ServingProxies {
        let mut groups = BTreeMap::<String, ServingGroup>::new();
        for (child, owner) in &self.indices.child_owners {
            let Some((group, (rank, object))) = owner.key.group().zip(self.serving_child(child, &owner.parent)) else { continue };
            let group = groups.entry(group.to_owned()).or_insert_with(|| ServingGroup {
                config: self.own_config_map(names::egress_config(group)),
                replicas: self.replicas(&owner.key, group).into_values().collect(),
                children: Vec::new(),
            });
            group.children.push((rank, object));
        }
        let standalone = self.standalone_keys().filter(|key| self.assignment.serves(key));
        ServingProxies { groups, standalone: standalone.filter_map(|key| self.serving_proxy(key)).collect() }
    }

    /// A child of a Service that requests a target.
    fn serving_child(&self, child: &str, parent: &Id) -> Option<(RecordRank, Arc<Value>)> {
        let service = super::CachedKind::of(self.one(WatchRole::Service, parent)?).filter(|service| is_target(service))?;
        let namespace = self.namespace.as_deref().unwrap_or_default();
        let object = self.owned_object(&ObjectRef::new(Kind::Service, namespace, child))?;
        Some((RecordRank::new(true, &service.metadata), Arc::clone(object)))
    }

    fn serving_proxy(&self, key: &WorkloadKey) -> Option<ServingProxy> {
        let workload = self.workload(key);
        let (rank, site) = match self.standalone_parent(key)? {
            Parent::Service(service) if is_target(service) => (RecordRank::new(true, &service.metadata), None),
            Parent::Ingress(ingress) if serves_cluster(ingress) => {
                let active = self.with_waiting(key, &workload).0.remove(&0);
                let device = active.as_ref().and_then(|active| active.device_name().cloned());
                let site = ServingSite { device, config: self.own_config_map(names::ingress_config(&workload)) };
                (RecordRank::new(false, &ingress.metadata), Some(site))
            }
            _ => return None,
        };
        let state = self.replicas(key, &workload).remove(&0).and_then(|replica| replica.state);
        let pods = self.indices.workloads.get(key).into_iter().flat_map(|members| members.replicas.values());
        let with_state = |replica: &ObservedReplica| ObservedReplica { state: state.clone(), ..replica.clone() };
        Some(ServingProxy { rank, replicas: pods.map(with_state).collect(), site })
    }

    fn own_config_map(&self, name: String) -> Option<Arc<Value>> {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        self.owned_object(&ObjectRef::new(Kind::ConfigMap, namespace, name)).cloned()
    }
}

/// Whether a Service only requests a target in the tailnet, and is not in deletion.
fn is_target(service: &Service) -> bool {
    directions(service) == (false, true) && service.metadata.deletion_timestamp.is_none()
}

/// Whether an Ingress requests that the cluster reaches it at its proxy, and is not in deletion.
fn serves_cluster(ingress: &Ingress) -> bool {
    is_on(ingress.metadata.annotations.as_ref(), names::FORWARD_CLUSTER_TRAFFIC) && ingress.metadata.deletion_timestamp.is_none()
}

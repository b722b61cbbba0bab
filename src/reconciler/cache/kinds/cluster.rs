//! The cluster that proxies run in: their Pods, Events about Pods that cannot be created, nodes, namespaces, and Secrets with credentials.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Node, NodeStatus, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::WatchedKind;
use crate::edge::kube::MetadataOnly;
use crate::model::controller::policy::cluster_networks::NetworkSource;
use crate::model::controller::policy::tenancy::Labels;
use crate::model::controller::workload::pod_fault::CreateFailure;
use crate::reconciler::cache::indices::Indices;
use crate::reconciler::cache::keys::has_tenants;
use crate::reconciler::cache::{ClusterCache, Id, WatchRole, WorkKey};

impl WatchedKind for Pod {
    type Object = Self;

    fn prune(pod: Self) -> Option<Self> {
        Some(pod)
    }
}

impl WatchedKind for CreateFailure {
    type Object = Event;

    fn prune(event: Event) -> Option<Self> {
        Self::read(&event)
    }

    fn keys(&self, cache: &ClusterCache, _: &Id) -> BTreeSet<WorkKey> {
        cache.named_workload(&self.set).map(WorkKey::Workload).into_iter().collect()
    }

    fn index(self: &Arc<Self>, indices: &mut Indices, id: &Id, came: bool) {
        if came {
            indices.create_failures.insert(self.set.clone(), (id.clone(), Arc::clone(self)));
        } else {
            indices.create_failures.remove(&self.set);
        }
    }
}

impl WatchedKind for Node {
    type Object = Self;

    /// Images and conditions are most of it, and its kubelet writes it every few minutes.
    fn prune(node: Self) -> Option<Self> {
        let metadata = ObjectMeta { name: node.metadata.name, labels: node.metadata.labels, ..ObjectMeta::default() };
        let addresses = node.status.and_then(|status| status.addresses);
        Some(Self { metadata, status: Some(NodeStatus { addresses, ..NodeStatus::default() }), spec: None })
    }

    fn keys(&self, cache: &ClusterCache, _: &Id) -> BTreeSet<WorkKey> {
        let mut keys = cache.users_of_nodes();
        if cache.is_listed(WatchRole::Node) {
            keys.extend(cache.users_of_networks());
        }
        keys
    }

    fn index(self: &Arc<Self>, indices: &mut Indices, (_, name): &Id, came: bool) {
        let addresses = self.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
        let nets = addresses.filter_map(|address| address.address.parse::<IpAddr>().ok()).map(IpNet::from);
        indices.networks.set(NetworkSource::Node(name.clone()), nets.filter(|_| came).collect());
    }
}

impl WatchedKind for ServiceCIDR {
    type Object = Self;

    fn prune(range: Self) -> Option<Self> {
        let metadata = ObjectMeta { name: range.metadata.name, ..ObjectMeta::default() };
        Some(Self { metadata, spec: range.spec, status: None })
    }

    fn keys(&self, cache: &ClusterCache, _: &Id) -> BTreeSet<WorkKey> {
        if cache.is_listed(WatchRole::ServiceRange) { cache.users_of_networks().collect() } else { BTreeSet::new() }
    }

    fn index(self: &Arc<Self>, indices: &mut Indices, (_, name): &Id, came: bool) {
        let cidrs = self.spec.as_ref().and_then(|spec| spec.cidrs.as_ref()).into_iter().flatten();
        let nets = cidrs.filter_map(|net| net.parse::<IpNet>().ok()).map(|net| net.trunc());
        indices.networks.set(NetworkSource::ServiceRange(name.clone()), nets.filter(|_| came).collect());
    }
}

impl WatchedKind for Labels {
    type Object = MetadataOnly<Namespace>;

    fn prune(namespace: MetadataOnly<Namespace>) -> Option<Self> {
        Some(namespace.metadata.labels.unwrap_or_default())
    }

    /// Tenants select namespaces by labels.
    fn keys(&self, cache: &ClusterCache, (_, name): &Id) -> BTreeSet<WorkKey> {
        let standalone = cache.standalone_keys_in(name).cloned();
        cache.groups_that(has_tenants).into_iter().chain(standalone).map(WorkKey::Workload).collect()
    }

    fn index(self: &Arc<Self>, indices: &mut Indices, (_, name): &Id, came: bool) {
        if came {
            indices.namespaces.insert(name.clone(), Arc::clone(self));
        } else {
            indices.namespaces.remove(name);
        }
    }
}

impl WatchedKind for ObjectMeta {
    type Object = MetadataOnly<Secret>;

    fn prune(secret: MetadataOnly<Secret>) -> Option<Self> {
        Some(secret.metadata)
    }

    fn keys(&self, cache: &ClusterCache, (_, name): &Id) -> BTreeSet<WorkKey> {
        let tailnets = cache.users_of_secret(name).into_iter().map(WorkKey::Tailnet);
        tailnets.chain(cache.showing(name).into_iter().map(WorkKey::Workload)).collect()
    }
}

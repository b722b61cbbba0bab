//! Users' objects that request proxies, and what they refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use super::WatchedKind;
use crate::api::proxygroup::ProxyGroupType;
use crate::model::controller::ingress::spec::backend::backends;
use crate::model::controller::key::PublishSource;
use crate::model::controller::kinds::concerns;
use crate::model::controller::policy::cluster_networks::NetworkSource;
use crate::model::controller::policy::requests;
use crate::model::controller::workload::objects::slice::SERVICE_NAME;
use crate::reconciler::cache::indices::Indices;
use crate::reconciler::cache::maps::{count, put};
use crate::reconciler::cache::{ClusterCache, Id, WorkKey};

impl WatchedKind for Service {
    type Object = Self;

    fn prune(service: Self) -> Option<Self> {
        Some(service)
    }

    fn keys(&self, cache: &ClusterCache, id: &Id) -> BTreeSet<WorkKey> {
        let class = requests::class(&self.metadata, cache.default_class.as_deref()).filter(|_| cache.assignment.is_standalone(self));
        let own = cache.indices.children.get(id).into_iter().flat_map(BTreeMap::keys).cloned();
        let workloads = concerns(self, &cache.assignment).into_iter().chain(own).map(WorkKey::Workload);
        workloads.chain(class.map(|name| WorkKey::Class(name.to_owned()))).collect()
    }
}

impl WatchedKind for Ingress {
    type Object = Self;

    fn prune(ingress: Self) -> Option<Self> {
        Some(ingress)
    }

    fn keys(&self, cache: &ClusterCache, _: &Id) -> BTreeSet<WorkKey> {
        let class = requests::class(&self.metadata, cache.default_class.as_deref());
        class.filter(|_| cache.assignment.is_standalone_ingress(self)).map(|name| WorkKey::Class(name.to_owned())).into_iter().collect()
    }

    fn index(self: &Arc<Self>, indices: &mut Indices, id: &Id, came: bool) {
        for backend in backends(self) {
            put(&mut indices.backend_users, (id.0.clone(), backend.to_owned()), id.clone(), came);
        }
    }
}

impl WatchedKind for IngressClass {
    type Object = Self;

    fn prune(class: Self) -> Option<Self> {
        Some(class)
    }

    fn keys(&self, cache: &ClusterCache, (_, name): &Id) -> BTreeSet<WorkKey> {
        if *name != cache.assignment.ingress_class {
            return BTreeSet::new();
        }
        let standalone = cache.standalone_keys().filter(|key| cache.standalone_ingress(key)).cloned();
        let groups = cache.groups_that(|group| group.spec.type_ == ProxyGroupType::Ingress);
        groups.into_iter().chain(standalone).map(WorkKey::Workload).collect()
    }
}

/// An EndpointSlice of a user's Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::reconciler::cache) struct BackendSlice {
    service: Box<str>,
    /// Whether an endpoint receives traffic.
    is_ready: bool,
    /// Addresses of the API server's endpoints, of its Service only.
    api_server: Box<[IpNet]>,
}

impl WatchedKind for BackendSlice {
    type Object = EndpointSlice;

    fn prune(slice: EndpointSlice) -> Option<Self> {
        let service: Box<str> = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?.as_str().into();
        // An endpoint without conditions receives traffic.
        let ready = |conditions: &k8s_openapi::api::discovery::v1::EndpointConditions| conditions.ready != Some(false);
        let is_ready = slice.endpoints.iter().flatten().any(|endpoint| endpoint.conditions.as_ref().is_none_or(ready));
        // Others may write slices with its label: the API server writes the one of this name.
        let [namespace, name] = [&slice.metadata.namespace, &slice.metadata.name].map(|text| text.as_deref());
        let is_api_server = (namespace, name, &*service) == (Some("default"), Some("kubernetes"), "kubernetes");
        let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses).filter(|_| is_api_server);
        let api_server = addresses.filter_map(|ip| ip.parse::<IpAddr>().ok()).map(IpNet::from).collect();
        Some(Self { service, is_ready, api_server })
    }

    fn keys(&self, cache: &ClusterCache, (namespace, _): &Id) -> BTreeSet<WorkKey> {
        let service = (namespace.clone(), self.service.to_string());
        let mut keys: BTreeSet<_> = cache.publisher(PublishSource::Service, &service).map(WorkKey::Workload).into_iter().collect();
        if !self.api_server.is_empty() {
            keys.extend(cache.users_of_networks());
        }
        keys
    }

    fn index(self: &Arc<Self>, indices: &mut Indices, (namespace, name): &Id, came: bool) {
        if !self.api_server.is_empty() {
            let nets = if came { self.api_server.to_vec() } else { Vec::new() };
            indices.networks.set(NetworkSource::ApiServer(name.clone()), nets);
        }
        if self.is_ready {
            count(&mut indices.backed, &(namespace.clone(), self.service.to_string()), came);
        }
    }
}

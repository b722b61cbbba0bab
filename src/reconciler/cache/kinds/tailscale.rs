//! Custom resources: groups and Connectors, and the classes and Tailnets that they name.

use std::collections::BTreeSet;

use super::WatchedKind;
use crate::api::connector::Connector;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::tailnet::Tailnet;
use crate::model::controller::key::WorkloadKey;
use crate::reconciler::cache::{ClusterCache, Id, WorkKey};

impl WatchedKind for ProxyGroup {
    type Object = Self;

    fn prune(group: Self) -> Option<Self> {
        Some(group)
    }

    fn keys(&self, cache: &ClusterCache, (_, name): &Id) -> BTreeSet<WorkKey> {
        let class = cache.class_of(self).map(|name| WorkKey::Class(name.to_owned()));
        let tailnet = self.spec.tailnet.clone().map(WorkKey::Tailnet);
        class.into_iter().chain(tailnet).chain([WorkKey::Workload(WorkloadKey::of_group(name))]).collect()
    }

    fn own_key((_, name): &Id) -> Option<WorkKey> {
        Some(WorkKey::Workload(WorkloadKey::of_group(name)))
    }
}

impl WatchedKind for Connector {
    type Object = Self;

    fn prune(connector: Self) -> Option<Self> {
        Some(connector)
    }

    fn keys(&self, _cache: &ClusterCache, id: &Id) -> BTreeSet<WorkKey> {
        let class = self.spec.proxy_class.clone().map(WorkKey::Class);
        let tailnet = self.spec.tailnet.clone().map(WorkKey::Tailnet);
        class.into_iter().chain(tailnet).chain(Self::own_key(id)).collect()
    }

    fn own_key((_, name): &Id) -> Option<WorkKey> {
        Some(WorkKey::Workload(WorkloadKey::Connector(name.clone())))
    }
}

impl WatchedKind for ProxyClass {
    type Object = Self;

    fn prune(class: Self) -> Option<Self> {
        Some(class)
    }

    fn keys(&self, cache: &ClusterCache, (_, name): &Id) -> BTreeSet<WorkKey> {
        cache.users_of_class(name).into_iter().map(WorkKey::Workload).chain([WorkKey::Class(name.clone())]).collect()
    }

    fn own_key((_, name): &Id) -> Option<WorkKey> {
        Some(WorkKey::Class(name.clone()))
    }

    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl WatchedKind for Tailnet {
    type Object = Self;

    fn prune(tailnet: Self) -> Option<Self> {
        Some(tailnet)
    }

    fn keys(&self, cache: &ClusterCache, (_, name): &Id) -> BTreeSet<WorkKey> {
        cache.users_of_tailnet(Some(name)).into_iter().map(WorkKey::Workload).chain([WorkKey::Tailnet(name.clone())]).collect()
    }

    fn own_key((_, name): &Id) -> Option<WorkKey> {
        Some(WorkKey::Tailnet(name.clone()))
    }

    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

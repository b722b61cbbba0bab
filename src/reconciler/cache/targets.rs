//! Nodes and other networks of the cluster, for static endpoints and the policy for targets, with the classes and groups of administrators.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use super::keys::has_tenants;
use super::{CachedObject, ClusterCache, WatchRole, WorkKey};
use crate::api::proxygroup::ProxyGroupType;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::target_inputs::{TargetInputs, denied_by};

impl ClusterCache {
    /// Whether a class requests static endpoints, which need a watch of nodes.
    pub fn wants_nodes(&self) -> bool {
        self.classes().any(|class| class.spec.static_endpoints.is_some())
    }

    /// Whether the class of a group or Connector requests static endpoints.
    pub(super) fn has_static_endpoints(&self, key: &WorkloadKey) -> bool {
        let class = self.class_name(key).filter(|_| !key.is_standalone()).and_then(|name| self.class(name));
        class.is_some_and(|class| class.spec.static_endpoints.is_some())
    }

    /// Whether a workload needs nodes that are not listed yet.
    pub fn awaits_nodes(&self, key: &WorkloadKey) -> bool {
        self.has_static_endpoints(key) && !self.is_listed(WatchRole::Node)
    }

    /// Whether the first list of a kind is complete, or the API server has no such kind.
    pub(super) fn is_listed(&self, role: WatchRole) -> bool {
        self.stores.get(&role).is_none_or(|store| store.lacking || store.synced())
    }

    /// What the cluster and the classes of administrators say about targets. Without its annotations an object would have the default
    /// class, or that of its default group.
    pub(super) fn target_inputs(&self, parent: Option<Parent<'_>>, class: Option<&str>) -> TargetInputs {
        let group = parent.and_then(|parent| self.assignment.without_annotation(parent)).and_then(|name| self.group(name));
        let group_class = group.as_deref().and_then(|group| self.class_of(group));
        let defaults: BTreeSet<&str> = self.default_class.as_deref().into_iter().chain(group_class).collect();
        let others = defaults.iter().filter(|name| parent.is_some() && Some(**name) != class).filter_map(|name| self.class(name));
        TargetInputs {
            cluster: self.indices.networks.nets(),
            is_complete: [WatchRole::Node, WatchRole::ServiceRange].into_iter().all(|role| self.is_listed(role)),
            inherited: others.flat_map(|class| denied_by(&class.spec)).collect(),
            is_default_class: parent.is_none() || class.is_none_or(|name| defaults.contains(name)),
        }
    }

    /// The first group with tenants.
    pub(super) fn restricted_group(&self) -> Option<String> {
        self.groups().find(|(_, group)| has_tenants(group)).map(|(name, _)| name.clone())
    }

    /// Workloads with targets that the networks of the cluster restrict: groups, Services with a DNS name, and headless ones. Scans all, so
    /// objects of a first list do not call it: the end of the list does.
    pub(super) fn users_of_networks(&self) -> impl Iterator<Item = WorkKey> + '_ {
        let groups = self.groups_that(|group| group.spec.type_ == ProxyGroupType::Ingress).into_iter();
        let by_name = |service: &Service| {
            let spec = service.spec.as_ref();
            spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName") || spec.cluster_ip.as_deref() == Some("None"))
        };
        let is_user = move |key: &&WorkloadKey| matches!(self.standalone_parent(key), Some(Parent::Service(service)) if by_name(service));
        groups.chain(self.standalone_keys().filter(is_user).cloned()).map(WorkKey::Workload)
    }

    /// Follows the addresses of a Service; returns the workloads that a new range restricts.
    pub(super) fn follow_cluster_ips(&mut self, object: &CachedObject) -> Vec<WorkKey> {
        let CachedObject::Service(service) = object else { return Vec::new() };
        let ips = service.spec.as_ref().and_then(|spec| spec.cluster_ips.as_ref()).into_iter().flatten();
        let mut is_new = false;
        for ip in ips.filter_map(|ip| ip.parse::<IpAddr>().ok()) {
            is_new |= self.indices.networks.add_cluster_ip(ip);
        }
        if is_new { self.users_of_networks().collect() } else { Vec::new() }
    }
}

//! Work keys of a changed object.

use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::secret_name::SecretName;
use std::collections::BTreeSet;

use super::index::owners;
use super::indices::WorkloadObjects;
use super::name_index::ClaimState;
use super::{CachedObject, ClusterCache, Id, WatchRole, WorkKey};
use crate::api::names::endpoint_reader;
use crate::api::proxygroup::ProxyGroup;
use crate::model::controller::key::PublishSource;
use crate::model::controller::policy::requests::Parent;

impl ClusterCache {
    pub(super) fn keys(&self, role: WatchRole, id: &Id, object: &CachedObject) -> BTreeSet<WorkKey> {
        let mut keys = object.typed_keys(self, id).unwrap_or_default();
        let workloads = match object {
            // A child's slices follow its Pods, whose changes are enough, unless slices of the Tailscale operator wait for them.
            CachedObject::ChildSlice(_) => {
                let minded = |key: &WorkloadKey| self.indices.workloads.get(key).is_some_and(WorkloadObjects::is_manual);
                owners(role, id, object).into_iter().filter(minded).collect()
            }
            _ if role == WatchRole::Owned(Kind::Secret) => self.with_moves(self.secret_owners(id, object)),
            _ if role == WatchRole::Owned(Kind::RoleBinding) && endpoint_reader(&id.1).is_some() => {
                owners(role, id, object).into_iter().filter(|key| self.reads_endpoints_in(key, &id.0)).collect()
            }
            _ => owners(role, id, object),
        };
        let published = self.publishing_groups(role, id, object);
        if matches!(role, WatchRole::Owned(_)) {
            keys.extend(role.own_key(id));
        }
        keys.extend(self.nameserver_key(role, id));
        keys.extend(workloads.into_iter().chain(published).map(WorkKey::Workload));
        keys
    }

    /// Whether a workload may have backends in a namespace: it has an Ingress there.
    fn reads_endpoints_in(&self, key: &WorkloadKey, namespace: &str) -> bool {
        let ingresses = self.indices.workloads.get(key).map(|members| &members.ingresses);
        let first = ingresses.and_then(|all| all.range((namespace.to_owned(), String::new())..).next());
        first.is_some_and(|((first, _), _)| first == namespace)
    }

    /// Workloads that a Secret belongs to. A certificate belongs to those that request its name, or have it.
    fn secret_owners(&self, id: &Id, object: &CachedObject) -> BTreeSet<WorkloadKey> {
        match SecretName::parse(&id.1) {
            SecretName::Config { .. } => owners(WatchRole::Owned(Kind::Secret), id, object),
            SecretName::Certificate => self.users_of_certificate(&id.1),
            name => name.workload().and_then(|workload| self.named_workload(workload)).into_iter().collect(),
        }
    }

    fn users_of_certificate(&self, dns: &str) -> BTreeSet<WorkloadKey> {
        let Some((label, _)) = dns.split_once('.') else { return BTreeSet::new() };
        let claimants = &self.indices.claimants;
        let groups = claimants.groups(label).into_iter().map(|group| WorkloadKey::of_group(group));
        let having = [ClaimState::Recorded, ClaimState::Terminating].into_iter().flat_map(|state| claimants.oldest(label, None, state));
        let proxies = having.chain(claimants.oldest(label, None, ClaimState::Requested).take(1)).cloned();
        let name = service_name(label);
        let recorded = self.indices.recorded_names.iter().filter(|(_, names)| names.contains(&name)).map(|(key, _)| key.clone());
        groups.chain(proxies).chain(recorded).collect()
    }

    /// Adds the groups that objects of standalone proxies move to or from.
    fn with_moves(&self, mut keys: BTreeSet<WorkloadKey>) -> BTreeSet<WorkloadKey> {
        let parents: Vec<_> = keys.iter().filter_map(|key| self.standalone_parent(key)).map(Parent::publisher).collect();
        let groups = parents.iter().filter_map(|publisher| self.claimant(publisher)).flat_map(|(id, object)| self.publishers(&id, object));
        keys.extend(groups.collect::<Vec<_>>());
        keys
    }

    /// Groups that a change concerns because of published names.
    fn publishing_groups(&self, role: WatchRole, id: &Id, object: &CachedObject) -> BTreeSet<WorkloadKey> {
        let mut groups = self.publishers(id, object);
        let requested = self.publish_request(id, object).filter(|request| request.wants).map(|request| (request.label, request.claimant));
        if let Some((label, claimant)) = requested.or_else(|| self.standalone_name(object)) {
            let (claimants, own) = (&self.indices.claimants, WorkloadKey::from(&claimant));
            groups.extend(claimants.groups(&label).into_iter().map(|group| WorkloadKey::of_group(group)));
            // The proxy with the name has it in any case, and of the others only the oldest can get it: they repeat their passes at intervals.
            groups.extend(claimants.oldest(&label, None, ClaimState::Requested).find(|other| **other != own).cloned());
            // What remains of the proxy of an earlier object of this name.
            groups.extend(self.indices.workloads.contains_key(&own).then_some(own));
        }
        if role == WatchRole::Service {
            let users = self.indices.backend_users.get(id).into_iter().flatten();
            groups.extend(users.filter_map(|user| self.publisher(PublishSource::Ingress, user)));
        }
        groups
    }

    pub(super) fn groups_that(&self, is: impl Fn(&ProxyGroup) -> bool) -> BTreeSet<WorkloadKey> {
        self.groups().filter(|(_, group)| is(group)).map(|(name, _)| WorkloadKey::of_group(name)).collect()
    }

    /// Workloads with static endpoints.
    pub(super) fn users_of_nodes(&self) -> BTreeSet<WorkKey> {
        let groups = self.groups().map(|(name, _)| WorkloadKey::of_group(name));
        let all = groups.chain(self.connectors().map(|(key, _)| key));
        all.filter(|key| self.has_static_endpoints(key)).map(WorkKey::Workload).collect()
    }
}

/// Whether a group restricts the namespaces that may use it.
pub(super) fn has_tenants(group: &ProxyGroup) -> bool {
    group.spec.tailyard.as_ref().is_some_and(|own| !own.tenants.is_empty())
}

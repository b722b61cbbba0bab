//! Names of the tailnet that objects with proxies of their own request, beside those of groups.

use std::collections::{BTreeMap, BTreeSet};

use super::{CachedObject, ClusterCache, Id};
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::policy::requests::{Parent, ingress_label, service_label};
use crate::model::controller::workload::observed::Namesake;

impl ClusterCache {
    /// The label that an object with a proxy of its own requests.
    pub(super) fn standalone_name(&self, (namespace, name): &Id, object: &CachedObject) -> Option<(String, Publisher)> {
        let (source, label) = match object {
            CachedObject::Ingress(ingress) if self.assignment.is_standalone_ingress(ingress) => {
                (PublishSource::Ingress, ingress_label(ingress))
            }
            CachedObject::Service(service) if self.assignment.is_standalone(service) => (PublishSource::Service, service_label(service)),
            _ => return None,
        };
        Some((label, Publisher { source, namespace: namespace.clone(), name: name.clone() }))
    }

    /// Other objects of the default tailnet that request these labels, where one of both has a proxy of its own.
    pub(super) fn namesakes(&self, of: &WorkloadKey, labels: &BTreeSet<String>) -> BTreeMap<String, Vec<Namesake>> {
        let own = self.standalone_parent(of).map(Parent::label);
        let labels: BTreeSet<&String> = if of.is_standalone() { own.iter().collect() } else { labels.iter().collect() };
        if !of.is_standalone() && !self.is_in_default_tailnet(of) {
            return BTreeMap::new();
        }
        let of_label = |label: &String| {
            let proxies = self.indices.standalone_names.get(label).into_iter().flatten();
            let proxies = proxies.map(|claimant| (WorkloadKey::from(claimant), claimant));
            let requests = self.indices.wanted.get(label).into_iter().flatten().filter(|_| of.is_standalone());
            let groups = requests.filter_map(|claimant| Some((self.key_of(claimant)?, claimant)));
            let others = proxies.chain(groups.filter(|(key, _)| !key.is_standalone() && self.is_in_default_tailnet(key)));
            let others = others.filter(|(key, _)| key != of);
            others.filter_map(|(key, claimant)| self.namesake(&key, claimant, label)).collect::<Vec<_>>()
        };
        let all = labels.into_iter().map(|label| (label.clone(), of_label(label)));
        all.filter(|(_, namesakes)| !namesakes.is_empty()).collect()
    }

    fn is_in_default_tailnet(&self, group: &WorkloadKey) -> bool {
        group.group().and_then(|name| self.group(name)).is_some_and(|group| group.spec.tailnet.is_none())
    }

    fn namesake(&self, key: &WorkloadKey, claimant: &Publisher, label: &str) -> Option<Namesake> {
        let created = self.created(claimant)?;
        let holds = if key.is_standalone() {
            self.has_proxy_of_name(key, label)
        } else {
            self.indices.recorded_names.get(key).is_some_and(|names| names.contains(&service_name(label)))
        };
        Some(Namesake { claimant: claimant.clone(), created, holds })
    }

    /// Whether an object has a proxy whose device has this name, or has not joined yet.
    fn has_proxy_of_name(&self, key: &WorkloadKey, label: &str) -> bool {
        if !self.has_proxy(key) {
            return false;
        }
        let (replicas, _) = self.with_waiting(key, &self.workload(key));
        let record = replicas.get(&0).and_then(|replica| replica.device()?.name.as_ref());
        record.is_none_or(|name| name.host() == label)
    }
}

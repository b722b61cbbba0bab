//! Who else has a name of the tailnet or requests it.
//!
//! A record decides: the config of a group, which no Pod and no tenant writes, or the record of a proxy's device. Only without one does a
//! request count, until its workload refuses it.

use std::collections::{BTreeMap, BTreeSet};

use super::{CachedObject, ClusterCache};
use crate::api::proxygroup::ProxyGroupType;
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::age::age;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::observed::Namesake;

impl ClusterCache {
    /// The label that an object with a proxy of its own requests.
    pub(super) fn standalone_name(&self, object: &CachedObject) -> Option<(String, Publisher)> {
        let parent = match object {
            CachedObject::Ingress(ingress) => Parent::Ingress(ingress),
            CachedObject::Service(service) => Parent::Service(service),
            _ => return None,
        };
        self.assignment.has_own_proxy(parent).then(|| (parent.label(), parent.publisher()))
    }

    /// Objects of other workloads of the tailnet that have one of these labels, or request it and are not refused.
    pub(super) fn namesakes(&self, of: &WorkloadKey, labels: &BTreeSet<String>) -> BTreeMap<String, Vec<Namesake>> {
        let own = self.standalone_parent(of).map(Parent::label);
        let labels: BTreeSet<&String> = if of.is_standalone() { own.iter().collect() } else { labels.iter().collect() };
        let group = of.group().and_then(|name| self.group(name));
        let tailnet = group.as_ref().and_then(|group| group.spec.tailnet.as_ref());
        if group.is_none() && !of.is_standalone() {
            return BTreeMap::new();
        }
        let all = labels.into_iter().map(|label| {
            let proxies = self.indices.standalone_names.get(label).into_iter().flatten().map(|claimant| (claimant.into(), claimant));
            let requests = self.indices.wanted.get(label).into_iter().flatten();
            let requests = requests.filter_map(|claimant| Some((self.key_of(claimant).filter(|key| !key.is_standalone())?, claimant)));
            let holders = self.indices.holders.get(&service_name(label)).into_iter().flatten();
            let all: BTreeSet<_> = proxies.chain(requests).chain(holders.map(|(key, claimant)| (key.clone(), claimant))).collect();
            let others = all.into_iter().filter(|(key, _)| key != of && self.is_in(key, tailnet));
            (label.clone(), others.filter_map(|(key, claimant)| self.namesake(&key, claimant, label)).collect::<Vec<_>>())
        });
        all.filter(|(_, namesakes)| !namesakes.is_empty()).collect()
    }

    /// Whether a workload is in this tailnet; the default one has no name.
    fn is_in(&self, key: &WorkloadKey, tailnet: Option<&String>) -> bool {
        match key.group() {
            Some(name) => self.group(name).is_some_and(|group| group.spec.tailnet.as_ref() == tailnet),
            None => tailnet.is_none(),
        }
    }

    fn namesake(&self, key: &WorkloadKey, claimant: &Publisher, label: &str) -> Option<Namesake> {
        let (created, uid) = age(self.live(claimant)?);
        let holds = if key.is_standalone() { self.has_proxy_of_name(key, label) } else { self.is_recorded(key, claimant, label) };
        let requests = || !self.is_refused(key, claimant) && key.group().is_none_or(|name| self.publishes(name));
        (holds || requests()).then(|| Namesake { claimant: claimant.clone(), age: (created, uid.to_owned()), holds })
    }

    /// Whether a group's config has a name for an object. The Tailscale operator's does not say for which.
    fn is_recorded(&self, key: &WorkloadKey, claimant: &Publisher, label: &str) -> bool {
        let name = service_name(label);
        let mut holders = self.indices.holders.get(&name).into_iter().flatten().filter(|(group, _)| group == key).peekable();
        match holders.peek() {
            Some(_) => holders.any(|(_, holder)| holder == claimant),
            None => self.indices.recorded_names.get(key).is_some_and(|names| names.contains(&name)),
        }
    }

    /// Whether a group publishes the objects that are assigned to it.
    pub(super) fn publishes(&self, group: &str) -> bool {
        let group = self.group(group).filter(|group| group.metadata.deletion_timestamp.is_none());
        group.is_some_and(|group| group.spec.type_ == ProxyGroupType::Ingress)
    }

    /// Whether an object's workload refused it in the last pass, for another reason than its name.
    pub(super) fn is_refused(&self, key: &WorkloadKey, claimant: &Publisher) -> bool {
        self.refusals.get(key).is_some_and(|refused| refused.contains(claimant))
    }

    /// Records the objects that a pass refuses.
    pub fn record_refusals(&mut self, key: &WorkloadKey, refused: BTreeSet<Publisher>) {
        if refused.is_empty() {
            self.refusals.remove(key);
        } else {
            self.refusals.insert(key.clone(), refused);
        }
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

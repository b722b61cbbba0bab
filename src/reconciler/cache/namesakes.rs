//! Who else has a name of the tailnet or requests it.
//!
//! A record decides: the config of a group, which no Pod and no tenant writes, or the record of a proxy's device. Only without one does a
//! request count, until its workload refuses it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{CachedObject, ClusterCache};
use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::age::age;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::observed::Namesake;

/// Time after which the result of a plan is in the cache.
const RESERVATION_TTL: Duration = Duration::from_secs(10);

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

    /// Objects of other workloads that have one of these labels, or request it in this tailnet and are not refused.
    pub(super) fn namesakes(&self, of: &WorkloadKey, labels: &BTreeSet<String>) -> BTreeMap<String, Vec<Namesake>> {
        let own = self.standalone_parent(of).map(Parent::label);
        let labels: BTreeSet<&String> = if of.is_standalone() { own.iter().collect() } else { labels.iter().collect() };
        if of.group().is_some_and(|name| self.group(name).is_none()) {
            return BTreeMap::new();
        }
        let all = labels.into_iter().map(|label| {
            let of_label = |(workload, subject): (WorkloadKey, WorkloadKey)| self.namesake(of, (workload, subject), label);
            let others = self.named(label).into_iter().filter(|(workload, _)| workload != of);
            (label.clone(), others.filter_map(of_label).collect::<Vec<_>>())
        });
        all.filter(|(_, namesakes)| !namesakes.is_empty()).collect()
    }

    /// Who requests a label or has it: workloads, each with the object or group.
    fn named(&self, label: &str) -> BTreeSet<(WorkloadKey, WorkloadKey)> {
        let proxies = self.indices.standalone_names.get(label).into_iter().flatten().map(|claimant| (claimant.into(), claimant.into()));
        let requests = self.indices.wanted.get(label).into_iter().flatten();
        let requests = requests.filter_map(|claimant| {
            let workload = self.key_of(claimant).filter(|workload| !workload.is_standalone())?;
            Some((workload, claimant.into()))
        });
        let holders = self.indices.holders.get(label).into_iter().flat_map(BTreeMap::keys).cloned();
        let replicas = self.groups_of_host_name(label).map(|group| (group.clone(), group));
        proxies.chain(requests).chain(holders).chain(replicas).collect()
    }

    /// Groups of whose replicas one has this host name, or gets it when the group is scaled.
    fn groups_of_host_name(&self, label: &str) -> impl Iterator<Item = WorkloadKey> {
        let numbered = label.rsplit_once('-').filter(|(_, number)| number.parse::<u16>().is_ok_and(|parsed| parsed.to_string() == *number));
        let prefix = numbered.map(|(prefix, _)| prefix.to_owned());
        let groups = prefix.into_iter().flat_map(|prefix| self.groups().filter(move |(_, group)| group.hostname_prefix() == prefix));
        groups.map(|(name, _)| WorkloadKey::of_group(name))
    }

    fn namesake(&self, of: &WorkloadKey, (workload, subject): (WorkloadKey, WorkloadKey), label: &str) -> Option<Namesake> {
        let claimant = subject.publisher();
        let metadata = match (&claimant, subject.group()) {
            (Some(claimant), _) => self.claimant(claimant).and_then(|(_, object)| object.user_metadata()),
            (None, Some(group)) => self.get::<ProxyGroup>(group).map(|group| &group.metadata),
            (None, None) => None,
        };
        let is_live = metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_none());
        let has_record = self.indices.holders.get(label).is_some_and(|holders| holders.contains_key(&(workload.clone(), subject.clone())));
        let holds = match &claimant {
            None => true,
            Some(_) if workload.is_standalone() => has_record,
            // Another group may take over the Tailscale Service of a deleted object.
            Some(_) => (is_live || of.is_standalone()) && (has_record || self.is_recorded(&workload, label)),
        };
        let requests = || {
            let is_refused = claimant.as_ref().is_some_and(|claimant| self.is_refused(&workload, claimant));
            is_live && !is_refused && workload.group().is_none_or(|name| self.publishes(name))
        };
        let age = metadata.map_or((i64::MIN, String::new()), |metadata| {
            let (created, uid) = age(metadata);
            (created, uid.to_owned())
        });
        self.tailnet_of(&workload)?;
        let is_same_tailnet = self.is_same_tailnet(of, &workload);
        (holds || (is_same_tailnet && requests())).then_some(Namesake { workload, subject, age, holds, is_same_tailnet })
    }

    /// Whether a group's config has a name without the object: that of the Tailscale operator does not say for which.
    fn is_recorded(&self, workload: &WorkloadKey, label: &str) -> bool {
        let mut holders = self.indices.holders.get(label).into_iter().flat_map(BTreeMap::keys);
        let names = self.indices.recorded_names.get(workload);
        names.is_some_and(|names| names.contains(&service_name(label))) && !holders.any(|(other, _)| other == workload)
    }

    /// Reserves the new names of a plan, as passes over two workloads run at the same time. Returns false if another workload's plan has one
    /// of them: its result is seen by the next pass.
    pub fn reserve_names(&mut self, key: &WorkloadKey, names: &BTreeSet<String>, now: Instant) -> bool {
        let is_current = |label: &String, workload: &WorkloadKey| workload != key || names.contains(label);
        self.reserved.retain(|(label, workload), since| is_current(label, workload) && now.duration_since(*since) < RESERVATION_TTL);
        let mut others = self.reserved.keys().filter(|(label, workload)| workload != key && names.contains(label));
        if others.any(|(_, workload)| self.is_same_tailnet(key, workload)) {
            return false;
        }
        self.reserved.extend(names.iter().map(|label| ((label.clone(), key.clone()), now)));
        true
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
}

//! Who else has a name of the tailnet or requests it.
//!
//! A record decides: the config of a group, which no Pod and no tenant writes, or the record of a proxy's device. Only without one does a
//! request count, until its workload refuses it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::indices::RequestRank;
use super::name_index::{ClaimState, NameClaim};
use super::publishers::own_request;
use super::{CachedObject, ClusterCache};
use crate::api::connector::Connector;
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
        self.assignment.has_own_proxy(parent).then(|| (self.assignment.label(parent), parent.publisher()))
    }

    /// Rank of an object with a proxy of its own among those of its namespace.
    pub(super) fn request_rank(&self, object: &CachedObject) -> Option<RequestRank> {
        let (_, claimant) = self.standalone_name(object)?;
        let metadata = object.user_metadata()?;
        Some((metadata.deletion_timestamp.is_none(), owned_age(Some(metadata)), (&claimant).into()))
    }

    /// Updates the claims of an object to names.
    pub(super) fn index_claims(&mut self, object: &WorkloadKey) {
        if let Some(claimant) = object.publisher() {
            let claims = self.name_claims(object, &claimant);
            self.indices.claimants.set(object, claims);
        }
    }

    /// The names that an object requests, and those that its own proxy has.
    fn name_claims(&self, object: &WorkloadKey, claimant: &Publisher) -> BTreeSet<NameClaim> {
        let stored = self.claimant(claimant);
        let metadata = stored.as_ref().and_then(|(_, stored)| stored.user_metadata());
        let is_live = metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_none());
        let state = |workload: &WorkloadKey| {
            let of_live = if self.is_refused(workload, claimant) { ClaimState::Refused } else { ClaimState::Requested };
            if is_live { of_live } else { ClaimState::Terminating }
        };
        let own = stored.as_ref().and_then(|(_, stored)| Some((self.standalone_name(stored)?.0, object.clone())));
        let request = stored.as_ref().and_then(|(id, stored)| self.publish_request(id, stored));
        let of_group = request.and_then(|request| Some((request.label, request.key.filter(|key| !key.is_standalone())?)));
        let replicas = self.indices.workloads.get(object).into_iter().flat_map(|members| members.replicas.values());
        let recorded: BTreeSet<String> = replicas.filter_map(|replica| replica.config.as_ref()).flat_map(|config| config.names()).collect();
        let requested = own.into_iter().filter(|(label, _)| !recorded.contains(label)).chain(of_group);
        let requested = requested.map(|(label, workload)| (label, workload.group().map(str::to_owned), state(&workload)));
        let all = requested.chain(recorded.iter().map(|label| (label.clone(), None, ClaimState::Recorded)));
        all.map(|(label, group, state)| NameClaim { label, group, state, age: owned_age(metadata) }).collect()
    }

    /// Objects of other workloads that have one of these labels, or request it in this tailnet and are not refused: those of which one can be
    /// the first for an object of this workload.
    pub(super) fn namesakes(&self, of: &WorkloadKey, labels: &BTreeSet<String>) -> BTreeMap<String, Vec<Namesake>> {
        let own = self.standalone_parent(of).map(|parent| self.assignment.label(parent));
        let labels: BTreeSet<&String> = if of.is_standalone() { own.iter().collect() } else { labels.iter().collect() };
        if of.group().is_some_and(|name| self.group(name).is_none()) {
            return BTreeMap::new();
        }
        let all = labels.into_iter().map(|label| {
            let of_label = |(workload, subject): (WorkloadKey, WorkloadKey)| self.namesake(of, (workload, subject), label);
            (label.clone(), self.first_claimants(of, label).into_iter().filter_map(of_label).collect::<Vec<_>>())
        });
        all.filter(|(_, namesakes)| !namesakes.is_empty()).collect()
    }

    /// Other workloads that request a label or have it, each with the object or group. All groups that have it; of the objects of each group,
    /// and of those with proxies of their own, the two oldest in each state, as one may be of this workload too; and its own objects that move.
    pub(super) fn first_claimants(&self, of: &WorkloadKey, label: &str) -> BTreeSet<(WorkloadKey, WorkloadKey)> {
        let claimants = &self.indices.claimants;
        let is_same_tailnet = self.proxies_of_tailnet(of);
        let proxies = ClaimState::ALL.into_iter().flat_map(|state| {
            let others = claimants.oldest(label, None, state).filter(|object| *object != of);
            others.filter(|object| is_same_tailnet(object)).take(2).map(|object| (object.clone(), object.clone()))
        });
        let of_groups = claimants.groups(label).into_iter().flat_map(|group| {
            let oldest = ClaimState::ALL.into_iter().flat_map(move |state| claimants.oldest(label, Some(group), state).take(2));
            oldest.map(move |object| (WorkloadKey::of_group(group), object.clone()))
        });
        let moves = self.own_claimants(of, label).into_iter().flat_map(|object| {
            let workload = move |claim: &NameClaim| claim.group.as_deref().map_or_else(|| object.clone(), WorkloadKey::of_group);
            claimants.claims(object, label).map(move |claim| (workload(claim), object.clone()))
        });
        let replicas = self.groups_of_host_name(label).map(|group| (group.clone(), group));
        let device = self.reserved(label).map(|device| (device.clone(), device));
        let all = proxies.chain(of_groups).chain(moves).chain(self.holding_groups(label).cloned()).chain(replicas).chain(device);
        all.filter(|(workload, _)| workload != of).collect()
    }

    /// The operator's device, if this label is its own by the settings, whether or not its Service exists.
    fn reserved(&self, label: &str) -> Option<WorkloadKey> {
        let device = self.assignment.device.as_ref().filter(|device| device.hostname == label);
        device.map(|_| own_request(&self.assignment.own_namespace))
    }

    /// Objects by which a workload has or requests a label.
    pub(super) fn own_claimants<'a>(&'a self, of: &'a WorkloadKey, label: &'a str) -> BTreeSet<&'a WorkloadKey> {
        let Some(group) = of.group() else { return [of].into() };
        let requests = ClaimState::ALL.into_iter().flat_map(|state| self.indices.claimants.oldest(label, Some(group), state));
        let recorded = self.holding_groups(label).filter(|(workload, _)| workload == of).map(|(_, object)| object);
        requests.chain(recorded).collect()
    }

    /// Groups and Connectors that have a label, each with the object or itself.
    fn holding_groups(&self, label: &str) -> impl Iterator<Item = &(WorkloadKey, WorkloadKey)> {
        // They are the first keys.
        let holders = self.indices.holders.get(label).into_iter().flat_map(BTreeMap::keys);
        holders.take_while(|(workload, _)| !workload.is_standalone())
    }

    /// Groups of whose replicas one has this host name, or gets it when the group is scaled.
    fn groups_of_host_name(&self, label: &str) -> impl Iterator<Item = WorkloadKey> {
        let prefix = numbered(label).map(|(prefix, _)| prefix.to_owned());
        let groups = prefix.into_iter().flat_map(|prefix| self.groups().filter(move |(_, group)| group.hostname_prefix() == prefix));
        groups.map(|(name, _)| WorkloadKey::of_group(name))
    }

    /// Host names that a group requests for its replicas and that devices of Connectors have.
    pub(super) fn connector_hostnames(&self, key: &WorkloadKey) -> BTreeSet<String> {
        let Some(group) = key.group().and_then(|name| self.group(name)) else { return BTreeSet::new() };
        let replicas = self.connectors().filter_map(|(connector, _)| self.indices.workloads.get(&connector));
        let configs = replicas.flat_map(|members| members.replicas.values()).filter_map(|replica| replica.config.as_ref());
        let requests = |label: &String| {
            numbered(label)
                .is_some_and(|(prefix, number)| prefix == group.hostname_prefix() && u32::from(number) < group.spec.desired_replicas())
        };
        configs.flat_map(|config| config.names()).filter(requests).collect()
    }

    pub(super) fn namesake(&self, of: &WorkloadKey, (workload, subject): (WorkloadKey, WorkloadKey), label: &str) -> Option<Namesake> {
        let claimant = subject.publisher();
        let metadata = match (&claimant, &subject) {
            (Some(claimant), _) => self.claimant(claimant).and_then(|(_, object)| object.user_metadata()),
            (None, WorkloadKey::Connector(name)) => self.get::<Connector>(name).map(|connector| &connector.metadata),
            (None, subject) => self.get::<ProxyGroup>(subject.group_name()).map(|group| &group.metadata),
        };
        let is_live = metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_none());
        let has_record = self.indices.holders.get(label).is_some_and(|holders| holders.contains_key(&(workload.clone(), subject.clone())));
        let is_reserved = self.reserved(label).as_ref() == Some(&workload);
        let holds = match &claimant {
            _ if is_reserved => true,
            // A Connector that has the name leaves it to no replica that only requests it.
            None if matches!(of, WorkloadKey::Connector(_)) && self.holding_groups(label).any(|(holder, _)| holder == of) => has_record,
            None => true,
            Some(_) if workload.is_standalone() => has_record,
            // Another group may take over the Tailscale Service of a deleted object.
            Some(_) => (is_live || of.is_standalone()) && (has_record || self.is_recorded(&workload, label)),
        };
        let requests = || {
            let is_refused = claimant.as_ref().is_some_and(|claimant| self.is_refused(&workload, claimant));
            is_live && !is_refused && workload.group().is_none_or(|name| self.publishes(name))
        };
        let age = owned_age(metadata);
        self.tailnet_of(&workload)?;
        let is_same_tailnet = self.is_same_tailnet(of, &workload);
        (holds || (is_same_tailnet && requests())).then_some(Namesake { workload, subject, age, holds, is_same_tailnet, is_reserved })
    }

    /// Whether a group's config has a name without the object: that of the Tailscale operator does not say for which.
    fn is_recorded(&self, workload: &WorkloadKey, label: &str) -> bool {
        let names = self.indices.recorded_names.get(workload);
        names.is_some_and(|names| names.contains(&service_name(label))) && !self.holding_groups(label).any(|(other, _)| other == workload)
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
        let old = self.refusals.remove(key).unwrap_or_default();
        let changed: Vec<WorkloadKey> = old.symmetric_difference(&refused).map(WorkloadKey::from).collect();
        if !refused.is_empty() {
            self.refusals.insert(key.clone(), refused);
        }
        for object in &changed {
            self.index_claims(object);
        }
    }
}

/// Prefix and number of a host name that a replica of a group can have.
fn numbered(label: &str) -> Option<(&str, u16)> {
    let (prefix, number) = label.rsplit_once('-')?;
    let parsed: u16 = number.parse().ok()?;
    (parsed.to_string() == number).then_some((prefix, parsed))
}

/// Age of an object; one that does not exist is the oldest.
fn owned_age(metadata: Option<&ObjectMeta>) -> (i64, String) {
    metadata.map(age).map_or((i64::MIN, String::new()), |(created, uid)| (created, uid.to_owned()))
}

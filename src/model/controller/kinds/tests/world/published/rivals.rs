//! Who else requests a name of a group, or has it.

use super::*;

impl World {
    /// Proxies that objects of a group have or get, by names that they request from the group or have there.
    pub(super) fn proxies(&self, group: &WorkloadKey) -> Vec<(String, NameConflict)> {
        let config = self.parsed_config(group.group_name());
        let mut proxies = Vec::new();
        for claimant in self.claimants().into_iter().filter(|claimant| self.assignment.standalone.has(&claimant.namespace)) {
            let key = WorkloadKey::from(&claimant);
            let Some(parent) = self.parent(&key).filter(|parent| key != *group && parent.metadata().deletion_timestamp.is_none()) else {
                continue;
            };
            let proxy = self.with_waiting(&self.workload(&key, &self.owned(&key))).0.remove(&0);
            let Some(conflict) = proxy_conflict(parent, &self.assignment, proxy.as_ref()) else { continue };
            let requested = self.request(&claimant).filter(|(of, ..)| *of == *group).map(|(_, label, _)| service_name(&label));
            let recorded = config.origins.iter().filter(|(_, origin)| {
                (&*origin.kind, &*origin.namespace, &*origin.name) == (claimant.source.kind(), &*claimant.namespace, &*claimant.name)
            });
            // This simulation shows a group all certificates with its label, also those of names that it does not have any more.
            let certified = self.objects.values().filter(|stored| {
                let labels = &stored["metadata"]["labels"];
                let is_current = domain_of(stored).is_some_and(|dns| dns.split('.').next() == Some(&parent.label()));
                is_current && labels[names::PROXY_GROUP] == *group.group_name() && labels[names::PARENT] == *claimant.name
            });
            let certified = certified.map(|_| service_name(&parent.label()));
            let all: BTreeSet<_> = requested.into_iter().chain(recorded.map(|(name, _)| name.clone())).chain(certified).collect();
            proxies.extend(all.into_iter().map(|name| (name, conflict.clone())));
        }
        proxies
    }

    /// Requests from other groups, by name.
    pub(super) fn rivals(&self, group: &WorkloadKey) -> Vec<(String, NameConflict)> {
        let rival = |claimant: Publisher| {
            let (other, label, is_live) = self.request(&claimant)?;
            let is_refused = self.hosted.refused.get(&other).is_some_and(|refused| refused.contains(&claimant));
            if other == *group || !is_live || is_refused || !self.groups.contains_key(other.group()?) {
                return None;
            }
            let name = service_name(&label);
            let serving = self.observed_replicas(other.name()).values().any(|replica| serves(replica, &name));
            Some((name, NameConflict { claimant, key: other, serving, is_device: false }))
        };
        self.claimants().into_iter().filter_map(rival).collect()
    }

    /// Objects of a group that the config of another one has.
    pub(super) fn served_by_others(&self, group: &WorkloadKey) -> BTreeSet<Publisher> {
        let is_recorded = |claimant: &Publisher| self.recorded(claimant).iter().any(|other| other != group);
        self.claimants().into_iter().filter(|claimant| self.publishers(claimant).contains(group) && is_recorded(claimant)).collect()
    }

    /// Objects of other groups that have a label, or request it and are not refused.
    pub(super) fn namesakes(&self, group: &WorkloadKey) -> BTreeMap<String, Vec<Namesake>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        let others = self.groups.iter().filter(|(name, _)| Some(name.as_str()) != group.group());
        for (name, other) in others {
            let config = self.parsed_config(name);
            for (recorded, _) in config.origins.iter().filter(|(_, of)| of.kind == PublishSource::ProxyGroup.kind()) {
                let (created, uid) = age(&other.metadata);
                let (workload, age) = (WorkloadKey::of_group(name), (created, uid.to_owned()));
                let namesake =
                    Namesake { subject: workload.clone(), workload, age, holds: true, is_same_tailnet: true, is_reserved: false };
                all.entry(recorded.trim_start_matches(PREFIX).to_owned()).or_default().push(namesake);
            }
            let publishes = other.spec.type_ == ProxyGroupType::Ingress && other.metadata.deletion_timestamp.is_none();
            for claimant in self.claimants() {
                let key = WorkloadKey::of_group(name);
                let id = (claimant.namespace.clone(), claimant.name.clone());
                let metadata = match claimant.source {
                    PublishSource::Ingress => &self.ingresses[&id].metadata,
                    PublishSource::Service => &self.services[&id].metadata,
                    PublishSource::ProxyGroup => continue,
                };
                let requested = self.request(&claimant).filter(|(of, ..)| *of == key).map(|(_, label, _)| label);
                let origin =
                    Origin { kind: claimant.source.kind().into(), namespace: claimant.namespace.clone(), name: claimant.name.clone() };
                let is_refused = self.hosted.refused.get(&key).is_some_and(|refused| refused.contains(&claimant));
                let had =
                    config.origins.iter().filter(|(_, of)| **of == origin).map(|(name, _)| name.trim_start_matches(PREFIX).to_owned());
                let recorded_labels: BTreeSet<String> = had.collect();
                let wanted = requested.filter(|_| publishes && !is_refused).into_iter().chain(recorded_labels.clone());
                for label in wanted.collect::<BTreeSet<_>>().into_iter().filter(|_| metadata.deletion_timestamp.is_none()) {
                    let (created, uid) = age(metadata);
                    let holds = recorded_labels.contains(&label);
                    let (workload, subject, age) = (key.clone(), WorkloadKey::from(&claimant), (created, uid.to_owned()));
                    all.entry(label).or_default().push(Namesake {
                        workload,
                        subject,
                        age,
                        holds,
                        is_same_tailnet: true,
                        is_reserved: false,
                    });
                }
            }
        }
        all
    }
}

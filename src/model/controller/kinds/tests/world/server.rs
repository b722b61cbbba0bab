//! The API server: applies the plan of a pass, and collects garbage.

use super::*;
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::workload::actions::WorkloadStatus;

impl World {
    /// Runs one pass over a group and applies its plan.
    pub(in super::super) fn pass(&mut self, key: impl Into<WorkloadKey>) -> GroupPlan {
        let name = &key.into();
        let observed = self.observe(name);
        let made = plan_with_memo(&observed, self.memory.passes.entry(name.clone()).or_default());
        self.memory.replacements.record(name, made.replaces);
        self.hosted.refused.insert(name.clone(), made.refused.clone());
        let fresh = pass(&observed);
        assert_eq!(made, fresh, "a memory saves time and changes nothing");
        self.act(name, &made);
        made
    }

    pub(in super::super) fn act(&mut self, name: &WorkloadKey, made: &GroupPlan) {
        self.check_addresses(name, made);
        self.write_finalizers(name, made);
        let due = self.memory.schedule.due(name, made.faults.clone(), self.time().as_duration().unsigned_abs()).notices;
        self.events.extend(made.events.iter().chain(&due).map(|event| event.reason));
        for manifest in &made.apply {
            self.apply(manifest);
        }
        for write in &made.slices {
            self.write_slice(write);
        }
        for update in &made.services {
            self.update(name, update);
        }
        self.delete(&made.delete);
        for action in &made.control.iter().filter(|action| !self.denied.contains_key(&action.what())).cloned().collect::<Vec<_>>() {
            match action {
                ControlAction::MintKey { draft, replaces, revokes, .. } => {
                    if replaces.as_ref().is_some_and(|device| !self.delete_device(device)) {
                        continue;
                    }
                    self.keys.retain(|key| Some(key) != revokes.as_ref());
                    self.minted += 1;
                    let id = KeyId::parse(&format!("k{}", self.minted)).expect("an ID");
                    self.keys.insert(id.clone());
                    self.apply(&draft.with_key(&id, &format!("tskey-{}", self.minted), self.now));
                }
                ControlAction::ListServices { .. } => self.hosted.list(self.time()),
                ControlAction::PublishService { desired: vip, recorded, .. } => {
                    let is_device = |device: &Device| service_name(&device.hostname) == vip.name;
                    assert!(!self.devices.values().any(is_device), "the control plane rejects {}: it is the name of a device", vip.name);
                    self.hosted.publish(vip, &self.settings.cluster, *recorded);
                }
                ControlAction::ReleaseService { name: vip } => {
                    let observed = self.observe(name);
                    self.hosted.release(vip, &self.settings.cluster, observed.owning_group());
                }
                ControlAction::RecordDevice { .. } => self.record_device(action),
                ControlAction::ApproveRoutes { device, add, remove, .. } => self.approve_routes(device, add, remove),
                ControlAction::ReadRoutes { device } => self.read_routes(device),
                ControlAction::DeleteDevice { device, then, .. } => {
                    self.delete_device(device);
                    self.delete(then);
                }
                ControlAction::RevokeKey { id, then, .. } => {
                    self.keys.remove(id);
                    self.delete(then);
                }
            }
        }
        self.write_status(name, made);
        self.collect();
    }

    /// Writes finalizers of a workload's parent.
    fn write_finalizers(&mut self, name: &WorkloadKey, made: &GroupPlan) {
        if let Some(finalizers) = made.group.as_ref().and_then(|update| update.finalizers.clone()) {
            self.writes += 1;
            let group = self.groups.get_mut(name.group_name()).map(|group| &mut group.metadata);
            let connector =
                self.connectors.get_mut(name.name()).filter(|_| name.group().is_none()).map(|connector| &mut connector.metadata);
            if let Some(metadata) = group.or(connector) {
                metadata.finalizers = Some(finalizers);
            }
        }
    }

    /// Writes the status of a workload's parent.
    fn write_status(&mut self, name: &WorkloadKey, made: &GroupPlan) {
        match made.group.as_ref().and_then(|update| update.status.clone()) {
            Some(WorkloadStatus::Group(status)) => {
                self.writes += 1;
                self.groups.get_mut(name.group_name()).expect("a group").status = Some(status);
            }
            Some(WorkloadStatus::Connector(status)) => {
                self.writes += 1;
                self.connectors.get_mut(name.name()).expect("a Connector").status = Some(status);
            }
            None => {}
        }
    }

    pub(super) fn apply(&mut self, manifest: &Manifest) {
        self.writes += 1;
        let mut value = manifest.value.clone();
        let stored = self.objects.get(&manifest.object).cloned();
        let uid = stored.as_ref().map_or_else(|| json!(self.id()), |stored| stored["metadata"]["uid"].clone());
        value["metadata"]["uid"] = uid;
        let now = json!(self.time().to_string());
        value["metadata"]["creationTimestamp"] = stored.as_ref().map_or(now, |stored| stored["metadata"]["creationTimestamp"].clone());
        if value["spec"]["selector"].is_object() && !self.families.is_empty() {
            value["spec"]["ipFamilies"] = json!(self.families);
        }
        if let Some(data) = stored.as_ref().map(|stored| stored["data"].clone()).filter(|_| value["data"].is_null()) {
            value["data"] = data;
        }
        self.objects.insert(manifest.object.clone(), Arc::new(value));
    }

    pub(super) fn delete(&mut self, deletes: &[Delete]) {
        for delete in deletes {
            self.writes += 1;
            let stored = self.objects.remove(&delete.object);
            let Some(uid) = delete.uid.as_deref() else { continue };
            assert!(stored.is_some_and(|stored| stored["metadata"]["uid"].as_str() == Some(uid)), "{delete:?}");
        }
    }

    pub(super) fn update(&mut self, group: &WorkloadKey, update: &ObjectUpdate) {
        if let Some(ExternalNameUpdate { name: Some(host), .. }) = &update.external_name
            && host.starts_with("ts-")
        {
            self.acknowledged(group, host);
        }
        let key = (update.namespace.clone(), update.name.clone());
        if update.source == PublishSource::Ingress {
            let Some(ingress) = self.ingresses.get_mut(&key) else { return };
            if let Some(finalizers) = &update.finalizers {
                self.writes += 1;
                ingress.metadata.finalizers = Some(finalizers.clone());
            }
            if let Some(balancer) = &update.load_balancer {
                self.writes += 1;
                ingress.status = serde_json::from_value(json!({"loadBalancer": balancer})).expect("a status");
            }
            return;
        }
        let Some(service) = self.services.get_mut(&key) else { return };
        if let Some(finalizers) = &update.finalizers {
            self.writes += 1;
            service.metadata.finalizers = Some(finalizers.clone());
        }
        if let Some(ExternalNameUpdate { name, former }) = &update.external_name {
            // One request with the finalizer.
            self.writes += u64::from(update.finalizers.is_none());
            if let Some(name) = name {
                service.spec.as_mut().expect("a spec").external_name = Some(name.clone());
            }
            let annotations = service.metadata.annotations.get_or_insert_default();
            match former {
                Some(former) => drop(annotations.insert(names::FORMER_EXTERNAL_NAME.to_owned(), former.clone())),
                None => drop(annotations.remove(names::FORMER_EXTERNAL_NAME)),
            }
        }
        if let Some(conditions) = &update.conditions {
            self.writes += 1;
            service.status.get_or_insert_default().conditions = Some(conditions.clone());
        }
        if let Some(balancer) = &update.load_balancer {
            self.writes += 1;
            service.status.get_or_insert_default().load_balancer = serde_json::from_value(balancer.clone()).expect("a status");
        }
    }

    /// Removes objects that are being deleted without finalizers, and their dependents.
    pub(in super::super) fn collect(&mut self) {
        let empty = |finalizers: &Option<Vec<String>>| finalizers.as_ref().is_none_or(Vec::is_empty);
        self.services.retain(|_, stored| stored.metadata.deletion_timestamp.is_none() || !empty(&stored.metadata.finalizers));
        self.ingresses.retain(|_, stored| stored.metadata.deletion_timestamp.is_none() || !empty(&stored.metadata.finalizers));
        self.connectors.retain(|_, stored| stored.metadata.deletion_timestamp.is_none() || !empty(&stored.metadata.finalizers));
        self.groups.retain(|_, stored| stored.metadata.deletion_timestamp.is_none() || !empty(&stored.metadata.finalizers));
        let services = self.objects.iter().filter(|(object, _)| object.kind == Kind::Service);
        let services = services.filter_map(|(_, stored)| stored["metadata"]["uid"].as_str().map(str::to_owned));
        let ingresses = self.ingresses.values().filter_map(|stored| stored.metadata.uid.clone());
        let groups = self.groups.values().filter_map(|stored| stored.metadata.uid.clone());
        let uids: BTreeSet<_> = groups.chain(services).chain(ingresses).collect();
        let owner = |stored: &Value| stored["metadata"]["ownerReferences"][0]["uid"].as_str().map(str::to_owned);
        self.objects.retain(|_, stored| owner(stored).is_none_or(|uid| uids.contains(&uid)));
    }
}

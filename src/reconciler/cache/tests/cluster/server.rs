//! The API server and the control plane: apply the plan of a pass.

use super::*;
use crate::model::controller::workload::secret_name::SecretName;

impl Cluster {
    pub(in super::super) fn act(&mut self, key: &str, plan: &GroupPlan) {
        self.cache.record_refusals(&key.into(), plan.refused.clone());
        if !self.cache.reserve_names(&key.into(), &plan.new_names, Instant::now()) {
            return;
        }
        let lasting = self.schedule.due(&key.into(), plan.faults.clone(), self.time().as_duration().unsigned_abs()).notices;
        self.events
            .extend(plan.events.iter().chain(&lasting).map(|event| format!("{} {}: {}", event.subject, event.reason, event.message)));
        if let Some(update) = &plan.group {
            let (kind, name) = key.strip_prefix("Connector ").map_or(("ProxyGroup", key), |name| ("Connector", name));
            if let Some(finalizers) = &update.finalizers {
                self.patch(kind, "", name, &json!({"metadata": {"finalizers": finalizers}}));
            }
            if let Some(status) = &update.status {
                self.patch(kind, "", name, &json!({"status": status}));
            }
        }
        let released = key.strip_prefix("Connector ").filter(|_| plan.group.as_ref().is_some_and(|update| update.status.is_none()));
        // After a conflict the rest of the plan waits for the next pass.
        for manifest in &plan.apply {
            if !self.apply(key, manifest) {
                return;
            }
        }
        for update in &plan.services {
            self.update(update);
        }
        self.delete(key, &plan.delete);
        for action in &plan.control {
            self.control(key, action);
        }
        if let Some(name) = released {
            self.remove_released(&("Connector", String::new(), name.to_owned()));
        }
    }

    /// Removes an object in deletion without finalizers.
    fn remove_released(&mut self, id: &ObjectId) {
        let metadata = &self.objects[id]["metadata"];
        if metadata["deletionTimestamp"].is_string() && metadata["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.remove(id);
        }
    }

    /// Writes an object as `Applier::apply_one` does: with force if the cache has an object of that name. Returns false for a conflict. It
    /// makes the same checks of an existing object, or the tests of collisions test less than what runs.
    fn apply(&mut self, key: &str, manifest: &Manifest) -> bool {
        let object = &manifest.object;
        let id = (object.kind.name(), object.namespace.clone(), object.name.clone());
        let mut value = manifest.value.clone();
        if let Some(existing) = self.objects.get(&id).cloned() {
            if !manifest.replaces() {
                let existing = WatchRole::Owned(object.kind).decode(existing).parse();
                self.cache.found(&key.into(), object.clone(), &existing, Instant::now());
                return false;
            }
            let differs = |field: &str| !value["metadata"][field].is_null() && value["metadata"][field] != existing["metadata"][field];
            if differs("uid") || differs("resourceVersion") {
                return false;
            }
            if self.owners[&id] != owner(&value) {
                self.takeovers.push(format!("{key} writes {object} of {}", self.owners[&id]));
            }
            value = merged(object.kind, &existing, value);
        }
        self.writes.push(format!("{key} writes {object}"));
        self.owners.insert(id.clone(), owner(&manifest.value));
        self.put(id.0, value);
        true
    }

    fn delete(&mut self, key: &str, deletes: &[Delete]) {
        for Delete { object, uid } in deletes {
            let id = (object.kind.name(), object.namespace.clone(), object.name.clone());
            if self.objects.get(&id).is_none_or(|existing| uid.is_some() && existing["metadata"]["uid"].as_str() != uid.as_deref()) {
                continue;
            }
            if !is_of(key, &self.owners[&id]) {
                self.takeovers.push(format!("{key} deletes {object} of {}", self.owners[&id]));
            }
            // A finalizer of another writer holds an object that is being deleted, but no Secret that Pods may write.
            let metadata = &self.objects[&id]["metadata"];
            let is_written_by_pods = object.kind == Kind::Secret && SecretName::parse(&object.name).is_written_by_pods();
            if !is_written_by_pods && metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
                if metadata["deletionTimestamp"].is_null() {
                    let moment = self.time().to_string();
                    self.patch(id.0, &id.1.clone(), &id.2.clone(), &json!({"metadata": {"deletionTimestamp": moment}}));
                }
                continue;
            }
            self.writes.push(format!("{key} deletes {object}"));
            self.remove(&id);
        }
    }

    fn control(&mut self, key: &str, action: &ControlAction) {
        match action {
            ControlAction::MintKey { draft, replaces, tags, .. } => {
                if replaces.as_ref().is_some_and(|device| !delete_device(&mut self.devices, device)) {
                    return;
                }
                self.minted.push(MintedKey { of: key.to_owned(), tags: tags.as_slice().to_vec() });
                let number = self.minted.len();
                let manifest = draft.with_key(&KeyId::parse(&format!("k{number}")).expect("an ID"), &format!("tskey-{number}"), self.now);
                self.apply(key, &manifest);
            }
            ControlAction::RecordDevice { .. } => {
                let now = self.time();
                if let Some(config) = record_device(&self.devices, &mut self.device_reads, action, now) {
                    self.apply(key, &config);
                }
            }
            ControlAction::DeleteDevice { device, then, .. } => {
                delete_device(&mut self.devices, device);
                self.delete(key, then);
            }
            ControlAction::RevokeKey { then, .. } => self.delete(key, then),
            ControlAction::ListServices { .. } => self.list_services(),
            ControlAction::PublishService { desired, recorded, .. } => {
                let number = self.vips.len();
                if let OwnershipVerdict::Write { service, .. } =
                    verify_owner(self.vips.get(&desired.name), desired, &self.settings.cluster, *recorded)
                {
                    let vip = self.vips.entry(desired.name.clone()).or_default();
                    let addrs = vec![format!("100.99.0.{number}"), format!("fd7a:115c:a1e0::{number}")];
                    *vip = VipService { addrs: if vip.addrs.is_empty() { addrs } else { vip.addrs.clone() }, ..*service };
                }
                self.list_services();
            }
            ControlAction::ReleaseService { name } => {
                match release(self.vips.get(name), &self.settings.cluster, key) {
                    Release::Nothing => {}
                    Release::Delete => drop(self.vips.remove(name)),
                    Release::Write(vip) => drop(self.vips.insert(name.clone(), *vip)),
                }
                self.list_services();
            }
            ControlAction::ReadRoutes { device } => {
                let exit = ["0.0.0.0/0", "::/0"].map(str::to_owned).into();
                self.approved.insert(device.id.clone(), Approved { at: self.time(), routes: exit, fault: None });
            }
            ControlAction::ApproveRoutes { .. } => {}
        }
    }

    fn list_services(&mut self) {
        self.listed = Some(Arc::new(ServiceList { at: self.time(), services: self.vips.clone().into_iter().collect() }));
    }

    /// Changes a user's object.
    fn update(&mut self, update: &ObjectUpdate) {
        let mut patch = json!({});
        if let Some(finalizers) = &update.finalizers {
            patch["metadata"]["finalizers"] = json!(finalizers);
        }
        if let Some(external) = &update.external_name {
            patch["metadata"]["annotations"][names::FORMER_EXTERNAL_NAME] = json!(external.former);
            if let Some(name) = &external.name {
                patch["spec"]["externalName"] = json!(name);
            }
        }
        if let Some(conditions) = &update.conditions {
            patch["status"]["conditions"] = json!(conditions);
        }
        if let Some(balancer) = &update.load_balancer {
            patch["status"]["loadBalancer"] = json!({"ingress": balancer.get("ingress")});
        }
        let kind = update.source.kind();
        self.patch(kind, &update.namespace, &update.name, &patch);
        self.remove_released(&(kind, update.namespace.clone(), update.name.clone()));
    }
}

/// The result of an apply: what a Pod or a user added to a Secret that Pods write stays; other objects are as desired.
fn merged(kind: Kind, existing: &Value, mut desired: Value) -> Value {
    for field in ["finalizers", "deletionTimestamp"] {
        if desired["metadata"][field].is_null() {
            desired["metadata"][field] = existing["metadata"][field].clone();
        }
    }
    let name = desired["metadata"]["name"].as_str().unwrap_or_default();
    if kind == Kind::Secret && !name.ends_with(names::CONFIG_SECRET_SUFFIX) {
        let mut whole = existing.clone();
        merge(&mut whole, &desired);
        return whole;
    }
    desired
}

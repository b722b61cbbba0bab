//! Devices of the control plane, and their records.

use super::*;
use crate::model::controller::kinds::tests::simulation;
use crate::model::controller::workload::observed::Approved;

impl World {
    /// A device joins with a new key.
    pub(in super::super) fn joined(&mut self, id: DeviceId, tags: Vec<String>) {
        self.next += 1;
        let device = simulation::joined(&id, self.next, tags, self.time());
        self.devices.insert(id, device);
    }

    /// The control plane names a device; returns its addresses.
    pub(in super::super) fn name_device(&mut self, id: &DeviceId, hostname: &str) -> Vec<String> {
        let (renamed, has_domains) = (self.renamed, self.tailnet != headscale());
        let Some(device) = self.devices.get_mut(id) else { return vec!["100.64.0.1".to_owned()] };
        simulation::name_device(device, hostname, renamed, has_domains);
        device.addresses.texts()
    }

    /// Devices and joining host names of all config Secrets.
    pub(super) fn device_index(&self) -> DeviceIndex {
        let mut index = DeviceIndex::default();
        let configs = self.objects.iter().filter(|(object, _)| object.kind == Kind::Secret && object.name.ends_with("-config"));
        for (object, stored) in configs {
            let config = self.replica_by([None, Some(stored.clone())]).config.expect("a config");
            index.follow(&object.name, &config.entry(), true);
        }
        index
    }

    /// Reads a device and writes its record.
    pub(super) fn record_device(&mut self, action: &ControlAction) {
        self.device_requests += 1;
        let now = self.time();
        if let Some(config) = simulation::record_device(&self.devices, &mut self.device_reads, action, now) {
            self.apply(&config);
        }
    }

    /// Deletes a device if it is as expected; returns whether it is gone.
    pub(super) fn delete_device(&mut self, device: &ClaimedDevice) -> bool {
        let is_gone = simulation::delete_device(&mut self.devices, device);
        if is_gone {
            self.hosted.approved.remove(&device.id);
        }
        is_gone
    }

    /// Approves routes of a device, if it exists.
    pub(super) fn approve_routes(&mut self, device: &ClaimedDevice, add: &BTreeSet<String>, remove: &BTreeSet<String>) {
        if simulation::find(&self.devices, device).expect("routes of a foreign device").is_some() {
            let now = self.time();
            self.hosted.approve(&device.id, add, remove, now);
        }
    }

    /// Reads the approved routes of a device: the policy approves all that a config has, with exceptions.
    pub(super) fn read_routes(&mut self, ClaimedDevice { id, .. }: &ClaimedDevice) {
        let configs = self.objects.iter().filter(|(object, _)| object.kind == Kind::Secret && object.name.ends_with("-config"));
        let configs = configs.filter_map(|(_, stored)| self.replica_by([None, Some(stored.clone())]).config);
        let routes: BTreeSet<String> = configs.flat_map(|config| config.routes().map(str::to_owned).collect::<Vec<_>>()).collect();
        let unapproved = &self.hosted.unapproved;
        let is_approved = |route: &String| !unapproved.contains(route) && !unapproved.contains(&format!("{id} {route}"));
        let routes = routes.into_iter().filter(is_approved).collect();
        let fault = self.hosted.routes_fault.clone();
        self.hosted.approved.insert(id.clone(), Approved { at: self.time(), routes, fault });
    }

    /// Records by config Secret.
    pub(in super::super) fn device_records(&self) -> BTreeMap<String, DeviceRecord> {
        let annotation = |stored: &Value| serde_json::from_str(stored["metadata"]["annotations"][names::DEVICE].as_str()?).ok();
        self.objects.iter().filter_map(|(object, stored)| Some((object.name.clone(), annotation(stored)?))).collect()
    }

    /// Every address in a planned status is that of a record or of a Tailscale Service, or was shown before; names of devices likewise.
    pub(super) fn check_addresses(&self, key: &WorkloadKey, made: &GroupPlan) {
        let records = self.device_records();
        let mut permitted: BTreeSet<String> = records.values().flat_map(|record| record.addresses.texts()).collect();
        let names = records.values().filter_map(|record| record.name.as_ref());
        permitted.extend(names.flat_map(|name| [name.as_str().to_owned(), name.host().to_owned()]));
        let status = made.group.as_ref().and_then(|update| update.status.clone()?.group());
        let shown_before = |status: &crate::api::proxygroup::ProxyGroupStatus| status.devices.clone();
        let before = self.groups.values().filter_map(|group| group.status.as_ref()).flat_map(shown_before);
        permitted.extend(before.flat_map(|device| device.tailnet_ips.into_iter().chain([device.hostname])));
        for device in status.iter().flat_map(|status| &status.devices) {
            for shown in device.tailnet_ips.iter().chain([&device.hostname]) {
                assert!(permitted.contains(shown), "{shown} is of no record: {permitted:?}");
            }
        }
        // A group shows addresses of Tailscale Services or of the cluster.
        let services = made.services.iter().filter(|update| update.source == PublishSource::Service);
        for update in services.filter(|_| key.is_standalone()) {
            let entries = update.load_balancer.as_ref().and_then(|balancer| balancer["ingress"].as_array());
            for entry in entries.into_iter().flatten() {
                for shown in ["ip", "hostname"].into_iter().filter_map(|field| entry[field].as_str()) {
                    assert!(permitted.contains(shown), "{shown} is of no record: {permitted:?}");
                }
            }
        }
    }
}

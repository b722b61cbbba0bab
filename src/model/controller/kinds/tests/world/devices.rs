//! Devices of the control plane, and their records.

use super::*;
use crate::model::controller::workload::identity::{DeviceAddresses, DeviceLabel, DeviceName};

/// Domain of the tailnet.
const DOMAIN: &str = "tail1234.ts.net";

impl World {
    /// A device joins with a new key.
    pub(super) fn joined(&mut self, id: DeviceId, tags: Vec<String>) {
        self.next += 1;
        let addresses = DeviceAddresses::parse([&*format!("100.64.{}.{}", self.next / 250, self.next % 250 + 1)]);
        let device = Device { tags, addresses, created: Some(self.time()), ..Device::default() };
        self.devices.insert(id, device);
    }

    /// The control plane names a device after its host; returns its addresses. headscale reports the first label alone.
    pub(super) fn name_device(&mut self, id: &DeviceId, hostname: &str) -> Vec<String> {
        let (renamed, has_domains) = (self.renamed, self.tailnet != headscale());
        let Some(device) = self.devices.get_mut(id) else { return vec!["100.64.0.1".to_owned()] };
        hostname.clone_into(&mut device.hostname);
        let host = format!("{hostname}{renamed}");
        let whole = || DeviceName::parse(&format!("{host}.{DOMAIN}")).map_or(DeviceLabel::Unknown, DeviceLabel::Whole);
        device.name = if has_domains { whole() } else { DeviceLabel::Host(host.clone()) };
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

    /// Reads and records a device as the reconciler does, if it matches and the recorded one is gone or the same.
    pub(super) fn record_device(&mut self, action: &ControlAction) {
        let ControlAction::RecordDevice { device, domain, report, recorded, draft, .. } = action else { return };
        self.device_requests += 1;
        let is_free = |recorded: &DeviceRecord| recorded.id == device.id || !self.devices.contains_key(&recorded.id);
        let found = self.devices.get(&device.id).filter(|_| recorded.as_ref().is_none_or(is_free));
        let found = found.filter(|found| device.expected.check(&device.id, found).is_ok()).cloned();
        let record = found.map(|found| DeviceRecord::new(device.id.clone(), found, domain.as_deref()));
        let is_confirmed = record.as_ref().is_some_and(|record| report.confirms(record, domain.as_deref()));
        let before = self.device_reads.get(&device.id).map_or(0, |read| read.unconfirmed);
        let unconfirmed = if is_confirmed { 0 } else { before + 1 };
        self.device_reads.insert(device.id.clone(), DeviceRead { at: self.time(), unconfirmed });
        if let Some(record) = record.filter(|record| Some(record) != recorded.as_ref()) {
            self.apply(&draft.with_device(record));
        }
    }

    /// Deletes a device as the reconciler does, if it matches.
    pub(super) fn delete_device(&mut self, device: &ClaimedDevice) {
        if self.devices.get(&device.id).is_none_or(|found| device.expected.check(&device.id, found).is_ok()) {
            self.devices.remove(&device.id);
            self.hosted.approved.remove(&device.id);
        }
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
        let status = made.group.as_ref().and_then(|update| update.status.as_ref());
        let shown_before = |status: &crate::api::proxygroup::ProxyGroupStatus| status.devices.clone();
        let before = self.groups.values().filter_map(|group| group.status.as_ref()).flat_map(shown_before);
        permitted.extend(before.flat_map(|device| device.tailnet_ips.into_iter().chain([device.hostname])));
        for device in status.into_iter().flat_map(|status| &status.devices) {
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

pub(in super::super) fn device_id(replica: &str) -> DeviceId {
    DeviceId::parse(&format!("n{}", replica.replace('-', ""))).expect("letters and digits")
}

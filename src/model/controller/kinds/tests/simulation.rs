//! Parts that the simulated clusters of tests share: rounds of passes, and the control plane's devices.

use std::collections::BTreeMap;

use imbl::OrdMap;
use k8s_openapi::jiff::Timestamp;

use crate::model::controller::workload::actions::{ClaimedDevice, ControlAction};
use crate::model::controller::workload::device_claim::DeviceClaim;
use crate::model::controller::workload::identity::{Device, DeviceAddresses, DeviceId, DeviceLabel, DeviceName, Mismatch};
use crate::model::controller::workload::objects::Manifest;
use crate::model::controller::workload::observed::DeviceRead;

/// Domain of the tailnet.
pub(crate) const DOMAIN: &str = "tail1234.ts.net";

/// A cluster whose reconciler, kubelets and replicas act in rounds.
pub(crate) trait Simulation {
    /// Rounds after which a cluster that still changes is a failure.
    const MAX_ROUNDS: usize;

    /// Runs one pass over every workload, then kubelets and replicas; returns whether a pass changed something.
    fn round(&mut self) -> bool;

    fn wait(&mut self, seconds: i64);

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.round();
        }
    }

    /// Runs rounds until nothing changes, now or later; returns whether that was reached.
    fn settles(&mut self) -> bool {
        let mut quiet = 0;
        for _ in 0..Self::MAX_ROUNDS {
            if self.round() {
                quiet = 0;
            } else {
                quiet += 1;
                self.wait(70);
            }
            if quiet == 3 {
                return true;
            }
        }
        false
    }
}

/// ID of the device of a replica.
pub(crate) fn device_id(replica: &str) -> DeviceId {
    DeviceId::parse(&format!("n{}", replica.replace('-', ""))).expect("letters and digits")
}

/// A device that joins; its address follows from a number.
pub(crate) fn joined(id: &DeviceId, number: u64, tags: Vec<String>, created: Timestamp) -> Device {
    let four = format!("100.64.{}.{}", number / 250, number % 250 + 1);
    let addresses = DeviceAddresses::parse([&*four, &*format!("fd7a:115c:a1e0::{:x}", number + 1)]);
    Device { id: id.to_string(), tags, addresses, created: Some(created), ..Device::default() }
}

/// The control plane names a device after its host, with a suffix if the name is taken; one without domains reports the first label alone.
pub(crate) fn name_device(device: &mut Device, hostname: &str, suffix: &str, has_domains: bool) {
    hostname.clone_into(&mut device.hostname);
    let host = format!("{hostname}{suffix}");
    let whole = || DeviceName::parse(&format!("{host}.{DOMAIN}")).map_or(DeviceLabel::Unknown, DeviceLabel::Whole);
    device.name = if has_domains { whole() } else { DeviceLabel::Host(host.clone()) };
}

/// Reads a claimed device; returns the replica's config Secret with the new record, if it changes.
pub(crate) fn record_device(
    devices: &BTreeMap<DeviceId, Device>,
    reads: &mut OrdMap<DeviceId, DeviceRead>,
    action: &ControlAction,
    now: Timestamp,
) -> Option<Manifest> {
    let ControlAction::RecordDevice { device, domain, report, recorded, draft, .. } = action else { return None };
    let claim = DeviceClaim { device, domain: domain.as_deref(), report, recorded: recorded.as_ref() };
    if claim.former().is_some_and(|former| find(devices, &former) != Ok(None)) {
        return None;
    }
    let found = find(devices, device);
    let exists = found != Ok(None);
    let (record, read) = claim.read((found.unwrap_or_default(), exists), reads.get(&device.id), now);
    reads.insert(device.id.clone(), read);
    record.filter(|record| Some(record) != recorded.as_ref()).map(|record| draft.with_device(record))
}

/// Deletes a device if it is as expected; returns whether it is gone.
pub(crate) fn delete_device(devices: &mut BTreeMap<DeviceId, Device>, device: &ClaimedDevice) -> bool {
    let found = find(devices, device);
    if let Ok(Some(_)) = found {
        devices.remove(&device.id);
    }
    found.is_ok()
}

/// Reads a device: as [`crate::edge::control::ControlClient::device`].
pub(crate) fn find(devices: &BTreeMap<DeviceId, Device>, device: &ClaimedDevice) -> Result<Option<Device>, Mismatch> {
    devices.get(&device.id).map_or(Ok(None), |found| device.expected.find(&device.id, found.clone()))
}

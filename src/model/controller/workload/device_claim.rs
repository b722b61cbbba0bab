//! Device claims: the record that follows from the control plane's answer about the device that a replica reports.

use k8s_openapi::jiff::Timestamp;

use crate::model::controller::workload::actions::{ClaimedDevice, DeviceReport};
use crate::model::controller::workload::identity::{Binding, Device, DeviceRecord, ExpectedDevice};
use crate::model::controller::workload::observed::DeviceRead;

/// A replica's claim of a device.
#[derive(Debug)]
pub struct DeviceClaim<'a> {
    pub device: &'a ClaimedDevice,
    /// Domain of the tailnet, for a control plane that reports none.
    pub domain: Option<&'a str>,
    pub report: &'a DeviceReport,
    pub recorded: Option<&'a DeviceRecord>,
}

impl DeviceClaim<'_> {
    /// Whether the device is the recorded one.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some_and(|recorded| recorded.id == self.device.id)
    }

    /// The recorded device, if it is another one: the claim holds only if the control plane no longer has it.
    pub fn former(&self) -> Option<ClaimedDevice> {
        let former = self.recorded.filter(|recorded| recorded.id != self.device.id)?;
        let expected = ExpectedDevice { binding: Binding::Reread, created: former.created, ..ExpectedDevice::default() };
        Some(ClaimedDevice { id: former.id.clone(), expected })
    }

    /// The record of the claimed device, and this read of it. `found`: the device, if it is as expected; `exists`: whether the control plane
    /// has it; `before`: the read before.
    pub fn read(
        &self,
        (found, exists): (Option<Device>, bool),
        before: Option<&DeviceRead>,
        at: Timestamp,
    ) -> (Option<DeviceRecord>, DeviceRead) {
        let record = found.map(|found| DeviceRecord::new(self.device.id.clone(), found, self.domain));
        let is_confirmed = record.as_ref().is_some_and(|record| self.report.confirms(record, self.domain));
        let unconfirmed = if is_confirmed { 0 } else { before.map_or(0, |read| read.unconfirmed).saturating_add(1) };
        let missing = if exists { 0 } else { before.map_or(0, |read| read.missing).saturating_add(1) };
        (record, DeviceRead { at, unconfirmed, missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::workload::identity::{DeviceAddresses, DeviceId, DeviceLabel, DeviceName};

    #[test]
    fn unconfirmed_reads_are_counted_until_one_is_confirmed() {
        let name = DeviceName::parse("web.tail1.ts.net").expect("a name");
        let addresses = DeviceAddresses::parse(["100.64.0.1"]);
        let report = DeviceReport { name: Some(name.clone()), addresses: addresses.clone() };
        let device = ClaimedDevice { id: DeviceId::parse("n1").expect("an ID"), expected: ExpectedDevice::default() };
        let claim = DeviceClaim { device: &device, domain: None, report: &report, recorded: None };
        let found = Device { name: DeviceLabel::Whole(name), addresses, ..Device::default() };
        let mut last = None;
        let mut read = |found: Option<Device>| {
            let (record, read) = claim.read((found, true), last.as_ref(), Timestamp::UNIX_EPOCH);
            last = Some(read);
            (record.is_some(), read.unconfirmed)
        };
        let unnamed = Device { name: DeviceLabel::Unknown, ..found.clone() };
        assert_eq!([None, Some(unnamed), Some(found), None].map(&mut read), [(false, 1), (true, 2), (true, 0), (false, 1)]);
    }

    #[test]
    fn another_recorded_device_must_be_gone() {
        let report = DeviceReport { name: None, addresses: DeviceAddresses::default() };
        let [first, second] =
            ["n1", "n2"].map(|id| ClaimedDevice { id: DeviceId::parse(id).expect("an ID"), expected: ExpectedDevice::default() });
        let created = Some(Timestamp::UNIX_EPOCH);
        let recorded = DeviceRecord::new(first.id.clone(), Device { created, ..Device::default() }, None);
        let former = |device, recorded| DeviceClaim { device, domain: None, report: &report, recorded }.former();
        assert_eq!(
            [former(&first, None), former(&first, Some(&recorded)), former(&second, Some(&recorded))],
            [
                None,
                None,
                Some(ClaimedDevice {
                    id: first.id.clone(),
                    expected: ExpectedDevice { binding: Binding::Reread, created: Some(0), ..ExpectedDevice::default() }
                })
            ]
        );
    }
}

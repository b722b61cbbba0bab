//! Device checks: reads of claimed devices, and reservations against concurrent requests of two replicas.
//!
//! A pass decides from a snapshot, and passes over two workloads run at the same time. So the first request for a device or host name
//! reserves it until the snapshots of later passes have its result.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use imbl::OrdMap;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{ControlPlanes, Denied};
use crate::model::controller::workload::actions::{ClaimedDevice, DeviceReport};
use crate::model::controller::workload::identity::{Binding, DeviceId, DeviceRecord, ExpectedDevice};
use crate::model::controller::workload::observed::DeviceRead;

/// Time after which the snapshot of each pass has the result of a request.
const RESERVATION: Duration = Duration::from_secs(10);
/// Time after which a replica repeats a request that another one's reservation has delayed.
pub(super) const RETRY: Duration = Duration::from_secs(2);

type Tailnet = Option<String>;

/// Reads of devices, and reserved devices and host names with their replicas.
#[derive(Debug, Default)]
pub(super) struct DeviceRequests {
    reads: Mutex<HashMap<Tailnet, OrdMap<DeviceId, DeviceRead>>>,
    reserved: Mutex<HashMap<(Tailnet, String), (String, Instant)>>,
}

/// A replica's claim of a device.
#[derive(Debug)]
pub struct DeviceClaim<'a> {
    pub replica: String,
    pub device: ClaimedDevice,
    /// Domain of the tailnet, for a control plane that reports none.
    pub domain: Option<&'a str>,
    pub report: &'a DeviceReport,
    pub recorded: Option<&'a DeviceRecord>,
}

impl DeviceRequests {
    /// Forgets the reads of a replaced control plane.
    pub(super) fn forget(&self, tailnet: Option<&str>) {
        self.reads().remove(&tailnet.map(str::to_owned));
    }

    pub(super) fn gone(&self, tailnet: Option<&str>, id: &DeviceId) {
        self.reads().get_mut(&tailnet.map(str::to_owned)).map(|reads| reads.remove(id));
    }

    fn record(&self, tailnet: Option<&str>, id: &DeviceId, is_confirmed: bool) {
        let mut all = self.reads();
        let reads = all.entry(tailnet.map(str::to_owned)).or_default();
        let unconfirmed = if is_confirmed { 0 } else { reads.get(id).map_or(0, |read| read.unconfirmed).saturating_add(1) };
        reads.insert(id.clone(), DeviceRead { at: Timestamp::now(), unconfirmed });
    }

    /// Reserves a device or host name for a replica, unless it is reserved for another one.
    fn reserve(&self, tailnet: Option<&str>, what: &'static str, subject: &str, replica: &str) -> Result<(), Denied> {
        let (now, key) = (Instant::now(), (tailnet.map(str::to_owned), subject.to_owned()));
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.retain(|_, (_, begin)| now.duration_since(*begin) < RESERVATION);
        if reserved.get(&key).is_some_and(|(other, _)| other != replica) {
            return Err(Denied::Concurrent { what, subject: subject.to_owned() });
        }
        reserved.insert(key, (replica.to_owned(), now));
        Ok(())
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<Tailnet, OrdMap<DeviceId, DeviceRead>>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlPlanes {
    /// Last reads of a tailnet's devices.
    pub fn device_reads(&self, tailnet: Option<&str>) -> OrdMap<DeviceId, DeviceRead> {
        self.devices.reads().get(&tailnet.map(str::to_owned)).cloned().unwrap_or_default()
    }

    /// Reserves a host name for the next device of a replica.
    pub fn reserve_hostname(&self, tailnet: Option<&str>, hostname: &str, replica: &str) -> Result<(), Denied> {
        self.devices.reserve(tailnet, "make an auth key", &format!("host name {}", hostname.to_ascii_lowercase()), replica)
    }

    /// Checks the device that a replica claims, and returns its record. A record of another device is replaced only if that device no
    /// longer exists.
    pub async fn check_device(&self, tailnet: Option<&str>, claim: DeviceClaim<'_>) -> Result<DeviceRecord, Denied> {
        let DeviceClaim { replica, device: ClaimedDevice { id, expected }, domain, report, recorded } = claim;
        let client = self.plane(tailnet)?;
        self.devices.reserve(tailnet, "check a device", &format!("device {id}"), &replica)?;
        let exists = ExpectedDevice { binding: Binding::Reread, ..ExpectedDevice::default() };
        if let Some(recorded) = recorded.filter(|recorded| recorded.id != id)
            && client.device(&recorded.id, &exists).await?.is_some()
        {
            return Err(Denied::Claim { claimed: id, recorded: recorded.id.clone() });
        }
        let found = client.device(&id, &expected).await;
        if !matches!(found, Ok(Some(_))) {
            self.devices.record(tailnet, &id, false);
        }
        let found = found?.ok_or_else(|| Denied::UnknownDevice(id.clone()))?;
        let record = DeviceRecord::new(id, found, domain);
        self.devices.record(tailnet, &record.id, report.confirms(&record, domain));
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reservation_is_of_one_replica_until_it_ends() {
        let controls = ControlPlanes::new(true);
        let reserve = |tailnet, hostname: &str, replica| controls.reserve_hostname(tailnet, hostname, replica).is_ok();
        assert_eq!([reserve(None, "shop", "a-0"), reserve(None, "shop", "a-0"), reserve(None, "Shop", "b-0")], [true, true, false]);
        assert!(reserve(Some("t"), "shop", "b-0") && reserve(None, "other", "b-0"), "another tailnet, another name");
        tokio::time::advance(RESERVATION).await;
        assert!(reserve(None, "shop", "b-0"));
    }

    #[test]
    fn unconfirmed_reads_are_counted_until_one_is_confirmed() {
        let (controls, id) = (ControlPlanes::new(true), DeviceId::parse("n1").expect("an ID"));
        let unconfirmed = || controls.device_reads(None).get(&id).map(|read| read.unconfirmed);
        for is_confirmed in [false, false] {
            controls.devices.record(None, &id, is_confirmed);
        }
        assert_eq!(unconfirmed(), Some(2));
        controls.devices.record(None, &id, true);
        assert_eq!(unconfirmed(), Some(0));
        controls.devices.gone(None, &id);
        assert_eq!(unconfirmed(), None);
    }
}

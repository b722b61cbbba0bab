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

use super::{ControlPlanes, Denied, LimitedRequest, RequestLimit};
use crate::model::controller::workload::actions::ClaimedDevice;
use crate::model::controller::workload::device_claim::DeviceClaim;
use crate::model::controller::workload::identity::{Device, DeviceId, DeviceRecord};
use crate::model::controller::workload::observed::DeviceRead;

/// Time after which the snapshot of each pass has the result of a request.
const RESERVATION_TTL: Duration = Duration::from_secs(10);
/// Time after which a replica repeats a request that another one's reservation has delayed.
pub(super) const RESERVED_REQUEUE: Duration = Duration::from_secs(2);

type Tailnet = Option<String>;

/// Reads of devices, and reserved devices and host names with their replicas.
#[derive(Debug, Default)]
pub(super) struct DeviceRequests {
    reads: Mutex<HashMap<Tailnet, OrdMap<DeviceId, DeviceRead>>>,
    reserved: Mutex<HashMap<(Tailnet, String), Reservation>>,
}

#[derive(Debug)]
struct Reservation {
    replica: String,
    begin: Instant,
    /// Whether another replica was refused: then that one is next.
    contested: bool,
}

impl DeviceRequests {
    /// Forgets the reads of a replaced control plane.
    pub(super) fn forget(&self, tailnet: Option<&str>) {
        self.reads().remove(&tailnet.map(str::to_owned));
    }

    pub(super) fn gone(&self, tailnet: Option<&str>, id: &DeviceId) {
        self.reads().get_mut(&tailnet.map(str::to_owned)).map(|reads| reads.remove(id));
    }

    /// Counts the read of a claimed device; returns its record. `found`: the device, if it is as expected, and whether it exists.
    fn record(&self, tailnet: Option<&str>, claim: &DeviceClaim<'_>, found: (Option<Device>, bool)) -> Option<DeviceRecord> {
        let (mut all, id) = (self.reads(), &claim.device.id);
        let reads = all.entry(tailnet.map(str::to_owned)).or_default();
        let (record, read) = claim.read(found, reads.get(id), Timestamp::now());
        // An unknown device is never recorded: what replicas claim does not grow this map.
        if record.is_some() || claim.is_recorded() {
            reads.insert(id.clone(), read);
        }
        record
    }

    /// Reserves a device or host name for a replica, unless it is reserved for another one; returns whether the reservation is new. A
    /// replica does not prolong its reservation. If another one was refused, the replica reserves again only after the same time.
    fn reserve(&self, tailnet: Option<&str>, what: &'static str, subject: &str, replica: &str) -> Result<bool, Denied> {
        let (now, key) = (Instant::now(), (tailnet.map(str::to_owned), subject.to_owned()));
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        reserved
            .retain(|_, reservation| now.duration_since(reservation.begin) < RESERVATION_TTL * if reservation.contested { 2 } else { 1 });
        let denied = || Err(Denied::Concurrent { what, subject: subject.to_owned() });
        if let Some(reservation) = reserved.get_mut(&key) {
            let (is_own, is_over) = (reservation.replica == replica, now.duration_since(reservation.begin) >= RESERVATION_TTL);
            if is_own && is_over {
                return denied();
            }
            if is_own {
                return Ok(false);
            }
            if !is_over {
                reservation.contested = true;
                return denied();
            }
        }
        reserved.insert(key, Reservation { replica: replica.to_owned(), begin: now, contested: false });
        Ok(true)
    }

    /// Ends the reservation of a replica.
    fn release(&self, tailnet: Option<&str>, subject: &str, replica: &str) {
        let key = (tailnet.map(str::to_owned), subject.to_owned());
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if reserved.get(&key).is_some_and(|reservation| reservation.replica == replica) {
            reserved.remove(&key);
        }
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

    /// Sends a request for an auth key while the host name of the next device is reserved for the replica.
    pub async fn with_hostname<T>(
        &self,
        tailnet: Option<&str>,
        (hostname, replica): (&str, &str),
        request: impl Future<Output = Result<T, Denied>>,
    ) -> Result<T, Denied> {
        let subject = format!("host name {}", hostname.to_ascii_lowercase());
        self.reserved(tailnet, ("make an auth key", &subject, replica), request).await
    }

    /// Checks the device that a replica claims, and returns its record. A record of another device is replaced only if that device no
    /// longer exists.
    pub async fn check_device(
        &self,
        tailnet: Option<&str>,
        (replica, limit): (&str, RequestLimit<'_>),
        claim: &DeviceClaim<'_>,
    ) -> Result<DeviceRecord, Denied> {
        let check = async {
            if !claim.is_recorded() {
                self.count(limit, LimitedRequest::DeviceCheck, Some(replica))?;
            }
            self.check_reserved(tailnet, claim).await
        };
        self.reserved(tailnet, ("check a device", &format!("device {}", claim.device.id), replica), check).await
    }

    /// Sends a request while its subject is reserved for the replica. A new reservation ends if the request is denied, also by its rate: it
    /// must not delay the replica that has the subject.
    async fn reserved<T>(
        &self,
        tailnet: Option<&str>,
        (what, subject, replica): (&'static str, &str, &str),
        request: impl Future<Output = Result<T, Denied>>,
    ) -> Result<T, Denied> {
        let is_new = self.devices.reserve(tailnet, what, subject, replica)?;
        let answered = request.await;
        if is_new && answered.is_err() {
            self.devices.release(tailnet, subject, replica);
        }
        answered
    }

    async fn check_reserved(&self, tailnet: Option<&str>, claim: &DeviceClaim<'_>) -> Result<DeviceRecord, Denied> {
        let (client, ClaimedDevice { id, expected }) = (self.plane(tailnet)?, claim.device);
        if let Some(former) = claim.former()
            && client.device(&former.id, &former.expected).await?.is_some()
        {
            return Err(Denied::Claim { claimed: id.clone(), recorded: former.id });
        }
        let (found, error) = match client.device(id, expected).await {
            Ok(found) => {
                let exists = found.is_some();
                ((found, exists), Denied::UnknownDevice(id.clone()))
            }
            Err(error) => ((None, true), error.into()),
        };
        self.devices.record(tailnet, claim, found).ok_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::key::WorkloadKey;
    use crate::model::controller::workload::actions::DeviceReport;
    use crate::model::controller::workload::identity::{DeviceAddresses, ExpectedDevice};

    #[tokio::test(start_paused = true)]
    async fn reservation_is_of_one_replica_until_it_ends() {
        let controls = ControlPlanes::new(true);
        let reserve = async |tailnet, hostname: &str, replica: &str| {
            controls.with_hostname(tailnet, (hostname, replica), async { Ok(()) }).await.is_ok()
        };
        assert!(reserve(None, "shop", "a-0").await && reserve(None, "shop", "a-0").await && !reserve(None, "Shop", "b-0").await);
        assert!(reserve(Some("t"), "shop", "b-0").await && reserve(None, "other", "b-0").await, "another tailnet, another name");
        let refused = async { Err::<(), _>(Denied::Unavailable(String::new())) };
        assert!(controls.with_hostname(None, ("shop", "a-0"), refused).await.is_err());
        assert!(!reserve(None, "shop", "b-0").await, "a denial does not end the reservation of a former request");
        tokio::time::advance(RESERVATION_TTL).await;
        assert!(!reserve(None, "shop", "a-0").await && reserve(None, "shop", "b-0").await, "another replica is next");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_devices_that_are_not_recorded_have_a_rate_and_leave_no_record() {
        let controls = ControlPlanes::new(true);
        let report = DeviceReport { name: None, addresses: DeviceAddresses::default() };
        let (key, other) = (WorkloadKey::of_group("eg"), WorkloadKey::of_group("other"));
        let claim = async |key: &WorkloadKey, id: &str, recorded: Option<&DeviceRecord>| {
            let device = ClaimedDevice { id: DeviceId::parse(id).expect("an ID"), expected: ExpectedDevice::default() };
            let claim = DeviceClaim { device: &device, domain: None, report: &report, recorded };
            controls.check_device(None, ("eg-0", RequestLimit { key, replicas: 1 }), &claim).await.expect_err("no control plane")
        };
        let mut denied = 0;
        for number in 0..100 {
            denied += usize::from(matches!(claim(&key, &format!("n{number}"), None).await, Denied::TooOften { .. }));
        }
        assert_eq!(denied, 80);
        assert!(!matches!(claim(&other, "n1", None).await, Denied::TooOften { .. }), "another workload has a rate of its own");
        let recorded = DeviceRecord::new(DeviceId::parse("n1").expect("an ID"), Device::default(), None);
        assert!(!matches!(claim(&key, "n1", Some(&recorded)).await, Denied::TooOften { .. }), "a recorded device is no claim");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!matches!(claim(&key, "n101", None).await, Denied::TooOften { .. }));
        let claimed = |id: &str, recorded| {
            let device = ClaimedDevice { id: DeviceId::parse(id).expect("an ID"), expected: ExpectedDevice::default() };
            controls.devices.record(None, &DeviceClaim { device: &device, domain: None, report: &report, recorded }, (None, true));
            controls.device_reads(None).len()
        };
        assert_eq!((claimed("n7", None), claimed("n1", Some(&recorded))), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_one_replica_delay_no_other_replica() {
        let controls = ControlPlanes::new(true);
        let report = DeviceReport { name: None, addresses: DeviceAddresses::default() };
        let key = WorkloadKey::of_group("eg");
        let claim = async |replica: &str, id: &str| {
            let device = ClaimedDevice { id: DeviceId::parse(id).expect("an ID"), expected: ExpectedDevice::default() };
            let claim = DeviceClaim { device: &device, domain: None, report: &report, recorded: None };
            controls.check_device(None, (replica, RequestLimit { key: &key, replicas: 2 }), &claim).await.expect_err("no control plane")
        };
        let mut checked = 0;
        for pass in 0..1_200 {
            // A pass claims in the order of ordinals; each write of the state Secret causes a pass.
            claim("eg-0", &format!("nX{pass}")).await;
            checked += usize::from(pass >= 200 && !matches!(claim("eg-1", "n1").await, Denied::TooOften { .. }));
            tokio::time::advance(Duration::from_millis(500)).await;
        }
        assert!(checked > 0, "no claim of the other replica is sent within ten minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn burst_of_claims_follows_the_number_of_replicas() {
        let controls = ControlPlanes::new(true);
        let report = DeviceReport { name: None, addresses: DeviceAddresses::default() };
        let key = WorkloadKey::of_group("eg");
        let claim = async |number: u32, replicas: u32| {
            let device = ClaimedDevice { id: DeviceId::parse(&format!("n{number}")).expect("an ID"), expected: ExpectedDevice::default() };
            let claim = DeviceClaim { device: &device, domain: None, report: &report, recorded: None };
            let limit = RequestLimit { key: &key, replicas };
            let denied = controls.check_device(None, (&format!("eg-{number}"), limit), &claim).await.expect_err("no control plane");
            !matches!(denied, Denied::TooOften { .. })
        };
        assert!(claim(0, 1).await);
        let mut sent = 0;
        for number in 1..100 {
            sent += u32::from(claim(number, 100).await);
        }
        assert_eq!(sent, 99);
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_all_replicas_are_within_the_rate_of_the_workload() {
        let controls = ControlPlanes::new(true);
        let key = WorkloadKey::of_group("eg");
        let mut sent = 0;
        for _ in 0..600 {
            for replica in 0..100 {
                let limit = RequestLimit { key: &key, replicas: 100 };
                let counted = controls.count(limit, LimitedRequest::DeviceCheck, Some(&format!("eg-{replica}")));
                sent += usize::from(counted.is_ok());
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(sent, 120 + 599 * 2 / 5, "a burst, then one in 2.5 s");
    }

    #[tokio::test(start_paused = true)]
    async fn burst_of_first_keys_follows_the_number_of_replicas() {
        let controls = ControlPlanes::new(true);
        let key = WorkloadKey::of_group("eg");
        let count = |replicas| controls.count(RequestLimit { key: &key, replicas }, LimitedRequest::FirstKey, None).is_ok();
        assert!(count(1));
        assert_eq!((1..=150).filter(|_| count(100)).count(), 99);
        assert_eq!((1..=150).filter(|replicas| count(*replicas % 100)).count(), 0, "changes of the number add nothing");
    }

    /// Denied keys of one replica, and keys that it gets without end, leave the host name to another one.
    #[tokio::test(start_paused = true)]
    async fn denied_keys_of_one_replica_delay_no_other_replica_without_end() {
        for (is_denied, most) in [(true, 1), (false, 11)] {
            let controls = ControlPlanes::new(true);
            let key = WorkloadKey::of_object(crate::model::controller::key::PublishSource::Service, "t", "evil");
            let mut waited = 0;
            for second in 0..600 {
                if second % 5 == 0 {
                    let evil = ("in-1", "ts-evil-0");
                    if is_denied {
                        let mint = controls.mint_key(None, &[], "", (RequestLimit { key: &key, replicas: 1 }, false), (None, None));
                        assert!(controls.with_hostname(None, evil, mint).await.is_err(), "no control plane");
                    } else {
                        drop(controls.with_hostname(None, evil, async { Ok(()) }).await);
                    }
                } else if controls.with_hostname(None, ("in-1", "in-1"), async { Ok(()) }).await.is_ok() {
                    break;
                }
                waited += 1;
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            assert!(waited <= most, "{waited} s");
        }
    }
}

//! Device records of replicas: which device a replica may claim, and when its record is read again.
//!
//! A claimed device is recorded once, after a check with the control plane ([`crate::model::controller::workload::identity`]). Name and addresses in
//! any status are those of the record. A replica's report of its own name and addresses only decides when the device is read again: after
//! a rename by an administrator, and less often the longer the control plane does not confirm the report.

use std::time::Duration;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::config::fingerprint64;
use crate::model::controller::workload::actions::{ClaimedDevice, ConfigDraft, ControlAction, DeviceReport};
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::identity::{Binding, DeviceId, DeviceName, DeviceRecord, ExpectedDevice};
use crate::model::controller::workload::objects::applied;
use crate::model::controller::workload::objects::secrets::{ReplicaSecret, config_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::TailnetState;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness::elapsed;

/// Interval of reads after a report that the control plane confirmed.
const CONFIRMED_INTERVAL: Duration = Duration::from_secs(2);
/// First interval of reads after a report that it did not confirm; doubled each time.
const UNCONFIRMED_INTERVAL: Duration = Duration::from_secs(5);
const MAX_UNCONFIRMED_INTERVAL: Duration = Duration::from_mins(10);
/// Minimum interval of reads of a device that nothing suggests, for a control plane that does not end the session of a deleted device.
const PRESENCE_INTERVAL: Duration = Duration::from_mins(3);
/// The same, for each device of all workloads: a fifth of the rate of requests.
const DEVICE_PRESENCE_INTERVAL: Duration = Duration::from_secs(1);
/// Part of the interval in which a device is read first.
const PRESENCE_WINDOW: Duration = Duration::from_secs(20);
/// Interval of checks whether another replica still claims the same device.
const CONTEST_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of checks whether another replica of the same host name has joined.
const JOIN_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Plans the record of a claimed device: its first check, or another read if the replica reports something else than the record.
pub(crate) fn record(work: &mut PlanPart<'_>, shape: &RenderContext<'_>, ordinal: u32, replica: &ObservedReplica, secret: ReplicaSecret) {
    let Some(state) = replica.state.as_deref().filter(|state| state.reissue.is_none()) else { return };
    let Some(id) = state.device_id.clone().filter(|_| work.observed.tailnet.is_ready()) else { return };
    let recorded = replica.device();
    let is_recorded = recorded.is_some_and(|record| record.id == id);
    let report = DeviceReport { name: state.device_name.clone(), addresses: state.device_ips.clone() };
    let domain = work.observed.devices.index.domain(server(work), state.device_name.as_ref().map(DeviceName::domain));
    let may_ask = match recorded {
        Some(record) if is_recorded && is_outdated(work, record, &report, domain.as_deref()) => is_due(work, record),
        Some(record) if is_recorded => is_presence_due(work, record),
        _ => !is_foreign(work, ordinal, &id) && !report_contested(work, ordinal, replica, &id),
    };
    if !may_ask {
        return;
    }
    let device = if let Some(record) = recorded.filter(|_| is_recorded) {
        reread(record)
    } else {
        let Some(expected) = expected_claim(work, ordinal, replica) else { return };
        ClaimedDevice { id, expected }
    };
    let draft = Box::new(draft(work, shape, secret));
    work.plan.control.push(ControlAction::RecordDevice { ordinal, device, domain, report, recorded: recorded.cloned(), draft });
}

/// A recorded device, for a request that changes nothing.
pub(crate) fn reread(record: &DeviceRecord) -> ClaimedDevice {
    let expected = ExpectedDevice { binding: Binding::Reread, created: record.created, ..ExpectedDevice::default() };
    ClaimedDevice { id: record.id.clone(), expected }
}

/// Whether another read of a recorded device may change its record: the replica reports something else, or it is incomplete and not only for
/// want of a domain.
fn is_outdated(work: &Pass<'_>, record: &DeviceRecord, report: &DeviceReport, domain: Option<&str>) -> bool {
    let has_domain = domain.is_some() || work.observed.tailnet.has_services() == Some(true);
    !report.agrees(record) || (!record.is_complete() && (has_domain || record.addresses.is_empty()))
}

/// Whether a recorded device may be read again now; else the pass is repeated when it may.
fn is_due(work: &mut PlanPart<'_>, record: &DeviceRecord) -> bool {
    let Some(last) = work.observed.devices.reads.get(&record.id) else { return true };
    let interval = match last.unconfirmed {
        0 => CONFIRMED_INTERVAL,
        count => UNCONFIRMED_INTERVAL.saturating_mul(1 << (count - 1).min(16)).min(MAX_UNCONFIRMED_INTERVAL),
    };
    let passed = elapsed(last.at, work.observed.now);
    if passed < interval {
        work.again(interval.saturating_sub(passed));
    }
    passed >= interval
}

/// Whether a device is read although nothing suggests a change, as the control plane does not end the session of a deleted device; else the pass is
/// repeated when it may be. Reads after a start of the reconciler are spread over the interval.
fn is_presence_due(work: &mut PlanPart<'_>, record: &DeviceRecord) -> bool {
    if work.observed.tailnet.capabilities().is_none_or(Capabilities::ends_sessions) {
        return false;
    }
    let count = u32::try_from(work.observed.devices.index.count()).unwrap_or(u32::MAX);
    let interval = PRESENCE_INTERVAL.max(DEVICE_PRESENCE_INTERVAL.saturating_mul(count));
    let wait = if let Some(read) = work.observed.devices.reads.get(&record.id) {
        let interval = if read.missing == 1 { UNCONFIRMED_INTERVAL } else { interval };
        interval.saturating_sub(elapsed(read.at, work.observed.now))
    } else {
        let (now, interval) = (work.observed.now.as_second().unsigned_abs(), interval.as_secs());
        let since = (now + fingerprint64(record.id.as_str().as_bytes()) % interval) % interval;
        if since < PRESENCE_WINDOW.as_secs() { Duration::ZERO } else { Duration::from_secs(interval - since) }
    };
    if !wait.is_zero() {
        work.again(wait);
    }
    wait.is_zero()
}

/// The recorded device of a replica, if it was deleted at the control plane; reports it. Its config names it, and the replica joins again.
pub(crate) fn deleted(work: &mut PlanPart<'_>, ordinal: u32, replica: &ObservedReplica) -> Option<DeviceId> {
    let id = &replica.device()?.id;
    work.observed.devices.reads.get(id).filter(|read| read.is_deleted())?;
    let replica = names::replica(&work.owner.name, ordinal);
    let message = format!("Device {id} of replica {replica} was deleted at the control plane: the replica joins again as another device.");
    work.fault(reason::PROXY_GROUP_CREATING, message);
    Some(id.clone())
}

/// Whether a claimed device is recorded for another replica; reports it.
fn is_foreign(work: &mut PlanPart<'_>, ordinal: u32, id: &DeviceId) -> bool {
    let config = names::replica_config(&work.owner.name, ordinal);
    let Some(other) = work.observed.devices.index.recorded_elsewhere(server(work), id, &config) else { return false };
    let replica = names::replica(&work.owner.name, ordinal);
    let message = format!("Replica {replica} claims device {id}, which Secret {other} records: inspect the Pod, and delete it.");
    work.fault(reason::PROXY_GROUP_CREATING, message);
    true
}

/// State Secret of another replica that claims the same device, if neither has a record of it nor this one an auth key: nothing says whose
/// it is.
fn contested_by<'a>(work: &Pass<'a>, replica: &ObservedReplica, id: &DeviceId) -> Option<&'a str> {
    let is_bound = replica.config.as_ref().is_some_and(|config| config.device.is_some() || config.mint.is_some());
    work.observed.devices.contested.get(id).filter(|_| !is_bound).map(String::as_str)
}

/// Whether another replica claims the same device; reports it.
fn report_contested(work: &mut PlanPart<'_>, ordinal: u32, replica: &ObservedReplica, id: &DeviceId) -> bool {
    let Some(other) = contested_by(work, replica, id) else { return false };
    let replica = names::replica(&work.owner.name, ordinal);
    let message = format!(
        "Replica {replica} claims device {id}, and Secret {other} claims it too: delete the state Secret of the one that has another."
    );
    work.fault(reason::PROXY_GROUP_CREATING, message);
    // A change of the other Secret enqueues nothing of this workload.
    work.again(CONTEST_POLL_INTERVAL);
    true
}

/// Whether a replica must wait for its auth key, as another one with the same host name has one that it may still use: the control plane
/// could not tell their devices apart. Reports it.
pub(crate) fn namesake_joins(work: &mut PlanPart<'_>, secret: &ReplicaSecret) -> bool {
    let hostname = secret.document.get("Hostname").and_then(|name| name.as_str()).unwrap_or_default();
    let config = names::replica_config(&secret.owner.name, secret.ordinal);
    let (devices, now) = (&work.observed.devices, work.observed.now);
    let Some(other) = devices.index.joining_elsewhere((server(work), &devices.other_tailnets), hostname, &config, now) else {
        return false;
    };
    let replica = names::replica(&secret.owner.name, secret.ordinal);
    let message = format!(
        "Replica {replica} waits for its auth key: the replica of Secret {other} joins the tailnet under the same host name {hostname}. \
         Choose another host name for one of them if this lasts."
    );
    work.fault(reason::PROXY_GROUP_CREATING, message);
    work.again(JOIN_POLL_INTERVAL);
    true
}

/// Device of a replica, for a change at the control plane: the recorded one, else the claimed one with the check of a first record. None that
/// another replica's record has.
pub(crate) fn claimed_device(work: &Pass<'_>, ordinal: u32, replica: &ObservedReplica) -> Option<ClaimedDevice> {
    let recorded = replica.device();
    let id = recorded.map(|record| record.id.clone()).or_else(|| replica.state.as_ref()?.device_id.clone())?;
    if shared_with(work, ordinal, &id).is_some() || contested_by(work, replica, &id).is_some() {
        return None;
    }
    let expected = match recorded {
        Some(record) => expected_record(work, ordinal, replica, record),
        None => expected_claim(work, ordinal, replica)?,
    };
    Some(ClaimedDevice { id, expected })
}

/// Reports that the device of a removed replica stays, as another replica's record has it, or another one claims it too.
pub(crate) fn report_shared(work: &mut PlanPart<'_>, ordinal: u32, replica: &ObservedReplica) {
    let shared = replica.device().and_then(|record| Some((&record.id, shared_with(work, ordinal, &record.id)?)));
    let claimed = replica.state.as_ref().and_then(|state| state.device_id.as_ref());
    let contested = || claimed.and_then(|id| Some((id, contested_by(work, replica, id)?)));
    if let Some((id, other)) = contested() {
        let replica = names::replica(&work.owner.name, ordinal);
        let message = format!("Device {id} of replica {replica} is not deleted: Secret {other} claims it too");
        work.warn_workload(reason::DEVICE_ORPHANED, message);
    } else if let Some((id, other)) = shared {
        let replica = names::replica(&work.owner.name, ordinal);
        let message = format!("Device {id} of replica {replica} is not deleted: Secret {other} records it too");
        work.warn_workload(reason::DEVICE_ORPHANED, message);
    }
}

/// Config Secret of another replica that records a device.
fn shared_with<'a>(work: &Pass<'a>, ordinal: u32, id: &DeviceId) -> Option<&'a str> {
    let config = names::replica_config(&work.owner.name, ordinal);
    let server = replica_server(work, ordinal);
    work.observed.devices.index.recorded_elsewhere(server, id, &config)
}

/// Required properties of a recorded device: a tag of the config, the group or the record; a host name only where the record may be older than
/// that check.
fn expected_record(work: &Pass<'_>, ordinal: u32, replica: &ObservedReplica, record: &DeviceRecord) -> ExpectedDevice {
    let tags = admitted_tags(work).into_iter().chain(record.tags.iter().cloned()).collect();
    let binding = if record.addresses.is_empty() { Binding::RecordedByName } else { Binding::Recorded };
    ExpectedDevice { hostnames: hostnames(work, ordinal, replica), tags, binding, created: record.created }
}

/// Required properties of a device without a record: that it joined with the replica's key, or existed before there was one. A host name
/// under which another replica joins is accepted only if the key was created for it. `None` for a new replica without key: no device is its
/// own.
fn expected_claim(work: &Pass<'_>, ordinal: u32, replica: &ObservedReplica) -> Option<ExpectedDevice> {
    let mint = replica.config.as_ref().and_then(|config| config.mint.as_ref());
    let config = names::replica_config(&work.owner.name, ordinal);
    let (devices, now) = (&work.observed.devices, work.observed.now);
    let tailnet = (replica_server(work, ordinal), &devices.other_tailnets);
    let is_own = |name: &String| mint.is_some_and(|mint| mint.hostname.eq_ignore_ascii_case(name));
    let is_free = |name: &String| is_own(name) || devices.index.joining_elsewhere(tailnet, name, &config, now).is_none();
    let hostnames = hostnames(work, ordinal, replica).into_iter().chain(mint.map(|mint| mint.hostname.clone()));
    // A device that existed before has the name in the config: a request for another name adopts none.
    let is_adopted = mint.is_none() && replica.config.as_ref().is_some_and(|config| config.hostname().is_some());
    let hostnames = hostnames.take(if is_adopted { 1 } else { usize::MAX });
    let binding = match mint {
        Some(mint) => Binding::Minted(mint.clone()),
        None if replica.is_new() => return None,
        None => Binding::Adopted,
    };
    Some(ExpectedDevice { hostnames: hostnames.filter(is_free).collect(), tags: admitted_tags(work), binding, created: None })
}

/// Host names of a replica: in its config, and as requested now.
fn hostnames(work: &Pass<'_>, ordinal: u32, replica: &ObservedReplica) -> Vec<String> {
    let written = replica.config.as_ref().and_then(|config| config.hostname());
    written.map(str::to_owned).into_iter().chain(work.spec.map(|spec| spec.hostname(ordinal))).collect()
}

fn admitted_tags(work: &Pass<'_>) -> Vec<String> {
    work.spec.map(|spec| spec.admitted.or_default(&work.observed.settings).as_slice().to_vec()).unwrap_or_default()
}

/// Login server of the control plane.
fn server<'a>(work: &Pass<'a>) -> &'a str {
    if let TailnetState::Ready { server_url, .. } = &work.observed.tailnet { server_url } else { "" }
}

/// Login server of a replica's config, else of the control plane.
fn replica_server<'a>(work: &Pass<'a>, ordinal: u32) -> &'a str {
    let config = work.observed.replicas.get(&ordinal).and_then(|replica| replica.config.as_ref());
    config.map(|config| config.entry().server).filter(|server| !server.is_empty()).unwrap_or_else(|| server(work))
}

/// Config Secret of a replica, for a request of the control plane.
pub(crate) fn draft(work: &Pass<'_>, shape: &RenderContext<'_>, inputs: ReplicaSecret) -> ConfigDraft {
    let observed = work.owned(&config_ref(&shape.owner, inputs.ordinal));
    let adopt = observed.is_some_and(|object| applied(object).is_none());
    let uid = observed.and_then(|object| object["metadata"]["uid"].as_str().map(str::to_owned));
    ConfigDraft { inputs, adopt, uid, tags: Vec::new(), previous: None }
}

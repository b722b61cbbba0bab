//! Control planes of groups: one client per Tailnet, and the default one of the reconciler.
//!
//! A client lives as long as its credentials, so its rate limit, pauses requested by the server, and its token are kept between passes.
//! Passes decide which keys and devices are created or deleted, never this module.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::edge::control::{AuthKey, ControlClient, ControlError, ControlSettings};
use crate::model::base::rate::TokenBucket;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::tailnet::ControlPlaneVerdict;
use crate::model::controller::workload::actions::ClaimedDevice;
use crate::model::controller::workload::identity::{DeviceId, KeyId};
use crate::model::controller::workload::observed::{ControlPlaneError, TailnetState};

pub mod devices;
mod routes;
mod services;

/// Interval of replacement auth keys of a group, after a burst of one per replica.
const REISSUE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of a workload's first auth keys, and of a replica's claims of devices that are not recorded, after a burst of each.
const FIRST_KEY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of such claims of a workload: half of that of a replica, so that one replica leaves half of them to the others.
const CLAIM_INTERVAL: Duration = Duration::from_millis(2_500);
/// Minimum burst of these, so that a group scales at once.
const MIN_BURST: u32 = 20;

/// Requests that a workload's Pods cause, each with a rate of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitedRequest {
    /// An auth key for a new replica.
    FirstKey,
    /// Another auth key, which a replica requested.
    ReplacementKey,
    /// The first check of a device that a replica claims.
    DeviceCheck,
}

/// The workload that a limited request counts for.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimit<'a> {
    pub key: &'a WorkloadKey,
    pub replicas: u32,
}

/// A request that was not sent, or was rejected by the control plane.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    #[error("{0}")]
    Unavailable(String),
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// A replica claims another device than the recorded one, which still exists.
    #[error(
        "the replica claims device {claimed}, but its recorded device {recorded} still exists; inspect the Pod, then delete {recorded} if the claim is genuine"
    )]
    Claim { claimed: DeviceId, recorded: DeviceId },
    /// A replica claims a device that does not exist in the control plane.
    #[error("the replica claims device {0}, which the control plane does not know")]
    UnknownDevice(DeviceId),
    /// Another replica's request for the same device or host name has just been sent.
    #[error("{what}: another replica's request for {subject} is in progress")]
    Concurrent { what: &'static str, subject: String },
    /// The workload's replicas cause requests faster than they can have failed; the next request is permitted after `wait`.
    #[error("{workload} requests too {}; the next request is sent in {wait:?} (see the replicas' logs)", request.excess())]
    TooOften { workload: String, request: LimitedRequest, wait: Duration },
}

impl LimitedRequest {
    fn excess(self) -> &'static str {
        match self {
            Self::FirstKey | Self::ReplacementKey => "many auth keys",
            Self::DeviceCheck => "many checks of devices",
        }
    }
}

impl Denied {
    /// Metric label and Event reason; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "TailnetUnavailable",
            Self::Refused(error) => error.reason(),
            Self::Claim { .. } => "DeviceClaimed",
            Self::UnknownDevice(_) => "DeviceUnknown",
            Self::Concurrent { .. } => "Concurrent",
            Self::TooOften { .. } => "TooOften",
        }
    }

    /// Message without changing values, for conditions.
    pub fn lasting(&self) -> String {
        match self {
            Self::Refused(error) => format!("{}.", error.lasting()),
            Self::TooOften { workload, request, .. } => {
                format!("{workload} requests too {}: see the replicas' logs, and inspect the Pods.", request.excess())
            }
            Self::Unavailable(why) => why.clone(),
            Self::Claim { .. } | Self::UnknownDevice(_) | Self::Concurrent { .. } => format!("{self}."),
        }
    }

    /// Whether the control plane has answered this request, so that it may accept others.
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Refused(
                ControlError::Denied { .. } | ControlError::Absent { .. } | ControlError::Refused { .. } | ControlError::Answer { .. }
            )
        )
    }

    /// Minimum retry delay, if a retry makes sense.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(_) | Self::Claim { .. } | Self::UnknownDevice(_) => None,
            Self::Refused(error) => error.retry_after(),
            Self::TooOften { wait, .. } => Some(*wait),
            Self::Concurrent { .. } => Some(devices::RESERVED_REQUEUE),
        }
    }
}

/// What a rate is of: a workload, or a replica by name.
type LimitSubject = (WorkloadKey, LimitedRequest, Option<String>);

/// A control plane and its state for groups.
#[derive(Debug, Clone)]
struct GroupControlPlane {
    client: Option<ControlClient>,
    state: TailnetState,
    /// Fingerprint of the client's credentials.
    mark: String,
}

/// All control planes by Tailnet name; the default one has no name.
#[derive(Debug, Default)]
pub struct ControlPlanes {
    own: bool,
    planes: Mutex<BTreeMap<Option<String>, GroupControlPlane>>,
    limits: Mutex<HashMap<LimitSubject, TokenBucket>>,
    /// Current denials of groups. Their start times are lost when the process ends.
    denials: Mutex<HashMap<WorkloadKey, BTreeMap<String, ControlPlaneError>>>,
    begin: std::sync::OnceLock<Instant>,
    listed: services::Lists,
    routes: routes::ApprovedRoutes,
    devices: devices::DeviceRequests,
}

impl ControlPlanes {
    /// No control planes yet; `own`: whether there will be a default one.
    pub fn new(own: bool) -> Self {
        Self { own, ..Self::default() }
    }

    /// Tests credentials. The result is the state for groups from now on; the second value: whether it has changed.
    pub async fn examine(&self, tailnet: Option<&str>, mark: &str, settings: ControlSettings) -> (ControlPlaneVerdict, bool) {
        let url = settings.url.clone();
        let client = match self.client(tailnet, mark, settings) {
            Ok(client) => client,
            Err(error) => return self.refused(tailnet, error.lasting()),
        };
        let result = client.probe().await;
        let works = ControlPlaneVerdict::Valid(client.capabilities());
        match result {
            Ok(()) => (works, self.ready(tailnet, mark, url, client)),
            // A client that worked and is not known to be invalid stays in use: an unavailable control plane comes back.
            Err(error) if self.works(tailnet) && error.passes() => {
                tracing::warn!(reason = error.reason(), tailnet, "{error}");
                (works, false)
            }
            Err(error) => self.refused(tailnet, error.lasting()),
        }
    }

    /// Marks a control plane as unusable.
    pub fn refused(&self, tailnet: Option<&str>, why: String) -> (ControlPlaneVerdict, bool) {
        let plane = tailnet.map_or_else(|| "The reconciler's own control plane".to_owned(), |name| format!("Tailnet {name}"));
        let changed = self.unavailable(tailnet, format!("{plane}: {why}."));
        (ControlPlaneVerdict::Refused(why), changed)
    }

    /// Client for these settings: the existing one if `mark` is the same.
    fn client(&self, tailnet: Option<&str>, mark: &str, settings: ControlSettings) -> Result<ControlClient, ControlError> {
        if let Some(client) =
            self.planes().get(&tailnet.map(str::to_owned)).filter(|plane| plane.mark == mark).and_then(|plane| plane.client.clone())
        {
            return Ok(client);
        }
        ControlClient::new(settings)
    }

    /// Whether a working client exists.
    fn works(&self, tailnet: Option<&str>) -> bool {
        self.planes().get(&tailnet.map(str::to_owned)).is_some_and(|plane| plane.state.is_ready())
    }

    /// Sets the working client of a control plane; returns whether its state has changed.
    fn ready(&self, tailnet: Option<&str>, mark: &str, server_url: String, client: ControlClient) -> bool {
        if self.planes().get(&tailnet.map(str::to_owned)).is_none_or(|plane| plane.mark != mark) {
            self.listed.forget(tailnet);
            self.routes.forget(tailnet);
            self.devices.forget(tailnet);
        }
        let state = TailnetState::Ready { server_url, capabilities: client.capabilities() };
        self.set(tailnet, GroupControlPlane { client: Some(client), state, mark: mark.to_owned() })
    }

    /// Marks a control plane as unavailable, with the reason; returns whether its state has changed.
    pub fn unavailable(&self, tailnet: Option<&str>, why: String) -> bool {
        self.set(tailnet, GroupControlPlane { client: None, state: TailnetState::Unavailable(why), mark: String::new() })
    }

    /// Removes a Tailnet.
    pub fn forget(&self, tailnet: &str) -> bool {
        self.planes().remove(&Some(tailnet.to_owned())).is_some()
    }

    /// State of a Tailnet for its groups. `there`: whether the Tailnet exists.
    pub fn state(&self, tailnet: Option<&str>, there: bool) -> TailnetState {
        let state = self.planes().get(&tailnet.map(str::to_owned)).map(|plane| plane.state.clone());
        let to_come = if tailnet.is_some() { there } else { self.own };
        state.unwrap_or_else(|| if to_come { TailnetState::Asking } else { TailnetState::Unavailable(unknown(tailnet)) })
    }

    /// Every tested control plane, by Tailnet name, and whether it is usable.
    pub fn tailnets(&self) -> Vec<(Option<String>, bool)> {
        self.planes().iter().map(|(tailnet, plane)| (tailnet.clone(), plane.state.is_ready())).collect()
    }

    pub fn denials(&self, key: &WorkloadKey) -> BTreeMap<String, ControlPlaneError> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned().unwrap_or_default()
    }

    /// Records the requests of a pass, each with its denial, if any, and whether that is an answer. Drops other denials of the group, but for
    /// those of `waiting` requests.
    pub fn answered(&self, key: &WorkloadKey, answers: BTreeMap<String, Option<(String, bool)>>, waiting: &[String], now: Timestamp) {
        let mut all = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = all.remove(key).unwrap_or_default();
        let mut denied: BTreeMap<_, _> = waiting.iter().filter_map(|what| before.remove_entry(what)).collect();
        denied.extend(answers.into_iter().filter_map(|(what, denial)| {
            let ((why, is_answer), since) = (denial?, before.get(&what).map_or(now, |denial| denial.since));
            Some((what, ControlPlaneError { since, why, refused: is_answer.then_some(now) }))
        }));
        if !denied.is_empty() {
            all.insert(key.clone(), denied);
        }
    }

    /// Creates an auth key for a replica, after deleting the device and the key that it replaces. The request counts against the workload's rate.
    pub async fn mint_key(
        &self,
        tailnet: Option<&str>,
        tags: &[String],
        note: &str,
        (limit, reissue): (RequestLimit<'_>, bool),
        (device, former): (Option<&ClaimedDevice>, Option<&KeyId>),
    ) -> Result<AuthKey, Denied> {
        let client = self.plane(tailnet)?;
        self.count(limit, if reissue { LimitedRequest::ReplacementKey } else { LimitedRequest::FirstKey }, None)?;
        if let Some(device) = device {
            replaced(self.delete_device(tailnet, device).await)?;
        }
        if let Some(key) = former {
            replaced(self.revoke_key(tailnet, key).await)?;
        }
        Ok(client.mint_key(tags, note).await?)
    }

    pub async fn revoke_key(&self, tailnet: Option<&str>, id: &KeyId) -> Result<(), Denied> {
        Ok(self.plane(tailnet)?.revoke_key(id).await?)
    }

    /// Deletes a device, if it is the expected one.
    pub async fn delete_device(&self, tailnet: Option<&str>, device: &ClaimedDevice) -> Result<(), Denied> {
        self.plane(tailnet)?.delete_device(&device.id, &device.expected).await?;
        self.routes.gone(tailnet, &device.id);
        self.devices.gone(tailnet, &device.id);
        Ok(())
    }

    fn plane(&self, tailnet: Option<&str>) -> Result<ControlClient, Denied> {
        match self.planes().get(&tailnet.map(str::to_owned)) {
            Some(GroupControlPlane { client: Some(client), .. }) => Ok(client.clone()),
            Some(GroupControlPlane { state: TailnetState::Unavailable(why), .. }) => Err(Denied::Unavailable(why.clone())),
            _ => Err(Denied::Unavailable(unknown(tailnet))),
        }
    }

    /// Counts a request against the rate of the workload, and against that of the replica, if any.
    fn count(
        &self,
        RequestLimit { key, replicas }: RequestLimit<'_>,
        request: LimitedRequest,
        replica: Option<&str>,
    ) -> Result<(), Denied> {
        let now = Instant::now() - *self.begin.get_or_init(Instant::now);
        let (burst, interval) = match request {
            LimitedRequest::ReplacementKey => (replicas.max(1), REISSUE_INTERVAL),
            LimitedRequest::FirstKey => (replicas.max(MIN_BURST), FIRST_KEY_INTERVAL),
            // One replica's burst leaves one claim to each of the others.
            LimitedRequest::DeviceCheck => (replicas.saturating_add(MIN_BURST), CLAIM_INTERVAL),
        };
        let of_replica = replica.map(|replica| (Some(replica.to_owned()), MIN_BURST, FIRST_KEY_INTERVAL));
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        // A full bucket limits as much as none.
        limits.retain(|_, bucket| !bucket.is_full(now));
        let (mut wait, mut counted) = (Duration::ZERO, Vec::new());
        for (replica, burst, interval) in of_replica.into_iter().chain([(None, burst, interval)]) {
            let entry = (key.clone(), request, replica);
            let bucket = limits.entry(entry.clone()).or_insert_with(|| TokenBucket::new(burst, 1.0 / interval.as_secs_f64()));
            bucket.grow(burst);
            wait = wait.max(bucket.take(now));
            counted.push(entry);
        }
        if wait.is_zero() {
            return Ok(());
        }
        for entry in counted {
            limits.get_mut(&entry).map(TokenBucket::refund);
        }
        Err(Denied::TooOften { workload: key.to_string(), request, wait })
    }

    fn set(&self, tailnet: Option<&str>, plane: GroupControlPlane) -> bool {
        let state = plane.state.clone();
        let before = self.planes().insert(tailnet.map(str::to_owned), plane);
        before.is_none_or(|before| before.state != state)
    }

    fn planes(&self) -> MutexGuard<'_, BTreeMap<Option<String>, GroupControlPlane>> {
        self.planes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The deletion of what a new auth key replaces. The key waits for one that may succeed later, and for a device that is not the replica's; not
/// for a permission that the credentials lack.
fn replaced(deleted: Result<(), Denied>) -> Result<(), Denied> {
    match deleted {
        Err(Denied::Refused(error)) if !error.passes() && !matches!(error, ControlError::Mismatch { .. }) => {
            tracing::warn!(reason = error.reason(), "cannot delete what a new auth key replaces: {error}");
            Ok(())
        }
        other => other,
    }
}

fn unknown(tailnet: Option<&str>) -> String {
    match tailnet {
        Some(name) => format!("Tailnet {name} does not exist: create it, or name another."),
        None => {
            "The reconciler has no control plane of its own: give it credentials. A ProxyGroup can name a Tailnet in spec.tailnet instead."
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn denial_counts_from_its_first_time_until_success() {
        let controls = ControlPlanes::new(true);
        let group = WorkloadKey::of_group("g");
        let outcome = |what: &str, why: Option<&str>| BTreeMap::from([(what.to_owned(), why.map(|why| (why.to_owned(), true)))]);
        let answered = |answers, waiting: &[&str], second| {
            let waiting: Vec<_> = waiting.iter().map(|what| (*what).to_owned()).collect();
            controls.answered(&group, answers, &waiting, at(second));
        };
        answered(outcome("device n1", Some("no")), &[], 1);
        answered(outcome("device n1", Some("still no")), &["device n3"], 9);
        let denial = ControlPlaneError { since: at(1), why: "still no".into(), refused: Some(at(9)) };
        assert_eq!(controls.denials(&group), [("device n1".to_owned(), denial.clone())].into());
        assert!(controls.denials(&WorkloadKey::of_group("h")).is_empty());
        answered(BTreeMap::new(), &["device n1"], 10);
        assert_eq!(controls.denials(&group)["device n1"], denial, "the request waits");
        answered(outcome("device n2", Some("no")), &[], 10);
        assert_eq!(
            controls.denials(&WorkloadKey::of_group("g")).into_keys().collect::<Vec<_>>(),
            ["device n2"],
            "n1 is not wanted any more"
        );
        answered(outcome("device n2", None), &[], 11);
        assert!(controls.denials(&WorkloadKey::of_group("g")).is_empty());
    }

    #[test]
    fn unqueried_control_plane_is_not_unavailable() {
        assert_eq!(ControlPlanes::new(true).state(None, false), TailnetState::Asking);
        let TailnetState::Unavailable(why) = ControlPlanes::new(false).state(None, false) else { panic!("there is none") };
        assert!(why.contains("give it credentials. A ProxyGroup can name a Tailnet"), "a standalone Service has no spec.tailnet: {why}");
        assert_eq!(ControlPlanes::new(false).state(Some("t"), true), TailnetState::Asking);
        assert!(matches!(ControlPlanes::new(true).state(Some("t"), false), TailnetState::Unavailable(why) if why.contains("create it")));
    }

    #[test]
    fn lasting_messages_have_no_changing_numbers() {
        let too_often =
            |wait| Denied::TooOften { workload: "g".into(), request: LimitedRequest::ReplacementKey, wait: Duration::from_secs(wait) };
        assert_eq!(too_often(1).lasting(), too_often(2).lasting());
        let paused = |after| Denied::from(ControlError::Paused { call: "x", after: Duration::from_secs(after) });
        assert_eq!(paused(1).lasting(), paused(2).lasting());
    }
}

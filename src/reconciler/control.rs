//! The control planes that groups belong to: one client for each Tailnet, and one of the reconciler's own.
//!
//! A client lives as long as its credentials: so its rate, the pause that a server asked for and its token are kept from one
//! pass to the next. Which key or device is made or goes is decided in passes, never here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::edge::control::{AuthKey, Control, ControlError, ControlSettings};
use crate::model::control::Bucket;
use crate::model::group::{Capabilities, TailnetState};

/// A group whose replicas ask for new auth keys gets one for each replica at once, and one in this time after that.
const REISSUE: Duration = Duration::from_secs(30);

/// What both kinds of control plane can do.
const CAPABLE: Capabilities = Capabilities { keys: true, devices: true };

/// The control plane was not asked, or said no.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// There is no client for it.
    #[error("{0}")]
    Unavailable(String),
    /// It was asked.
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// The group's replicas ask for new keys faster than they can have failed.
    #[error(
        "group {group} asked for too many new auth keys; the next is made in {wait:?} (see the replicas' logs for why their login fails)"
    )]
    TooOften {
        /// The group.
        group: String,
        /// When it may ask again.
        wait: Duration,
    },
}

impl Denied {
    /// A closed set of words for metric labels and Event reasons.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "TailnetUnavailable",
            Self::Refused(error) => error.kind(),
            Self::TooOften { .. } => "TooOften",
        }
    }

    /// When a retry makes sense at the earliest.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(_) => None,
            Self::Refused(error) => error.retry_after(),
            Self::TooOften { wait, .. } => Some(*wait),
        }
    }
}

/// A control plane as a group sees it.
#[derive(Debug, Clone)]
struct Plane {
    client: Option<Control>,
    state: TailnetState,
    /// Tells whether the credentials are still those that the client has.
    mark: String,
}

/// All control planes, by the name of their Tailnet; the reconciler's own has none.
#[derive(Debug, Default)]
pub struct Controls {
    planes: Mutex<BTreeMap<Option<String>, Plane>>,
    reissues: Mutex<HashMap<String, Bucket>>,
    begin: std::sync::OnceLock<Instant>,
}

impl Controls {
    /// No control plane yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The client for these settings: the one that there is if `mark` is the same.
    pub fn client(&self, tailnet: Option<&str>, mark: &str, settings: ControlSettings) -> Result<Control, ControlError> {
        if let Some(client) =
            self.planes().get(&tailnet.map(str::to_owned)).filter(|plane| plane.mark == mark).and_then(|plane| plane.client.clone())
        {
            return Ok(client);
        }
        Control::new(settings)
    }

    /// A control plane can be asked by this client. Whether that is news.
    pub fn ready(&self, tailnet: Option<&str>, mark: &str, server_url: String, client: Control) -> bool {
        let state = TailnetState::Ready { server_url, capabilities: CAPABLE };
        self.set(tailnet, Plane { client: Some(client), state, mark: mark.to_owned() })
    }

    /// A control plane cannot be asked, and why. Whether that is news.
    pub fn unavailable(&self, tailnet: Option<&str>, why: String) -> bool {
        self.set(tailnet, Plane { client: None, state: TailnetState::Unavailable(why), mark: String::new() })
    }

    /// A Tailnet is gone.
    pub fn forget(&self, tailnet: &str) -> bool {
        self.planes().remove(&Some(tailnet.to_owned())).is_some()
    }

    /// What a group of this Tailnet can count on.
    #[must_use]
    pub fn state(&self, tailnet: Option<&str>) -> TailnetState {
        let known = self.planes().get(&tailnet.map(str::to_owned)).map(|plane| plane.state.clone());
        known.unwrap_or_else(|| TailnetState::Unavailable(unknown(tailnet)))
    }

    /// Makes an auth key. With a limit (a group and its replicas) it counts against the group's rate.
    pub async fn mint_key(
        &self,
        tailnet: Option<&str>,
        tags: &[String],
        note: &str,
        limit: Option<(&str, u32)>,
    ) -> Result<AuthKey, Denied> {
        let client = self.plane(tailnet)?;
        if let Some((group, replicas)) = limit {
            self.reissue(group, replicas)?;
        }
        Ok(client.mint_key(tags, note).await?)
    }

    /// Makes an auth key useless.
    pub async fn revoke_key(&self, tailnet: Option<&str>, id: &str) -> Result<(), Denied> {
        Ok(self.plane(tailnet)?.revoke_key(id).await?)
    }

    /// Takes a device out of its tailnet.
    pub async fn delete_device(&self, tailnet: Option<&str>, id: &str) -> Result<(), Denied> {
        Ok(self.plane(tailnet)?.delete_device(id).await?)
    }

    fn plane(&self, tailnet: Option<&str>) -> Result<Control, Denied> {
        match self.planes().get(&tailnet.map(str::to_owned)) {
            Some(Plane { client: Some(client), .. }) => Ok(client.clone()),
            Some(Plane { state: TailnetState::Unavailable(why), .. }) => Err(Denied::Unavailable(why.clone())),
            _ => Err(Denied::Unavailable(unknown(tailnet))),
        }
    }

    fn reissue(&self, group: &str, replicas: u32) -> Result<(), Denied> {
        let now = Instant::now() - *self.begin.get_or_init(Instant::now);
        let mut buckets = self.reissues.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(group.to_owned()).or_insert_with(|| Bucket::new(replicas.max(1), 1.0 / REISSUE.as_secs_f64()));
        let wait = bucket.take(now);
        if wait.is_zero() {
            return Ok(());
        }
        bucket.give_back();
        Err(Denied::TooOften { group: group.to_owned(), wait })
    }

    fn set(&self, tailnet: Option<&str>, plane: Plane) -> bool {
        let state = plane.state.clone();
        let before = self.planes().insert(tailnet.map(str::to_owned), plane);
        before.is_none_or(|before| before.state != state)
    }

    fn planes(&self) -> MutexGuard<'_, BTreeMap<Option<String>, Plane>> {
        self.planes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(tailnet: Option<&str>) -> String {
    match tailnet {
        Some(name) => format!("Tailnet {name} does not exist or has not been looked at yet: kubectl get tailnet {name}"),
        None => "the reconciler has no control plane of its own: set spec.tailnet, or give the reconciler credentials".to_owned(),
    }
}

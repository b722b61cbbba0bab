//! Which copy of a config is in force: the one that the API watch delivers or the one that the kubelet mounted.
//!
//! A mounted copy is a past state of the object: the kubelet follows the API, in order, late. Hence the rules of [`ConfigCopies`]:
//! - nothing yet from the watch: the mounted copy, at once;
//! - the watch has delivered: its copy, whatever the mount shows;
//! - the watch is gone for longer than a hold, *and* the mounted copy became, since the watch was last known to be live,
//!   something that the watch has not delivered: the mounted copy, for only then it is newer;
//! - the watch is back: its copy again.
//!
//! A mounted copy that the watch delivered earlier is the kubelet catching up and changes nothing, so the two never flap.
//! The hold is longer than the kubelet is late. A copy that cannot be read changes nothing either: the last good one stays.
//! Never reads a file, the network or the clock.

use std::collections::{BTreeMap, VecDeque};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::model::config::digest;

pub mod document;
mod select;

pub use document::{Document, DocumentFault, EgressDocument, IngressDocument, ServeContent, ServeDocument};
pub use select::{InForce, Selection, WatchHealth};

/// The values of the wanted keys, all of one moment; a key that is not there is absent.
pub type CopyKeys = BTreeMap<String, Bytes>;

/// Where a copy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopySource {
    Api,
    File,
}

impl CopySource {
    /// The word for logs and metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::File => "file",
        }
    }
}

impl std::fmt::Display for CopySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How much longer than a kubelet's usual delay (its sync period and cache, 60 to 90 s) the mounted copy waits for the watch.
pub const HOLD: Duration = Duration::from_mins(2);

/// How many delivered versions that the mount has not shown yet are remembered.
const TRAIL: usize = 1024;

/// The two copies and what is known of their order. Times are durations since any fixed moment.
#[derive(Debug, Clone, Default)]
pub struct ConfigCopies {
    hold: Duration,
    api: Option<CopyVersion>,
    file: Option<CopyVersion>,
    gone_since: Option<Duration>,
    /// What the watch delivered from the version that the mount shows on, oldest first, as hashes.
    trail: VecDeque<u64>,
    /// The mount shows something that the watch has not delivered, since the watch was last known to be live.
    ahead: bool,
}

/// What a copy holds and the hash by which it is told apart, reckoned once: it can be some megabytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyVersion {
    pub keys: Arc<CopyKeys>,
    /// The hash of their names and values.
    pub id: u64,
}

impl CopyVersion {
    #[must_use]
    pub fn new(keys: Arc<CopyKeys>) -> Self {
        let parts = keys.iter().flat_map(|(name, value)| [digest(name.as_bytes()), digest(value)]);
        let id = digest(&parts.flat_map(u64::to_le_bytes).collect::<Vec<_>>());
        Self { keys, id }
    }
}

impl ConfigCopies {
    /// No copy yet; the mounted one waits `hold` for a lost watch.
    #[must_use]
    pub fn new(hold: Duration) -> Self {
        Self { hold, ..Self::default() }
    }

    /// The watch delivered a version.
    pub fn delivered(&mut self, keys: Arc<CopyKeys>) {
        let copy = CopyVersion::new(keys);
        let id = copy.id;
        if self.file.as_ref().is_some_and(|file| file.id == id) {
            self.trail.clear();
        }
        self.trail.push_back(id);
        if self.trail.len() > TRAIL {
            self.trail.pop_front();
        }
        self.api = Some(copy);
        self.live();
    }

    /// The watch is known to be live: what the mount shows now is not newer than what the watch delivered or is about to.
    pub fn live(&mut self) {
        self.gone_since = None;
        self.ahead = false;
    }

    /// The watch is lost, at the latest since `now`.
    pub fn lost(&mut self, now: Duration) {
        self.gone_since.get_or_insert(now);
    }

    /// The mount shows this.
    pub fn mounted(&mut self, keys: Arc<CopyKeys>) {
        let copy = CopyVersion::new(keys);
        let id = copy.id;
        if self.file.as_ref().is_none_or(|file| file.id != id) {
            let newest = self.trail.back() == Some(&id);
            let position = if newest { Some(self.trail.len() - 1) } else { self.trail.iter().position(|version| *version == id) };
            self.ahead = !newest && (self.ahead || position.is_none());
            if !self.ahead {
                self.trail.drain(..position.unwrap_or_default());
            }
        }
        self.file = Some(copy);
    }

    /// The copies in the order in which they are to be tried at this time.
    #[must_use]
    pub fn ranked(&self, now: Duration) -> Vec<(CopySource, &CopyVersion)> {
        let api = self.api.as_ref().map(|copy| (CopySource::Api, copy));
        let file = self.file.as_ref().map(|copy| (CopySource::File, copy));
        let newer = self.ahead && self.gone_since.is_some_and(|since| now >= since.saturating_add(self.hold));
        let order = if newer { [file, api] } else { [api, file] };
        order.into_iter().flatten().collect()
    }

    /// When [`ConfigCopies::ranked`] will change by itself.
    #[must_use]
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let at = self.gone_since.filter(|_| self.ahead)?.saturating_add(self.hold);
        (at > now).then_some(at)
    }
}

#[cfg(test)]
mod tests;

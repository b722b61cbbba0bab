//! Selection of a config's copy: from the API watch or from the kubelet's mount.
//!
//! A mounted copy is a past version of the object: the kubelet follows the API in order, with a delay. Hence the rules of [`ConfigCopies`]:
//! - nothing from the watch yet: the mounted copy, at once;
//! - the watch has delivered: its copy, whatever the mount has;
//! - the watch is lost for longer than the hold time, *and* the mount has changed since to a version that the watch has not delivered: the
//!   mounted copy, because only then is it newer;
//! - the watch is back: its copy again.
//!
//! A mounted copy that the watch delivered earlier is the delayed kubelet and changes nothing, so the selection does not flap. The hold time
//! exceeds the kubelet's delay. An unreadable copy changes nothing: the last good one stays. Pure.

use std::collections::{BTreeMap, VecDeque};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::model::config::fingerprint64;

pub mod document;
mod select;

pub use document::{Document, DocumentFault, EgressDocument, IngressDocument, ServeContent, ServeDocument};
pub use select::{InForce, Selection, WatchHealth};

/// Values of the relevant keys at one time; missing keys are absent.
pub type CopyKeys = BTreeMap<String, Bytes>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopySource {
    Api,
    File,
}

impl CopySource {
    /// Name for logs and metric labels.
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

/// Hold time: longer than a kubelet's usual delay (sync period and cache, 60 to 90 s).
pub const HOLD_PERIOD: Duration = Duration::from_mins(2);

/// Maximum stored versions that the watch delivered and the mount has not shown yet.
const TRAIL: usize = 1024;

/// Both copies and their order. Times are relative to any fixed moment.
#[derive(Debug, Clone, Default)]
pub struct ConfigCopies {
    hold: Duration,
    api: Option<CopyVersion>,
    file: Option<CopyVersion>,
    gone_since: Option<Duration>,
    /// Hashes of delivered versions, from the mounted one on, oldest first.
    trail: VecDeque<u64>,
    /// The mount has a version that the watch has not delivered, since the watch was last live.
    ahead: bool,
}

/// Content of a copy with its hash, computed once: it can have some megabytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyVersion {
    pub keys: Arc<CopyKeys>,
    /// Hash of names and values.
    pub id: u64,
}

impl CopyVersion {
    pub fn new(keys: Arc<CopyKeys>) -> Self {
        let parts = keys.iter().flat_map(|(name, value)| [fingerprint64(name.as_bytes()), fingerprint64(value)]);
        let id = fingerprint64(&parts.flat_map(u64::to_le_bytes).collect::<Vec<_>>());
        Self { keys, id }
    }
}

impl ConfigCopies {
    /// Without copies; `hold` is the hold time.
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

    /// Records that the watch is live: the mount is not newer than the watch.
    pub fn live(&mut self) {
        self.gone_since = None;
        self.ahead = false;
    }

    /// Records the loss of the watch, at the latest at `now`.
    pub fn lost(&mut self, now: Duration) {
        self.gone_since.get_or_insert(now);
    }

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

    /// Copies in order of preference at this time.
    pub fn ranked(&self, now: Duration) -> Vec<(CopySource, &CopyVersion)> {
        let api = self.api.as_ref().map(|copy| (CopySource::Api, copy));
        let file = self.file.as_ref().map(|copy| (CopySource::File, copy));
        let newer = self.ahead && self.gone_since.is_some_and(|since| now >= since.saturating_add(self.hold));
        let order = if newer { [file, api] } else { [api, file] };
        order.into_iter().flatten().collect()
    }

    /// Time at which [`ConfigCopies::ranked`] changes by itself.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let at = self.gone_since.filter(|_| self.ahead)?.saturating_add(self.hold);
        (at > now).then_some(at)
    }
}

#[cfg(test)]
mod tests;

//! The config in force: the preferred readable copy, else the last good one.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::{ConfigCopies, CopyKeys, CopySource, CopyVersion, Document, DocumentFault};
use crate::model::config::ConfigError;

/// State of the API watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchHealth {
    /// Not used: mounted copy only.
    Off,
    /// Not established yet.
    #[default]
    Connecting,
    /// Established.
    Live,
    /// Lost, or never established; the reason is of a closed set.
    Lost { since: Duration, reason: &'static str, message: String },
}

/// The document in force with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InForce<D> {
    /// The document; `None` before the first readable copy.
    pub document: Option<Arc<D>>,
    pub source: Option<CopySource>,
    pub since: Duration,
    /// Fault of a newer copy.
    pub fault: Option<DocumentFault>,
    pub link: WatchHealth,
}

impl<D> Default for InForce<D> {
    fn default() -> Self {
        Self { document: None, source: None, since: Duration::ZERO, fault: None, link: WatchHealth::default() }
    }
}

/// Selects among the copies and keeps the last good document.
#[derive(Debug, Clone)]
pub struct Selection<D> {
    copies: ConfigCopies,
    in_force: InForce<D>,
    /// Hash of the copy in force.
    used: Option<u64>,
    deleted: bool,
    mount: Option<String>,
}

impl<D: Document> Selection<D> {
    /// Without document.
    pub fn new(hold: Duration, watched: bool) -> Self {
        let link = if watched { WatchHealth::Connecting } else { WatchHealth::Off };
        let in_force = InForce { link, ..InForce::default() };
        Self { copies: ConfigCopies::new(hold), in_force, used: None, deleted: false, mount: None }
    }

    pub fn in_force(&self) -> &InForce<D> {
        &self.in_force
    }

    /// Records an object from the watch.
    pub fn delivered(&mut self, keys: CopyKeys) {
        self.deleted = false;
        self.copies.delivered(Arc::new(only::<D>(keys)));
    }

    /// Records that the object does not exist.
    pub fn absent(&mut self) {
        self.deleted = true;
        self.copies.live();
    }

    /// Records an established watch.
    pub fn live(&mut self) {
        self.in_force.link = WatchHealth::Live;
        self.copies.live();
    }

    /// Records a lost watch.
    pub fn lost(&mut self, now: Duration, reason: &'static str, message: String) {
        let since = if let WatchHealth::Lost { since, .. } = self.in_force.link { since } else { now };
        self.in_force.link = WatchHealth::Lost { since, reason, message };
        self.copies.lost(now);
    }

    pub fn mounted(&mut self, keys: CopyKeys) {
        self.mount = None;
        self.copies.mounted(Arc::new(only::<D>(keys)));
    }

    /// Records an unreadable mount.
    pub fn unmounted(&mut self, reason: String) {
        self.mount = Some(reason);
    }

    /// Time at which the selection changes by itself.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        self.copies.due(now)
    }

    /// Selects again.
    pub fn settle(&mut self, now: Duration) {
        let copies: Vec<_> = self.copies.ranked(now).into_iter().map(|(from, copy)| (from, copy.clone())).collect();
        let mut fault = None;
        for (from, CopyVersion { keys, id }) in copies {
            if self.used == Some(id) {
                self.in_force.source = Some(from);
                break;
            }
            match self.read(from, &keys) {
                Ok(document) => {
                    self.used = Some(id);
                    let (document, source) = (Some(Arc::new(document)), Some(from));
                    self.in_force = InForce { document, source, since: now, ..std::mem::take(&mut self.in_force) };
                    break;
                }
                Err(wrong) => fault = fault.or(Some(wrong)),
            }
            if self.in_force.document.is_some() {
                break;
            }
        }
        self.in_force.fault = if self.deleted { Some(DocumentFault::Deleted) } else { fault.or_else(|| self.mount_fault()) };
    }

    /// A key that is missing in the first copy means no services; one that vanishes later changes nothing.
    fn read(&self, from: CopySource, keys: &CopyKeys) -> Result<D, DocumentFault> {
        if self.in_force.document.is_some() && !keys.contains_key(D::KEY) {
            return Err(DocumentFault::KeyMissing { from, key: D::KEY });
        }
        let fault = |error: ConfigError| DocumentFault::Unreadable { from, key: D::KEY, reason: error.to_string() };
        D::read(keys, self.in_force.document.as_deref()).map_err(fault)
    }

    /// Fault of the mount, ignored while the watch is live.
    fn mount_fault(&self) -> Option<DocumentFault> {
        self.mount.clone().filter(|_| self.in_force.link != WatchHealth::Live).map(DocumentFault::Mount)
    }
}

fn only<D: Document>(mut keys: CopyKeys) -> CopyKeys {
    keys.retain(|key, _| D::KEYS.contains(&key.as_str()));
    D::unpacked(keys)
}

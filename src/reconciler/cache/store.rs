//! A store: the objects of a role, and the progress of its watches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{CachedObject, Id};

/// Maximum number of remembered deletions: more than concurrent writes.
const ENDS: usize = 1024;

#[derive(Debug)]
pub(super) struct StoredObject {
    pub(super) version: u64,
    pub(super) object: CachedObject,
    /// Hash of the manifest whose apply resulted in this version. The same manifest means that the API server normalizes the object: it is
    /// not written again.
    pub(super) settled: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct ObjectStore {
    pub(super) objects: BTreeMap<Id, StoredObject>,
    /// Number of watches that feed it.
    pub(super) watches: usize,
    /// Whether the kind is not installed.
    pub(super) lacking: bool,
    /// Watches, by namespace, with a complete first list.
    complete: BTreeSet<Option<String>>,
    /// Objects in each running list.
    naming: BTreeMap<Option<String>, BTreeSet<Id>>,
    /// Versions of the newest deletions: the response to a write of ours may arrive after the deletion event and must not restore the
    /// object.
    ends: BTreeMap<Id, u64>,
    ended: VecDeque<Id>,
}

impl ObjectStore {
    pub(super) fn begin(&mut self, namespace: Option<&str>) {
        self.naming.insert(namespace.map(str::to_owned), BTreeSet::new());
    }

    pub(super) fn named(&mut self, namespace: Option<&str>, id: Id) {
        self.lacking = false;
        self.naming.entry(namespace.map(str::to_owned)).or_default().insert(id);
    }

    /// Completes a list; returns the stored objects in its scope that it does not contain.
    pub(super) fn complete(&mut self, namespace: Option<&str>) -> Vec<Id> {
        let scope = namespace.map(str::to_owned);
        let named = self.naming.remove(&scope).unwrap_or_default();
        self.complete.insert(scope);
        let inside = |id: &&Id| namespace.is_none_or(|namespace| id.0 == namespace);
        self.objects.keys().filter(inside).filter(|id| !named.contains(*id)).cloned().collect()
    }

    pub(super) fn synced(&self) -> bool {
        self.complete.len() >= self.watches
    }

    /// Whether the stored object is newer than this version.
    pub(super) fn newer_than(&self, id: &Id, version: u64) -> bool {
        self.objects.get(id).is_some_and(|stored| stored.version > version && stored.version != u64::MAX)
    }

    /// Whether the stored object has this version or a newer one, or was deleted since.
    pub(super) fn holds(&self, id: &Id, version: u64) -> bool {
        let is_newer = self.objects.get(id).is_some_and(|stored| stored.version >= version && stored.version != u64::MAX);
        is_newer || self.ends.get(id).is_some_and(|end| *end >= version)
    }

    /// Remembers a deletion at this version, unless the version is not a number.
    pub(super) fn end(&mut self, id: &Id, version: u64) {
        if version == u64::MAX {
            return;
        }
        if self.ends.insert(id.clone(), version).is_none() {
            self.ended.push_back(id.clone());
        }
        if self.ended.len() > ENDS
            && let Some(oldest) = self.ended.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }
}

//! One store: the objects of a role, and how far its watches are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{CachedObject, Id};

/// How many ends are remembered: more than writes can be under way.
const ENDS: usize = 1024;

#[derive(Debug)]
pub(super) struct StoredObject {
    pub(super) version: u64,
    pub(super) object: CachedObject,
}

/// The objects of a role.
#[derive(Debug, Default)]
pub(super) struct ObjectStore {
    pub(super) objects: BTreeMap<Id, StoredObject>,
    /// How many watches feed it.
    pub(super) watches: usize,
    /// The API has no such kind.
    pub(super) lacking: bool,
    /// The watches, by namespace, whose first list is complete.
    complete: BTreeSet<Option<String>>,
    /// What the lists that are under way have named.
    naming: BTreeMap<Option<String>, BTreeSet<Id>>,
    /// The versions at which objects ended, the newest ends only: an answer to a write of ours may come later than the news
    /// of the end, and must not bring the object back.
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

    /// Ends a list; the objects in its scope that it did not name.
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

    /// Whether what is held is newer than this version.
    pub(super) fn newer_than(&self, id: &Id, version: u64) -> bool {
        self.objects.get(id).is_some_and(|stored| stored.version > version && stored.version != u64::MAX)
    }

    /// Whether what is held is this version, or newer, or the object has ended since.
    pub(super) fn holds(&self, id: &Id, version: u64) -> bool {
        let is_newer = self.objects.get(id).is_some_and(|stored| stored.version >= version && stored.version != u64::MAX);
        is_newer || self.ends.get(id).is_some_and(|end| *end >= version)
    }

    /// Remembers that an object ended at this version, if it is one.
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

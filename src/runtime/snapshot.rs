//! Snapshot cells for hot paths: a value that is replaced as a whole and read without a lock.
//!
//! A `watch` channel wakes tasks and takes a lock for each read; a cell wakes no task, and its readers never wait for a writer. Each cell
//! has one writer.

use std::fmt::{Debug, Formatter};
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwap;

/// A cell with the newest snapshot. Clones share it.
pub struct SnapshotCell<T>(Arc<ArcSwap<T>>);

impl<T> SnapshotCell<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(value)))
    }

    /// Newest snapshot, for a short time: not across an `await`.
    pub fn read(&self) -> impl Deref<Target = Arc<T>> + use<T> {
        self.0.load()
    }

    /// Replaces the snapshot; readers keep the previous one until they drop it.
    pub fn replace(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

impl<T> Clone for SnapshotCell<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Debug> Debug for SnapshotCell<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SnapshotCell").field(&*self.read()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_reads_the_newest_snapshot_and_a_reader_keeps_its_own() {
        let cell = SnapshotCell::new(1);
        let other = cell.clone();
        let before = other.read();
        cell.replace(2);
        assert_eq!((**before, **other.read()), (1, 2));
    }
}

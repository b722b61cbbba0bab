//! Conflicts with objects that a pass does not see, and with allocated node ports.
//!
//! Learnt from failed writes and forgotten after a while: the conflicting object may be deleted without notice.

use crate::model::controller::key::WorkloadKey;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{ClusterCache, ParsedObject};
use crate::model::controller::workload::objects::ObjectRef;

/// Time for which a foreign object is assumed to exist.
pub(super) const FOREIGN_TTL: Duration = Duration::from_secs(30);
/// Time for which a rejected node port is not requested again.
const REFUSED_PORT_TTL: Duration = Duration::from_mins(10);
/// Maximum node ports tried in a row.
const TRIES: usize = 32;

impl ClusterCache {
    /// Records an existing object that has the name of an object of a group: as much of it as if it were one of ours.
    pub fn found(&mut self, key: &WorkloadKey, object: ObjectRef, parsed: &ParsedObject, now: Instant) {
        if let Some(value) = parsed.object.owned() {
            self.foreign.entry(key.clone()).or_default().insert(object, (Arc::clone(value), now));
        }
    }

    /// Records a stored object that a workload was about to create, whatever its labels say: the next pass sees whose it is. Returns whether
    /// there is one.
    pub fn find(&mut self, key: &WorkloadKey, object: &ObjectRef, now: Instant) -> bool {
        let Some(existing) = self.owned_object(object).cloned() else { return false };
        self.foreign.entry(key.clone()).or_default().insert(object.clone(), (existing, now));
        true
    }

    /// Forgets expired conflicts of a group; returns whether any remain.
    pub fn forget_foreign(&mut self, key: &WorkloadKey, now: Instant) -> bool {
        let Some(objects) = self.foreign.get_mut(key) else { return false };
        objects.retain(|_, (_, since)| now - *since < FOREIGN_TTL);
        if objects.is_empty() {
            self.foreign.remove(key);
        }
        self.foreign.contains_key(key)
    }

    /// Records a rejected node port: it is allocated to an unknown Service or outside of the cluster's range. Returns whether to try
    /// another at once.
    pub fn refused_port(&mut self, port: u16, now: Instant) -> bool {
        self.refused_ports.retain(|_, since| now - *since < REFUSED_PORT_TTL);
        self.refused_ports.insert(port, now);
        self.refused_ports.len() <= TRIES
    }
}

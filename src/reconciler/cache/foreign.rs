//! What is somebody else's and in our way: objects that no watch shows us, and node ports that are taken.
//!
//! Learnt when a write meets it, and believed for a while only: whoever is in the way may go without our hearing of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::ClusterCache;
use crate::model::controller::objects::ObjectRef;

/// How long it is believed that an object which no watch shows us is somebody else's.
pub(super) const FOREIGN: Duration = Duration::from_secs(30);
/// How long a node port that was refused is not asked for again.
const REFUSED: Duration = Duration::from_mins(10);
/// How many node ports are asked for in a row.
const TRIES: usize = 32;

impl ClusterCache {
    /// An object that a group would make exists and is shown by no watch.
    pub fn found(&mut self, group: &str, object: ObjectRef, value: Value, now: Instant) {
        self.foreign.entry(group.to_owned()).or_default().insert(object, (Arc::new(value), now));
    }

    /// Forgets who was in a group's way longer ago than it can be believed. Whether anybody still is.
    pub fn forget_foreign(&mut self, group: &str, now: Instant) -> bool {
        let Some(objects) = self.foreign.get_mut(group) else { return false };
        objects.retain(|_, (_, since)| now - *since < FOREIGN);
        if objects.is_empty() {
            self.foreign.remove(group);
        }
        self.foreign.contains_key(group)
    }

    /// The API server refused a node port: somebody has it whom we do not see, or it is none of the cluster's. Whether another
    /// is worth a try at once.
    pub fn refused_port(&mut self, port: u16, now: Instant) -> bool {
        self.refused_ports.retain(|_, since| now - *since < REFUSED);
        self.refused_ports.insert(port, now);
        self.refused_ports.len() <= TRIES
    }
}

//! What a replica knows of its own reachability: the note about it, which its kubelet delivers without the Pod network, and the health
//! probes that it receives.
//!
//! A replica is unready while a reconciler notes it as lost. The note is a decision about all replicas: another one is ready. Two facts
//! overrule it: a probe that arrives over the network, and an age of [`NOTE_TTL`], as the reconcilers may be gone.

use std::time::{Duration, Instant};

use crate::api::failover::{UnreachableNote, UnreachableStage};

/// Time for which a replica is unready by one note. Reconcilers renew it earlier.
pub(super) const NOTE_TTL: Duration = Duration::from_mins(5);
/// Maximum age of the last probe of a reachable replica.
const PROBE_AGE: Duration = Duration::from_secs(1);

/// The newest note and probe of a replica.
#[derive(Debug, Default)]
pub struct Reception {
    text: String,
    /// Time at which this process read that text first.
    since: Option<Instant>,
    probe: Option<Instant>,
}

impl Reception {
    /// Records a probe by a reconciler that reaches other nodes.
    pub fn record_probe(&mut self, now: Instant) {
        self.probe = Some(now);
    }

    /// Records the text of the note as it is now. Returns the note if the replica is unreachable by it.
    pub fn unreachable(&mut self, text: &str, now: Instant) -> Option<UnreachableNote> {
        if self.text != text {
            (self.text, self.since) = (text.to_owned(), Some(now));
        }
        let since = self.since?;
        let is_valid = now.saturating_duration_since(since) < NOTE_TTL;
        let is_probed = self.probe.is_some_and(|probe| probe >= since || now.saturating_duration_since(probe) < PROBE_AGE);
        let note: UnreachableNote = serde_json::from_str(text).ok()?;
        (is_valid && !is_probed && note.stage == UnreachableStage::Lost).then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn note(stage: &str, time: &str) -> String {
        json!({"stage": stage, "process": "r-1", "time": time, "since": "s", "connected": true}).to_string()
    }

    #[test]
    fn noted_replica_is_unreachable_until_a_probe_arrives() {
        let (begin, mut reception) = (Instant::now(), Reception::default());
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(reception.unreachable("", at(0)), None);
        assert_eq!(reception.unreachable(&note("suspected", "1"), at(1000)), None);
        assert!(reception.unreachable(&note("lost", "2"), at(2000)).is_some_and(|note| note.process == "r-1"));
        assert!(reception.unreachable(&note("lost", "2"), at(9000)).is_some());
        reception.record_probe(at(9500));
        assert_eq!(reception.unreachable(&note("lost", "2"), at(9500)), None);
        assert_eq!(reception.unreachable(&note("lost", "2"), at(60_000)), None, "the note was wrong or is over");
        assert!(reception.unreachable(&note("lost", "3"), at(61_000)).is_some(), "another one");
        assert_eq!(reception.unreachable("", at(62_000)), None);
    }

    #[test]
    fn replica_that_is_probed_is_reachable_whatever_is_noted() {
        let (begin, mut reception) = (Instant::now(), Reception::default());
        reception.record_probe(begin);
        assert_eq!(reception.unreachable(&note("lost", "1"), begin + Duration::from_millis(900)), None);
        assert!(reception.unreachable(&note("lost", "1"), begin + Duration::from_secs(1)).is_some());
    }

    #[test]
    fn note_that_is_not_renewed_ends() {
        let (begin, mut reception) = (Instant::now(), Reception::default());
        let minutes = |count: u64| begin + Duration::from_secs(60 * count);
        assert!(reception.unreachable(&note("lost", "1"), begin).is_some());
        assert!(reception.unreachable(&note("lost", "1"), minutes(4)).is_some());
        assert!(reception.unreachable(&note("lost", "2"), minutes(4)).is_some());
        assert!(reception.unreachable(&note("lost", "2"), minutes(8)).is_some());
        assert_eq!(reception.unreachable(&note("lost", "2"), minutes(9)), None);
    }
}

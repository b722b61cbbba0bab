//! Writes to the Pod of a replica: the note of its reachability, and its condition `Ready`.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::replica::{READY, ReplicaPod};
use crate::api::condition::{FALSE, TRUE, reason};
use crate::api::failover::{UnreachableNote, UnreachableStage};
use crate::api::names;
use crate::model::controller::workload::readiness::note_message;

/// A change of a replica's Pod, conditional on the version that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct PodChange {
    pub pod: ReplicaPod,
    pub step: NoteStep,
    /// Time without an answer.
    pub silence: Duration,
    /// Whether this process reaches other nodes.
    pub connected: bool,
    /// Its Pod as read.
    pub(super) object: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteStep {
    /// Notes the suspicion, so that other processes can withdraw it.
    Suspect,
    /// Makes the Pod unready, and notes that it is lost.
    MakeUnready,
    /// Writes the note again, before the replica ignores it.
    Renew,
    /// Removes the note. A replica that is reached becomes ready at once, if its kubelet found it ready; others when the kubelet says so.
    Withdraw { is_reached: bool },
}

impl PodChange {
    /// Whether it makes a Pod unready that was only suspected before.
    pub fn is_first_mark(&self) -> bool {
        self.step == NoteStep::MakeUnready && !self.pod.is_noted_lost()
    }

    /// Merge patch of the Pod's status. `process` is the name of this process.
    pub fn patch(&self, process: &str, now: Timestamp) -> Value {
        let since = now.checked_sub(self.silence).unwrap_or(now);
        let note = |stage| UnreachableNote {
            stage,
            process: process.to_owned(),
            time: format!("{now:.3}"),
            since: format!("{since:.0}"),
            connected: self.connected,
        };
        let (note, ready) = match self.step {
            NoteStep::Suspect => (Some(note(UnreachableStage::Suspected)), None),
            NoteStep::Renew => (Some(note(UnreachableStage::Lost)), None),
            NoteStep::MakeUnready => {
                let note = note(UnreachableStage::Lost);
                let ready = json!({"status": FALSE, "reason": reason::UNREACHABLE, "message": note_message(&note)});
                (Some(note), Some(ready))
            }
            NoteStep::Withdraw { is_reached } => (None, (is_reached && self.may_be_restored()).then(|| json!({"status": TRUE}))),
        };
        let note = note.filter(|_| !self.pod.workload.is_standalone()).map(|note| json!(note).to_string());
        let mut patch = json!({"metadata": {
            "uid": self.pod.uid,
            "resourceVersion": self.object["metadata"]["resourceVersion"],
            "annotations": {names::UNREACHABLE: note},
        }});
        if let Some(mut ready) = ready {
            ready["type"] = READY.into();
            ready["lastTransitionTime"] = format!("{now:.0}").into();
            let others = self.conditions().filter(|condition| condition["type"] != READY).cloned();
            patch["status"] = json!({"conditions": others.chain([ready]).collect::<Vec<_>>()});
        }
        patch
    }

    /// Whether the kubelet found the containers ready, and only failover made the Pod unready.
    fn may_be_restored(&self) -> bool {
        let is_unready_by_failover = |condition: &Value| condition["type"] == READY && condition["reason"] == reason::UNREACHABLE;
        let has_ready_containers = |condition: &Value| condition["type"] == "ContainersReady" && condition["status"] == TRUE;
        self.conditions().any(is_unready_by_failover) && self.conditions().any(has_ready_containers)
    }

    fn conditions(&self) -> impl Iterator<Item = &Value> {
        self.object["status"]["conditions"].as_array().into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;

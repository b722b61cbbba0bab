//! Readiness and addresses of Pods, from their status.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{TRUE, reason};
use crate::api::failover::{UnreachableNote, UnreachableStage};
use crate::api::names;

/// Maximum wait for a Pod that is unready or missing. It gets no traffic meanwhile, and becomes ready only with the complete config.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

/// Whether a Pod has been unready for longer than it is awaited.
pub(crate) fn long_unready(pod: &Pod, now: Timestamp) -> bool {
    unready_since(pod).is_some_and(|since| elapsed(since, now) >= TIMEOUT)
}

/// Whether a Pod gets traffic, and since when not.
pub(crate) fn readiness(pod: Option<&Pod>) -> (bool, Option<Timestamp>) {
    let Some(pod) = pod else { return (false, None) };
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).or(pod.metadata.creation_timestamp.as_ref());
    let is = ready.is_some_and(|ready| ready.status == TRUE) && pod.metadata.deletion_timestamp.is_none();
    (is, since.map(|since| since.0))
}

/// Since when a Pod gets no traffic; `None` if it does, or if that is unknown.
pub(crate) fn unready_since(pod: &Pod) -> Option<Timestamp> {
    let (ready, since) = readiness(Some(pod));
    since.filter(|_| !ready)
}

/// Whether a Pod gets traffic.
pub fn is_ready(pod: &Pod) -> bool {
    readiness(Some(pod)).0
}

/// Addresses of a Pod: at most one of each family. The status of a Pod that has ended, as an evicted one, names some that are free again.
pub(crate) fn pod_addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let runs = |status: &&PodStatus| !matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    pod.status.iter().filter(runs).flat_map(|status| status.pod_ips.iter().flatten()).filter_map(|ip| ip.ip.parse().ok())
}

/// Note of a reconciler that the replica does not answer.
pub fn unreachable_note(pod: &Pod) -> Option<UnreachableNote> {
    serde_json::from_str(pod.metadata.annotations.as_ref()?.get(names::UNREACHABLE)?).ok()
}

/// Whether failover has made a replica's Pod unready, because it does not answer health probes.
pub fn is_lost(pod: &Pod) -> bool {
    lost(pod).is_some()
}

/// Message of a lost replica's Pod: since when it does not answer.
pub fn lost_message(pod: &Pod) -> Option<String> {
    match lost(pod)? {
        LostBy::Condition(ready) => ready.message.clone(),
        LostBy::Note(note) => Some(note_message(&note)),
    }
}

/// What says that a Pod is unready because its replica is lost. A living kubelet replaces the condition; the note stays.
enum LostBy<'a> {
    Condition(&'a PodCondition),
    Note(UnreachableNote),
}

fn lost(pod: &Pod) -> Option<LostBy<'_>> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let unready = conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status != TRUE)?;
    if unready.reason.as_deref() == Some(reason::UNREACHABLE) {
        return Some(LostBy::Condition(unready));
    }
    unreachable_note(pod).filter(|note| note.stage == UnreachableStage::Lost).map(LostBy::Note)
}

/// Message of the condition `Ready` of a lost replica's Pod.
pub fn note_message(note: &UnreachableNote) -> String {
    format!("no answer to health probes since {}; {} made the Pod unready until it answers again", note.since, note.process)
}

pub(crate) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(now.as_second().saturating_sub(since.as_second())).unwrap_or_default())
}

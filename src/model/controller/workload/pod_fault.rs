//! Why a Pod of a proxy does not exist or does not run, for conditions, `status` and `doctor`.
//!
//! Texts of admission controllers, schedulers and kubelets are input from outside: bounded, without control characters. Of a fault that lasts
//! the text stays the same across retries, so that a retry writes no condition.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;

use crate::model::base::bounded::clean;
use crate::model::controller::workload::readiness::elapsed;

/// Age after which an Event does not count: the `StatefulSet` controller retries, and repeats it, at least every 1000 s.
const MAX_EVENT_AGE: Duration = Duration::from_mins(20);
/// Reasons of a waiting container that starts.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Reasons for which the kubelet cannot pull an image; it alternates between the first two.
const IMAGE: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"];

/// An Event by which the `StatefulSet` controller reports that it cannot create a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateFailure {
    /// Name of the `StatefulSet`.
    pub set: String,
    /// Cause, as the API server's admission reports it.
    pub cause: String,
    pub at: Timestamp,
}

/// Why a Pod does not exist or does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFault {
    pub message: String,
    /// Action; empty if the message implies it.
    pub fix: &'static str,
}

/// Maximum length of a StatefulSet's name that the API server accepts.
const MAX_SET_NAME: usize = 253;

impl CreateFailure {
    /// Reason of these Events.
    pub const REASON: &'static str = "FailedCreate";

    /// Reads an Event; `None` if it is another one.
    pub fn read(event: &Event) -> Option<Self> {
        let about = event.regarding.as_ref().filter(|about| about.kind.as_deref() == Some("StatefulSet"))?;
        if event.reason.as_deref() != Some(Self::REASON) {
            return None;
        }
        let note = event.note.as_deref().unwrap_or_default();
        let cause = note.split_once(" failed error: ").map_or(note, |(_, cause)| cause);
        let last = [event.series.as_ref().map(|series| series.last_observed_time.0), event.event_time.as_ref().map(|time| time.0)];
        let old =
            [event.deprecated_last_timestamp.as_ref(), event.metadata.creation_timestamp.as_ref()].map(|time| time.map(|time| time.0));
        let at = last.into_iter().chain(old).flatten().max()?;
        // The API server does not check this name.
        let set = about.name.clone().filter(|name| name.len() <= MAX_SET_NAME)?;
        Some(Self { set, cause: clean(cause), at })
    }

    /// The newest failure of a `StatefulSet`, unless it is too old or a Pod was created later.
    pub fn current<'a>(
        failures: impl IntoIterator<Item = &'a Self>,
        pods: impl IntoIterator<Item = &'a Pod>,
        now: Timestamp,
    ) -> Option<&'a Self> {
        let created = pods.into_iter().filter_map(|pod| Some(pod.metadata.creation_timestamp.as_ref()?.0)).max();
        let newest = failures.into_iter().max_by_key(|failure| failure.at)?;
        let is_current = created.is_none_or(|created| created <= newest.at) && elapsed(newest.at, now) <= MAX_EVENT_AGE;
        is_current.then_some(newest)
    }
}

impl PodFault {
    /// Why this Pod does not run or, if it does not exist, why it cannot be created. `None` if neither is known.
    pub fn find(pod: Option<&Pod>, failure: Option<&CreateFailure>) -> Option<Self> {
        match pod {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => None,
            Some(pod) => unscheduled(pod).or_else(|| containers(pod).find_map(of_container)),
            None => {
                failure.map(|failure| Self { message: format!("cannot be created: {}", failure.cause), fix: creation_fix(&failure.cause) })
            }
        }
    }

    /// Message and action.
    pub fn text(&self) -> String {
        if self.fix.is_empty() { self.message.clone() } else { format!("{}; {}", self.message, self.fix) }
    }
}

/// Action for a cause of admission.
fn creation_fix(cause: &str) -> &'static str {
    if cause.contains("violates PodSecurity") {
        "label the namespace of the proxies pod-security.kubernetes.io/enforce=privileged"
    } else if cause.contains("security context constraint") {
        "grant the SCC privileged to the ServiceAccounts of the proxies' namespace"
    } else if cause.contains("exceeded quota") || cause.contains("failed quota") {
        "raise the ResourceQuota of the proxies' namespace"
    } else {
        ""
    }
}

fn unscheduled(pod: &Pod) -> Option<PodFault> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    let why = condition.message.as_deref().unwrap_or("no reason given");
    Some(PodFault { message: format!("not scheduled: {}", clean(why)), fix: "" })
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    all.flatten().flatten().filter(|container| !container.ready)
}

fn of_container(container: &ContainerStatus) -> Option<PodFault> {
    let (name, state) = (&container.name, container.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
    let message = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default();
    if IMAGE.contains(&reason) {
        let reason = if reason == IMAGE[0] { IMAGE[1] } else { reason };
        let cause = message.split_once("ErrImagePull: ").map_or(message, |(_, cause)| cause);
        let message = clean(format!("container {name} has no image ({reason}): {cause}"));
        return Some(PodFault { message, fix: "check name, platform and pull Secret of the image" });
    }
    let ended = state.and_then(|state| state.terminated.as_ref()).or_else(|| container.last_state.as_ref()?.terminated.as_ref());
    if let Some(ended) = ended.filter(|_| waiting.is_none() || reason == "CrashLoopBackOff") {
        let why = ended.reason.as_deref().unwrap_or("no reason given");
        let message = clean(format!("container {name} ended with code {} ({why}) and is started again", ended.exit_code));
        return Some(PodFault { message, fix: "kubectl logs --previous names the cause" });
    }
    let waits = waiting.is_some() && !STARTING.contains(&reason);
    let reason = if reason.is_empty() { "for no given reason" } else { reason };
    let cause = if message.is_empty() { String::new() } else { format!(": {message}") };
    waits.then(|| PodFault { message: clean(format!("container {name} waits, {reason}{cause}")), fix: "" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::base::bounded::is_clean;

    #[allow(clippy::needless_pass_by_value, reason = "JSON literals")]
    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "eg-0"}, "status": status})).expect("a Pod")
    }

    fn text(pod: &Pod) -> String {
        PodFault::find(Some(pod), None).map(|fault| fault.text()).unwrap_or_default()
    }

    /// Fault of a Pod whose proxy container has this state and last state.
    #[allow(clippy::needless_pass_by_value, reason = "JSON literals")]
    fn container(state: Value, last: Value) -> String {
        let status = json!({"name": "tailscale", "ready": false, "restartCount": 3, "image": "x", "imageID": "", "state": state,
            "lastState": last});
        text(&pod(json!({"containerStatuses": [status]})))
    }

    fn waits(reason: &str, message: &str) -> Value {
        json!({"waiting": {"reason": reason, "message": message}})
    }

    fn event(note: &str, at: &str) -> Event {
        serde_json::from_value(json!({"metadata": {"name": "eg.1", "namespace": "ts"}, "reason": "FailedCreate", "note": note,
            "regarding": {"kind": "StatefulSet", "name": "eg", "namespace": "ts"}, "deprecatedLastTimestamp": at, "eventTime": null}))
        .expect("an Event")
    }

    #[test]
    fn image_fault_has_one_text_while_the_kubelet_retries() {
        let cause = "rpc error: code = NotFound desc = example.com/x:1: not found";
        let back_off = format!("Back-off pulling image \"example.com/x:1\": ErrImagePull: {cause}");
        let found = container(waits("ErrImagePull", cause), json!({}));
        assert_eq!(
            found,
            format!("container tailscale has no image (ImagePullBackOff): {cause}; check name, platform and pull Secret of the image")
        );
        assert_eq!(container(waits("ImagePullBackOff", &back_off), json!({})), found);
    }

    #[test]
    fn crash_has_one_text_while_the_container_is_started_again() {
        let ended = json!({"terminated": {"exitCode": 64, "reason": "Error"}});
        let found = container(waits("CrashLoopBackOff", "back-off 40s restarting failed container"), ended.clone());
        assert_eq!(found, "container tailscale ended with code 64 (Error) and is started again; kubectl logs --previous names the cause");
        assert_eq!(container(json!({"running": {}}), ended.clone()), found);
        assert_eq!(container(ended, json!({})), found);
    }

    #[test]
    fn pod_that_starts_runs_or_terminates_has_no_fault() {
        assert_eq!(container(waits("ContainerCreating", ""), json!({})), "");
        assert_eq!(container(json!({"running": {}}), json!({})), "");
        assert_eq!(text(&pod(json!({"phase": "Running"}))), "");
        let mut crashed: Pod = pod(json!({"containerStatuses": [{"name": "tailscale", "ready": false, "restartCount": 0, "image": "x",
            "imageID": "", "state": {"terminated": {"exitCode": 137}}}]}));
        assert_ne!(text(&crashed), "");
        crashed.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert_eq!(text(&crashed), "");
    }

    #[test]
    fn unscheduled_and_misconfigured_pods_show_the_message_of_kubernetes() {
        let condition = json!({"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu."});
        assert_eq!(text(&pod(json!({"conditions": [condition]}))), "not scheduled: 0/2 nodes are available: 2 Insufficient cpu.");
        let found = container(waits("CreateContainerConfigError", "secret \"a\" not found"), json!({}));
        assert_eq!(found, "container tailscale waits, CreateContainerConfigError: secret \"a\" not found");
    }

    #[test]
    fn creation_fault_has_cause_and_action() {
        let of = |cause: &str| {
            let note = format!("create Pod eg-0 in StatefulSet eg failed error: pods \"eg-0\" is forbidden: {cause}");
            let failure = CreateFailure::read(&event(&note, "2026-01-01T00:00:00Z")).expect("a failure");
            PodFault::find(None, Some(&failure)).expect("a fault")
        };
        let found = of("violates PodSecurity \"baseline:latest\": privileged");
        assert_eq!(found.message, "cannot be created: pods \"eg-0\" is forbidden: violates PodSecurity \"baseline:latest\": privileged");
        assert!(found.fix.contains("enforce=privileged"), "{found:?}");
        assert!(of("exceeded quota: q, requested: pods=1").fix.contains("ResourceQuota"));
        assert!(of("unable to validate against any security context constraint: []").fix.contains("SCC"));
        assert_eq!(of("a webhook denies it").fix, "");
        assert_eq!(PodFault::find(None, None), None);
    }

    #[test]
    fn text_from_outside_is_bounded_and_has_no_control_characters() {
        let failure = CreateFailure::read(&event(&format!("a\u{1b}[2J\n{}", "é".repeat(5000)), "2026-01-01T00:00:00Z")).expect("a failure");
        assert!(is_clean(&failure.cause) && failure.cause.len() > 500, "{}", failure.cause);
        let found = container(waits(&"x".repeat(5000), &"y".repeat(5000)), json!({}));
        assert!(is_clean(&found), "{}", found.len());
    }

    #[test]
    fn failure_counts_until_a_pod_is_created_or_it_is_not_repeated() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let failures = [("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-01T00:10:00Z")];
        let failures = failures.map(|(note, at)| CreateFailure::read(&event(note, at)).expect("a failure"));
        let current = |pods: &[Pod], now: &str| CreateFailure::current(&failures, pods, at(now)).map(|failure| failure.cause.clone());
        let created = |text: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "eg-0", "creationTimestamp": text}})).expect("a Pod")
        };
        assert_eq!(current(&[], "2026-01-01T00:11:00Z").as_deref(), Some("new"));
        assert_eq!(current(&[created("2026-01-01T00:09:00Z")], "2026-01-01T00:11:00Z").as_deref(), Some("new"));
        assert_eq!(current(&[created("2026-01-01T00:10:01Z")], "2026-01-01T00:11:00Z"), None);
        assert_eq!(current(&[], "2026-01-01T00:30:01Z"), None);
    }

    #[test]
    fn other_events_are_not_failures() {
        let mut other = event("scaled", "2026-01-01T00:00:00Z");
        other.reason = Some("SuccessfulCreate".to_owned());
        assert_eq!(CreateFailure::read(&other), None);
        let mut other = event("create Job failed", "2026-01-01T00:00:00Z");
        other.regarding = Some(k8s_openapi::api::core::v1::ObjectReference { kind: Some("Job".into()), ..Default::default() });
        assert_eq!(CreateFailure::read(&other), None);
    }
}

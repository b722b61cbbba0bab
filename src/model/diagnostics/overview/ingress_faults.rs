//! Faults of Ingresses, from their Events: an Ingress has no conditions.
//!
//! The reconciler repeats the Event of a fault while it lasts, and reports its end. So the newest Event of an Ingress is shown, unless it
//! reports the end, or a repetition is overdue: a reconciler that restarted does not know the faults of its predecessor. One of a deleted
//! Ingress is not shown.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::snapshot::ClusterView;
use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::workload::event_schedule::REPEAT_INTERVAL;

/// Delay after which a repetition is overdue.
const MAX_REPEAT_DELAY: Duration = Duration::from_mins(5);

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressFault {
    pub namespace: String,
    pub name: String,
    /// Reason and message of the newest Event.
    pub reason: String,
    pub message: String,
    /// Time of that Event: a fault that has ended since is shown for a few minutes; if the reconciler restarted, for up to 35.
    pub last_reported: String,
}

/// Whether an Event of the reconciler is a warning about an Ingress that lasts, or the end of one.
fn is_report(event: &Event) -> bool {
    let is_lasting = || event.type_.as_deref() == Some("Warning") && event.reason.as_deref() != Some(reason::INEFFECTIVE_ANNOTATION);
    event.reporting_controller.as_deref() == Some(names::EVENT_CONTROLLER)
        && event.regarding.as_ref().is_some_and(|about| about.kind.as_deref() == Some("Ingress"))
        && (is_end(event) || is_lasting())
}

fn is_end(event: &Event) -> bool {
    event.reason.as_deref() == Some(reason::FAULT_RESOLVED)
}

/// Faults by namespace and name.
pub fn ingress_faults(view: &ClusterView) -> Vec<IngressFault> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let row = |((namespace, name), (at, event)): ((&str, &str), (Timestamp, &Event))| IngressFault {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        reason: text(&event.reason),
        message: text(&event.note),
        last_reported: Timestamp::from_second(at.as_second()).unwrap_or(at).to_string(),
    };
    newest(view).into_iter().map(row).collect()
}

/// Reasons of the faults by namespace and name.
pub(super) fn reasons(view: &ClusterView) -> BTreeMap<(&str, &str), &str> {
    newest(view).into_iter().filter_map(|(id, (_, event))| Some((id, event.reason.as_deref()?))).collect()
}

/// The newest Event of each fault that lasts, with its time.
fn newest(view: &ClusterView) -> BTreeMap<(&str, &str), (Timestamp, &Event)> {
    let mut newest: BTreeMap<(&str, &str), (Timestamp, &Event)> = BTreeMap::new();
    for event in view.events.iter().filter(|event| is_report(event)) {
        let Some((at, id)) = reported(event).zip(subject(view, event)) else { continue };
        let reported = Duration::from_secs(at.as_second().try_into().unwrap_or(0));
        if view.now > reported + REPEAT_INTERVAL + MAX_REPEAT_DELAY {
            continue;
        }
        let shown = newest.entry(id).or_insert((at, event));
        if shown.0 < at {
            *shown = (at, event);
        }
    }
    newest.retain(|_, (_, event)| !is_end(event));
    newest
}

/// Time of the last occurrence.
fn reported(event: &Event) -> Option<Timestamp> {
    let last = event.series.as_ref().map(|series| series.last_observed_time.0);
    last.max(event.event_time.as_ref().map(|time| time.0))
}

/// Namespace and name of the Ingress, unless it is deleted.
fn subject<'a>(view: &ClusterView, event: &'a Event) -> Option<(&'a str, &'a str)> {
    let about = event.regarding.as_ref()?;
    let (namespace, name) = (about.namespace.as_deref()?, about.name.as_deref()?);
    let exists = view.ingresses.is_none() || view.ingress_metadata(namespace, name).is_some_and(|metadata| metadata.uid == about.uid);
    exists.then_some((namespace, name))
}

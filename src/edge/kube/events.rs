//! Events: what people see at the end of `kubectl describe`.
//!
//! One that is told again within a few minutes counts up instead of becoming another object. Telling is worth one try: an
//! Event that could not be written is reported to the caller and is otherwise forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as Object, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use super::{ApiCall, ApiRefusal, KubeError, LeaderClient, Resource, Verb};

/// An Event told again within this time counts up.
const SERIES: Duration = Duration::from_mins(6);
/// Where Events are not allowed, one is tried again after this time.
const CLOSED: Duration = Duration::from_hours(1);
/// The API takes no longer text.
const LONGEST: usize = 1024;
/// Where the Events of objects without a namespace are.
const CLUSTER_SCOPED: &str = "default";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Regarding {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventSpec {
    pub about: Regarding,
    pub warning: bool,
    /// The reason, of a closed set.
    pub reason: &'static str,
    pub message: String,
}

/// Writes Events. Clones share what was told.
#[derive(Debug, Clone)]
pub struct EventWriter {
    writes: LeaderClient,
    reporter: &'static str,
    instance: String,
    series: Arc<Mutex<HashMap<EventSpec, Series>>>,
    /// The namespaces in which we may not tell any, and since when.
    closed: Arc<Mutex<HashMap<String, Instant>>>,
}

#[derive(Debug, Clone)]
struct Series {
    name: String,
    count: i32,
    last: Instant,
}

impl EventWriter {
    /// A teller; `instance` is the name of the Pod or process.
    #[must_use]
    pub fn new(writes: LeaderClient, reporter: &'static str, instance: impl Into<String>) -> Self {
        Self { writes, reporter, instance: instance.into(), series: Arc::default(), closed: Arc::default() }
    }

    /// Tells it. Where that is not allowed the first try fails, and others for the next hour are not made.
    pub async fn write_event(&self, spec: EventSpec) -> Result<(), KubeError> {
        let namespace = if spec.about.namespace.is_empty() { CLUSTER_SCOPED.to_owned() } else { spec.about.namespace.clone() };
        let closed = |since: &Instant| since.elapsed() < CLOSED;
        if self.closed.lock().unwrap_or_else(PoisonError::into_inner).get(&namespace).is_some_and(closed) {
            return Ok(());
        }
        let done = self.write(spec, &namespace).await;
        if done.as_ref().is_err_and(|error| error.refusal() == Some(ApiRefusal::Forbidden)) {
            self.closed.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace, Instant::now());
        }
        done
    }

    async fn write(&self, spec: EventSpec, namespace: &str) -> Result<(), KubeError> {
        let now = Instant::now();
        let series = {
            let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, series| now - series.last < SERIES);
            all.get(&spec).cloned()
        };
        let api: Api<Object> = Api::namespaced(self.writes.cluster().client.clone(), namespace);
        let call = |verb, name: &str| ApiCall { verb, kind: "Event", namespace: namespace.to_owned(), name: name.to_owned() };
        let series = if let Some(Series { name, count, .. }) = series {
            let again = EventSeries { count: count + 1, last_observed_time: MicroTime(Timestamp::now()) };
            let patch = Patch::Merge(json!({"series": again}));
            self.writes.write(call(Verb::Patch, &name), api.patch(&name, &PatchParams::default(), &patch)).await?;
            Series { name, count: count + 1, last: now }
        } else {
            let event = self.event(&spec);
            let name = event.metadata.name.clone().unwrap_or_default();
            self.writes.write(call(Verb::Create, &name), api.create(&PostParams::default(), &event)).await?;
            Series { name, count: 1, last: now }
        };
        self.series.lock().unwrap_or_else(PoisonError::into_inner).insert(spec, series);
        Ok(())
    }

    fn event(&self, spec: &EventSpec) -> Object {
        let now = Timestamp::now();
        let Regarding { resource, namespace, name, uid } = &spec.about;
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let regarding = ObjectReference {
            api_version: Some(resource.api_version.to_owned()),
            kind: Some(resource.kind.to_owned()),
            namespace: given(namespace),
            name: given(name),
            uid: given(uid),
            ..ObjectReference::default()
        };
        let namespace = given(namespace).unwrap_or_else(|| CLUSTER_SCOPED.to_owned());
        let metadata =
            ObjectMeta { name: Some(format!("{name}.{:x}", now.as_nanosecond())), namespace: Some(namespace), ..ObjectMeta::default() };
        Object {
            metadata,
            action: Some("Reconcile".to_owned()),
            reason: Some(spec.reason.to_owned()),
            note: Some(shortened(&spec.message)),
            type_: Some(if spec.warning { "Warning" } else { "Normal" }.to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(regarding),
            reporting_controller: Some(self.reporter.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Object::default()
        }
    }
}

fn shortened(text: &str) -> String {
    let end = text.char_indices().map(|(at, character)| at + character.len_utf8()).take_while(|end| *end <= LONGEST).last();
    text[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(""), "");
        assert_eq!(shortened(&"é".repeat(600)).len(), 1024);
        assert_eq!(shortened(&format!("x{}", "é".repeat(600))).len(), 1023);
    }
}

//! Events, as shown by `kubectl describe`: written with kube's [`Recorder`] while this process leads.
//!
//! An Event that repeats within six minutes increments the count of the existing object. Each Event is attempted once; failures are
//! returned to the caller. All are within [`EventRates`], which also bounds the Events of these six minutes, as the recorder stores them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::Instant;

use super::{ApiCall, ApiRefusal, KubeError, LeaderClient, Resource, Verb};
use crate::model::base::event_rates::EventRates;

/// Pause after a refusal in a namespace whose Events may not be written.
const FORBIDDEN_DELAY: Duration = Duration::from_hours(1);
/// API limit of a message, in bytes.
const MAX_NOTE: usize = 1024;
/// Namespace of Events for cluster-scoped objects.
const CLUSTER_SCOPED: &str = "default";

/// Writes Events. Clones share their state.
#[derive(Clone)]
pub struct EventWriter {
    writes: LeaderClient,
    recorder: Recorder,
    /// Namespaces that forbid Events, with the time of the refusal.
    forbidden: Arc<Mutex<HashMap<String, Instant>>>,
    /// Rates of Events that no schedule limits, and their begin.
    rates: Arc<Mutex<EventRates>>,
    since: Instant,
    dropped: DropObserver,
}

/// Callback for each Event that is dropped because its namespace has more than its rate.
pub type DropObserver = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter").field("writes", &self.writes).finish_non_exhaustive()
    }
}

impl EventWriter {
    /// `instance` is the name of the Pod or process.
    pub fn new(writes: LeaderClient, controller: &str, instance: String, dropped: DropObserver) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance) };
        let recorder = Recorder::new(writes.cluster().client.clone(), reporter);
        Self { writes, recorder, forbidden: Arc::default(), rates: Arc::default(), since: Instant::now(), dropped }
    }

    /// Takes an Event from the rate of an object's namespace, or of a cluster-scoped object, if it has one.
    pub fn admit(&self, about: &ObjectReference) -> bool {
        let namespace = about.namespace.clone().or_else(|| about.name.as_ref().map(|name| format!("/{name}"))).unwrap_or_default();
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).try_take(&namespace, self.since.elapsed())
    }

    /// Writes an Event, or drops it if its namespace has more than its rate.
    pub async fn write_event(&self, about: &ObjectReference, warning: bool, reason: &str, message: &str) -> Result<(), KubeError> {
        if self.admit(about) {
            return self.write_admitted_event(about, warning, reason, message).await;
        }
        (self.dropped)();
        Ok(())
    }

    /// Writes an Event that [`Self::admit`] or a schedule has limited. In a namespace that forbids Events the first attempt fails, and none
    /// follows for an hour.
    pub async fn write_admitted_event(&self, about: &ObjectReference, warning: bool, reason: &str, message: &str) -> Result<(), KubeError> {
        let namespace = about.namespace.clone().unwrap_or_else(|| CLUSTER_SCOPED.to_owned());
        let is_recent = |since: &Instant| since.elapsed() < FORBIDDEN_DELAY;
        if self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).get(&namespace).is_some_and(is_recent) {
            return Ok(());
        }
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            // The recorder aggregates Events by all fields except the message. Another message must be another Event.
            action: format!("Reconcile-{:x}", BuildHasherDefault::<DefaultHasher>::default().hash_one(message)),
            note: Some(shortened(message)),
            secondary: None,
        };
        let name = about.name.clone().unwrap_or_default();
        let call = ApiCall { verb: Verb::Create, kind: "Event", namespace: namespace.clone(), name };
        let done = self.writes.write(call, self.recorder.publish(&event, about)).await;
        if done.as_ref().is_err_and(|error| error.refusal() == Some(ApiRefusal::Forbidden)) {
            self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace, Instant::now());
        }
        done
    }
}

impl Resource {
    /// Reference to an object of this kind.
    pub fn reference(self, namespace: &str, name: &str, uid: Option<String>) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version.to_owned()),
            kind: Some(self.kind.to_owned()),
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            name: Some(name.to_owned()),
            uid,
            ..ObjectReference::default()
        }
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NOTE)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_is_cut_at_a_character_boundary() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(""), "");
        assert_eq!(shortened(&"é".repeat(600)).len(), 1024);
        assert_eq!(shortened(&format!("x{}", "é".repeat(600))).len(), 1023);
    }
}

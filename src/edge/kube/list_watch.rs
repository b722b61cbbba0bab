//! List-watch: streams all objects of a kind, or one object by name, indefinitely.
//!
//! A complete list comes first, then every change by a watch from the version of the list. The server ends a watch after [`WATCH`] seconds,
//! which also bounds how long a silently dropped connection goes unnoticed. After a fault, a watch of a kind resumes from its last version;
//! that of one object lists again to confirm its state. Nothing is stored here.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt, once, poll_fn, select};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::conditional_secret::versioned;
use super::item::{WatchedItem, WatchedObject};
use super::pages::Pages;
use super::{
    ApiCall, ApiRefusal, CALL_TIMEOUT, CallFault, Cluster, KubeError, Values, Verb, VersionedSecret, config_map_values, secret_values,
    within,
};
use crate::model::base::backoff::Backoff;

/// Duration of a watch in seconds, after which the server ends it.
const WATCH: u32 = 60;
/// Timeout of a watch without any event.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(WATCH as u64 + 5);
/// A watch that ends sooner was interrupted; the next one waits for the backoff.
const MIN_WATCH_LIFETIME: Duration = Duration::from_secs(1);

const _: () = assert!(CALL_TIMEOUT.as_secs() < WATCH as u64, "a call that hangs is noticed before a watch that does");

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follow {
    pub resource: super::Resource,
    pub namespace: Option<String>,
    /// Label selector, in API syntax.
    pub labels: Option<&'static str>,
    /// Field selector, in API syntax.
    pub fields: Option<&'static str>,
}

#[derive(Debug)]
pub enum WatchChange<T = Value> {
    /// A new list begins: its objects follow as [`WatchChange::Listed`].
    Begin,
    Listed(T),
    /// The list is complete: no other objects exist.
    Complete,
    /// The watch is established.
    Live,
    Put(T),
    Gone(T),
    /// The API has no such kind: its CRD is not installed. Retried after a pause.
    Unknown,
    /// A fault. Listed objects remain valid; the watch is retried after a pause.
    Lost(KubeError),
}

#[derive(Debug)]
pub enum ObjectEvent<T = Values> {
    /// The object exists with this content. Implies that the API responds.
    Current(T),
    /// The object does not exist. Implies that the API responds.
    Gone,
    /// The watch is established: the last state is current.
    Live,
    /// The watch is lost, or could not be established; it is retried after a pause.
    Lost(KubeError),
}

impl Cluster {
    /// Watches objects; needs `list` and `watch` on them. Each is decoded by itself into a type, cut and converted. The stream never ends. Of
    /// [`MetadataOnly`](super::MetadataOnly) only metadata is requested.
    pub fn follow_as<K: WatchedObject, T: Send + 'static>(
        &self,
        what: &Follow,
        convert: impl Fn(WatchedItem<K>) -> T + Send + Sync + 'static,
    ) -> BoxStream<'static, WatchChange<T>> {
        let namespace = what.namespace.clone().unwrap_or_default();
        let call = ApiCall { verb: Verb::List, kind: what.resource.kind, namespace, name: String::new() };
        let api = self.dynamic(what.resource, what.namespace.as_deref());
        self.list_watch_fields(api, call, (what.labels, what.fields.map(str::to_owned)), Backoff::WATCH, convert)
            .map(|change| match change {
                WatchChange::Lost(error) if error.refusal() == Some(ApiRefusal::NotFound) => WatchChange::Unknown,
                change => change,
            })
            .boxed()
    }

    /// As [`Self::follow_as`], of objects as JSON.
    pub fn follow_json<T: Send + 'static>(
        &self,
        what: &Follow,
        convert: impl Fn(WatchedItem<Value>) -> T + Send + Sync + 'static,
    ) -> BoxStream<'static, WatchChange<T>> {
        self.follow_as(what, move |item: WatchedItem<DynamicObject>| convert(item.into_json()))
    }

    /// Watches a `ConfigMap`; needs `list` and `watch` on its name. The stream never ends; a fault is an event.
    pub fn watch_config_map(&self, namespace: &str, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent> + Send + use<> {
        let call = ApiCall { namespace: namespace.to_owned(), ..self.call(Verb::List, "ConfigMap", name) };
        one(self.list_watch(self.config_maps(namespace), call, None, backoff, config_map_values))
    }

    /// Watches a Secret in the client's namespace; needs `list` and `watch` on its name or on all Secrets.
    pub fn watch_secret(&self, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent> + Send + use<> {
        one(self.list_watch(self.secrets(), self.call(Verb::List, "Secret", name), None, backoff, secret_values))
    }

    /// Watches the holder of a Lease in the client's namespace; needs `list` and `watch` on its name.
    pub fn watch_lease_holder(&self, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent<Option<String>>> + Send + use<> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        one(self.list_watch(api, self.call(Verb::List, "Lease", name), None, backoff, |lease: Lease| lease.spec?.holder_identity))
    }

    /// As [`Self::watch_secret`], with the resource version for conditional writes.
    pub fn watch_note(&self, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent<VersionedSecret>> + Send + use<> {
        one(self.list_watch(self.secrets(), self.call(Verb::List, "Secret", name), None, backoff, versioned))
    }

    /// Starts a list-watch, which runs while its stream is polled.
    fn list_watch<K: WatchedObject, T: Send + 'static, C: Fn(K) -> T + Send + Sync + 'static>(
        &self,
        api: Api<K>,
        call: ApiCall,
        labels: Option<&str>,
        backoff: Backoff,
        convert: C,
    ) -> impl Stream<Item = WatchChange<T>> + Send + use<K, T, C> {
        let fields = (!call.name.is_empty()).then(|| format!("metadata.name={}", call.name));
        self.list_watch_fields(api, call, (labels, fields), backoff, convert)
    }

    /// As [`Self::list_watch`], with a field selector.
    fn list_watch_fields<K: WatchedObject, T: Send + 'static, C: Fn(K) -> T + Send + Sync + 'static>(
        &self,
        api: Api<K>,
        call: ApiCall,
        (labels, fields): (Option<&str>, Option<String>),
        backoff: Backoff,
        convert: C,
    ) -> impl Stream<Item = WatchChange<T>> + Send + use<K, T, C> {
        let (sender, mut changes) = mpsc::channel(1);
        let (client, room, labels) = (self.client.clone(), Arc::clone(&self.pages), labels.map(str::to_owned));
        let follower = ListWatch { client, room, api, convert: Box::new(convert), call, labels, fields, backoff, changes: sender };
        select(poll_fn(move |context| changes.poll_recv(context)), once(follower.run()).filter_map(|()| ready(None)))
    }
}

/// Converts the changes of a list with at most one object.
fn one<T: Send + 'static>(changes: impl Stream<Item = WatchChange<T>> + Send + 'static) -> impl Stream<Item = ObjectEvent<T>> + Send {
    let mut listed = None;
    changes.filter_map(move |change| {
        let event = match change {
            WatchChange::Begin | WatchChange::Unknown => None,
            WatchChange::Listed(object) => {
                listed = Some(object);
                None
            }
            WatchChange::Complete => Some(listed.take().map_or(ObjectEvent::Gone, ObjectEvent::Current)),
            WatchChange::Live => Some(ObjectEvent::Live),
            WatchChange::Put(object) => Some(ObjectEvent::Current(object)),
            WatchChange::Gone(_) => Some(ObjectEvent::Gone),
            WatchChange::Lost(error) => Some(ObjectEvent::Lost(error)),
        };
        ready(event)
    })
}

struct ListWatch<K, T> {
    client: Client,
    /// Permits of pages.
    room: Arc<Semaphore>,
    api: Api<K>,
    convert: Box<dyn Fn(K) -> T + Send + Sync>,
    /// Has the name of the single watched object, if any.
    call: ApiCall,
    labels: Option<String>,
    fields: Option<String>,
    backoff: Backoff,
    changes: mpsc::Sender<WatchChange<T>>,
}

impl<K: WatchedObject, T: Send> ListWatch<K, T> {
    async fn run(mut self) {
        loop {
            self.send(WatchChange::Begin).await;
            let mut resume = match self.list().await {
                Ok(version) => {
                    self.send(WatchChange::Complete).await;
                    Some(version)
                }
                Err(error) => self.lose(error, None).await,
            };
            while let Some(version) = resume {
                resume = self.watch(version).await;
            }
        }
    }

    /// Lists all pages; returns the version to watch from.
    async fn list(&self) -> Result<String, KubeError> {
        let (label_selector, field_selector) = (self.labels.clone(), self.fields.clone());
        let parameters = ListParams { label_selector, field_selector, ..ListParams::default() };
        let mut pages = Pages::new(&self.client, &self.api, &self.call, parameters);
        loop {
            // A list of one object waits for no other. The semaphore is never closed.
            let permit = if self.call.name.is_empty() { self.room.acquire().await.ok() } else { None };
            let list = pages.next().await?;
            for object in list.items {
                self.send(WatchChange::Listed((self.convert)(pages.decode(&object)?))).await;
            }
            drop(permit);
            if pages.is_complete() {
                return Ok(list.metadata.resource_version.unwrap_or_default());
            }
        }
    }

    /// Watches once; returns the version to resume from, unless a new list is due.
    async fn watch(&mut self, mut version: String) -> Option<String> {
        let (label_selector, field_selector) = (self.labels.clone(), self.fields.clone());
        let parameters = WatchParams { label_selector, field_selector, ..WatchParams::default().timeout(WATCH) };
        let call = ApiCall { verb: Verb::Watch, ..self.call.clone() };
        let mut stream = match within(|| call.clone(), self.api.watch(&parameters, &version)).await {
            Ok(stream) => stream.boxed(),
            Err(error) => return self.lose(error, Some(version)).await,
        };
        let since = Instant::now();
        self.send(WatchChange::Live).await;
        let fault = loop {
            match timeout(SILENCE_TIMEOUT, stream.next()).await {
                Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                    self.backoff.reset();
                    version = object.resource_version().unwrap_or(version);
                    self.send(WatchChange::Put((self.convert)(object))).await;
                }
                Ok(Some(Ok(WatchEvent::Deleted(object)))) => {
                    version = object.resource_version().unwrap_or(version);
                    self.send(WatchChange::Gone((self.convert)(object))).await;
                }
                Ok(Some(Ok(WatchEvent::Bookmark(bookmark)))) => version = bookmark.metadata.resource_version,
                // The version has expired on the server: not a fault. Pauses grow in case each version expires at once.
                Ok(Some(Ok(WatchEvent::Error(status)))) if status.code == 410 => {
                    self.pause().await;
                    return None;
                }
                Ok(Some(Ok(WatchEvent::Error(status)))) => break CallFault::refused(&status),
                Ok(Some(Err(error))) => break CallFault::of(error),
                Ok(None) => {
                    if since.elapsed() < MIN_WATCH_LIFETIME {
                        self.pause().await;
                    } else {
                        self.backoff.reset();
                    }
                    return Some(version);
                }
                Err(_elapsed) => break CallFault::Timeout(SILENCE_TIMEOUT),
            }
        };
        self.lose(KubeError::Call { call, fault }, Some(version)).await
    }

    /// Reports a fault and pauses; returns the version to resume from, unless a new list is due.
    async fn lose(&mut self, error: KubeError, version: Option<String>) -> Option<String> {
        let is_stale = matches!(&error, KubeError::Call { fault: CallFault::Malformed(_) | CallFault::Refused { code: 410, .. }, .. });
        self.send(WatchChange::Lost(error)).await;
        self.pause().await;
        version.filter(|_| self.call.name.is_empty() && !is_stale)
    }

    async fn pause(&mut self) {
        sleep(self.backoff.next(fastrand::f64())).await;
    }

    async fn send(&self, change: WatchChange<T>) {
        // The receiver is in the same stream.
        let _ = self.changes.send(change).await;
    }
}

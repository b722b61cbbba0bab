//! Following one object by its name, for ever.
//!
//! A list gives the state and its version, a watch from that version what follows. The watch ends by itself after
//! [`WATCH`] and is resumed; after any fault it begins anew with a list, so nothing that happened meanwhile is missed. The
//! end is noticed in [`WATCH`] even if the network silently drops everything.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use super::conditional_secret::versioned;
use super::{ApiCall, CALL, CallFault, Cluster, Keyed, KubeError, Values, Verb, VersionedSecret, within};
use crate::model::base::backoff::Backoff;

/// The server ends a watch after this many seconds.
const WATCH: u32 = 60;
/// A watch that gives nothing for this long is dead.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 5);
/// A watch that ends sooner than this was cut, and the next one waits.
const SHORT: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Debug)]
pub enum ObjectEvent<T = Values> {
    /// The object exists and is so. Implies that the API answers.
    Current(T),
    /// The object does not exist. Implies that the API answers.
    Gone,
    /// The watch is established: what was told is what is, but for what comes next.
    Live,
    /// The watch is lost, or was never got; it is tried again after a pause.
    Lost(KubeError),
}

impl Cluster {
    /// Follows a `ConfigMap`; needs `list` and `watch` by its name. Ends never; a fault is an event.
    pub fn watch_config_map(&self, namespace: &str, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent> + Send + use<> {
        let call = ApiCall { namespace: namespace.to_owned(), ..self.call(Verb::List, ConfigMap::KIND, name) };
        follow(self.config_maps(namespace), call, backoff, Keyed::values)
    }

    /// Follows a Secret of the own namespace; needs `list` and `watch` by its name, or on all of them.
    pub fn watch_secret(&self, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent> + Send + use<> {
        follow(self.secrets(), self.call(Verb::List, Secret::KIND, name), backoff, <Secret as Keyed>::values)
    }

    /// The same, told with what a conditional write needs.
    pub fn watch_note(&self, name: &str, backoff: Backoff) -> impl Stream<Item = ObjectEvent<VersionedSecret>> + Send + use<> {
        follow(self.secrets(), self.call(Verb::List, Secret::KIND, name), backoff, versioned)
    }
}

trait WatchedObject: Keyed + Resource + Clone + DeserializeOwned + Debug + Send + 'static {}
impl<K: Keyed + Resource + Clone + DeserializeOwned + Debug + Send + 'static> WatchedObject for K {}

/// Where a watch stands.
enum WatchPosition<K> {
    /// To be listed, after a pause if it failed before.
    Unknown { pause: Option<Duration> },
    /// To be watched from this version on, after a pause if it was cut.
    Version { version: String, pause: Option<Duration> },
    /// Being watched.
    Watching { version: String, stream: BoxStream<'static, kube::Result<WatchEvent<K>>>, since: Instant },
}

struct ObjectFollower<K, T> {
    api: Api<K>,
    convert: fn(K) -> T,
    call: ApiCall,
    backoff: Backoff,
    at: WatchPosition<K>,
}

fn follow<K: WatchedObject, T: Send + 'static>(
    api: Api<K>,
    call: ApiCall,
    backoff: Backoff,
    convert: fn(K) -> T,
) -> impl Stream<Item = ObjectEvent<T>> + Send + use<K, T> {
    let follower = ObjectFollower { api, convert, call, backoff, at: WatchPosition::Unknown { pause: None } };
    unfold(follower, |mut follower| async {
        let event = loop {
            if let Some(event) = follower.step().await {
                break event;
            }
        };
        Some((event, follower))
    })
}

impl<K: WatchedObject, T> ObjectFollower<K, T> {
    /// One step; what it tells, if anything.
    async fn step(&mut self) -> Option<ObjectEvent<T>> {
        match std::mem::replace(&mut self.at, WatchPosition::Unknown { pause: None }) {
            WatchPosition::Unknown { pause } => {
                sleep(pause.unwrap_or_default()).await;
                Some(self.list().await)
            }
            WatchPosition::Version { version, pause } => {
                sleep(pause.unwrap_or_default()).await;
                Some(self.begin(version).await)
            }
            WatchPosition::Watching { version, mut stream, since } => match timeout(SILENCE, stream.next()).await {
                Ok(Some(Ok(event))) => self.heard(event, version, stream, since),
                Ok(Some(Err(error))) => Some(self.lost(CallFault::of(error))),
                Ok(None) => {
                    let cut = since.elapsed() < SHORT;
                    let pause = cut.then(|| self.backoff.next(fastrand::f64()));
                    if !cut {
                        self.backoff.reset();
                    }
                    self.at = WatchPosition::Version { version, pause };
                    None
                }
                Err(_elapsed) => Some(self.lost(CallFault::Timeout(SILENCE))),
            },
        }
    }

    async fn list(&mut self) -> ObjectEvent<T> {
        let fields = format!("metadata.name={}", self.call.name);
        let call = ApiCall { verb: Verb::List, ..self.call.clone() };
        match within(|| call, self.api.list(&ListParams::default().fields(&fields))).await {
            Ok(list) => {
                self.at = WatchPosition::Version { version: list.metadata.resource_version.unwrap_or_default(), pause: None };
                list.items.into_iter().next().map_or(ObjectEvent::Gone, |object| ObjectEvent::Current((self.convert)(object)))
            }
            Err(error) => self.fail(error),
        }
    }

    async fn begin(&mut self, version: String) -> ObjectEvent<T> {
        let parameters = WatchParams::default().fields(&format!("metadata.name={}", self.call.name)).timeout(WATCH);
        let call = ApiCall { verb: Verb::Watch, ..self.call.clone() };
        match within(|| call, self.api.watch(&parameters, &version)).await {
            Ok(stream) => {
                self.at = WatchPosition::Watching { version, stream: stream.boxed(), since: Instant::now() };
                ObjectEvent::Live
            }
            Err(error) => self.fail(error),
        }
    }

    fn heard(
        &mut self,
        event: WatchEvent<K>,
        version: String,
        stream: BoxStream<'static, kube::Result<WatchEvent<K>>>,
        since: Instant,
    ) -> Option<ObjectEvent<T>> {
        let (version, convert) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.backoff.reset();
                (object.resource_version().unwrap_or(version), Some(ObjectEvent::Current((self.convert)(object))))
            }
            WatchEvent::Deleted(object) => (object.resource_version().unwrap_or(version), Some(ObjectEvent::Gone)),
            WatchEvent::Bookmark(bookmark) => (bookmark.metadata.resource_version, None),
            WatchEvent::Error(status) if status.code == 410 => {
                // The version is older than the server remembers: not a fault, the list tells what is. Should the server
                // forget at once whatever it lists, the pauses grow.
                self.at = WatchPosition::Unknown { pause: Some(self.backoff.next(fastrand::f64())) };
                return None;
            }
            WatchEvent::Error(status) => return Some(self.lost(CallFault::refused(&status))),
        };
        self.at = WatchPosition::Watching { version, stream, since };
        convert
    }

    fn lost(&mut self, fault: CallFault) -> ObjectEvent<T> {
        self.fail(KubeError::Call { call: ApiCall { verb: Verb::Watch, ..self.call.clone() }, fault })
    }

    fn fail(&mut self, error: KubeError) -> ObjectEvent<T> {
        self.at = WatchPosition::Unknown { pause: Some(self.backoff.next(fastrand::f64())) };
        ObjectEvent::Lost(error)
    }
}

const _: () = assert!(CALL.as_secs() < WATCH as u64, "a call that hangs is noticed before a watch that does");

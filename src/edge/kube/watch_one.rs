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

use super::{CALL, Call, Cluster, Fault, Keyed, KubeError, Noted, Values, Verb, within};
use crate::model::base::backoff::Backoff;

/// The server ends a watch after this many seconds.
const WATCH: u32 = 60;
/// A watch that gives nothing for this long is dead.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 5);
/// A watch that ends sooner than this was cut, and the next one waits.
const SHORT: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Debug)]
pub enum Event<T = Values> {
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
    pub fn watch_config_map(&self, namespace: &str, name: &str, backoff: Backoff) -> impl Stream<Item = Event> + Send + use<> {
        let call = Call { namespace: namespace.to_owned(), ..self.call(Verb::List, ConfigMap::KIND, name) };
        follow(self.config_maps(namespace), call, backoff, Keyed::values)
    }

    /// Follows a Secret of the own namespace; needs `list` and `watch` by its name, or on all of them.
    pub fn watch_secret(&self, name: &str, backoff: Backoff) -> impl Stream<Item = Event> + Send + use<> {
        follow(self.secrets(), self.call(Verb::List, Secret::KIND, name), backoff, <Secret as Keyed>::values)
    }

    /// The same, told with what a conditional write needs.
    pub fn watch_note(&self, name: &str, backoff: Backoff) -> impl Stream<Item = Event<Noted>> + Send + use<> {
        follow(self.secrets(), self.call(Verb::List, Secret::KIND, name), backoff, Noted::of)
    }
}

trait Followed: Keyed + Resource + Clone + DeserializeOwned + Debug + Send + 'static {}
impl<K: Keyed + Resource + Clone + DeserializeOwned + Debug + Send + 'static> Followed for K {}

/// Where a watch stands.
enum At<K> {
    /// To be listed, after a pause if it failed before.
    Unknown { pause: Option<Duration> },
    /// To be watched from this version on, after a pause if it was cut.
    Version { version: String, pause: Option<Duration> },
    /// Being watched.
    Watching { version: String, stream: BoxStream<'static, kube::Result<WatchEvent<K>>>, since: Instant },
}

struct Follower<K, T> {
    api: Api<K>,
    told: fn(K) -> T,
    call: Call,
    backoff: Backoff,
    at: At<K>,
}

fn follow<K: Followed, T: Send + 'static>(
    api: Api<K>,
    call: Call,
    backoff: Backoff,
    told: fn(K) -> T,
) -> impl Stream<Item = Event<T>> + Send + use<K, T> {
    let follower = Follower { api, told, call, backoff, at: At::Unknown { pause: None } };
    unfold(follower, |mut follower| async {
        let event = loop {
            if let Some(event) = follower.step().await {
                break event;
            }
        };
        Some((event, follower))
    })
}

impl<K: Followed, T> Follower<K, T> {
    /// One step; what it tells, if anything.
    async fn step(&mut self) -> Option<Event<T>> {
        match std::mem::replace(&mut self.at, At::Unknown { pause: None }) {
            At::Unknown { pause } => {
                sleep(pause.unwrap_or_default()).await;
                Some(self.list().await)
            }
            At::Version { version, pause } => {
                sleep(pause.unwrap_or_default()).await;
                Some(self.begin(version).await)
            }
            At::Watching { version, mut stream, since } => match timeout(SILENCE, stream.next()).await {
                Ok(Some(Ok(event))) => self.heard(event, version, stream, since),
                Ok(Some(Err(error))) => Some(self.lost(Fault::of(error))),
                Ok(None) => {
                    let cut = since.elapsed() < SHORT;
                    let pause = cut.then(|| self.backoff.next(fastrand::f64()));
                    if !cut {
                        self.backoff.reset();
                    }
                    self.at = At::Version { version, pause };
                    None
                }
                Err(_elapsed) => Some(self.lost(Fault::Timeout(SILENCE))),
            },
        }
    }

    async fn list(&mut self) -> Event<T> {
        let fields = format!("metadata.name={}", self.call.name);
        let call = Call { verb: Verb::List, ..self.call.clone() };
        match within(|| call, self.api.list(&ListParams::default().fields(&fields))).await {
            Ok(list) => {
                self.at = At::Version { version: list.metadata.resource_version.unwrap_or_default(), pause: None };
                list.items.into_iter().next().map_or(Event::Gone, |object| Event::Current((self.told)(object)))
            }
            Err(error) => self.fail(error),
        }
    }

    async fn begin(&mut self, version: String) -> Event<T> {
        let parameters = WatchParams::default().fields(&format!("metadata.name={}", self.call.name)).timeout(WATCH);
        let call = Call { verb: Verb::Watch, ..self.call.clone() };
        match within(|| call, self.api.watch(&parameters, &version)).await {
            Ok(stream) => {
                self.at = At::Watching { version, stream: stream.boxed(), since: Instant::now() };
                Event::Live
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
    ) -> Option<Event<T>> {
        let (version, told) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.backoff.reset();
                (object.resource_version().unwrap_or(version), Some(Event::Current((self.told)(object))))
            }
            WatchEvent::Deleted(object) => (object.resource_version().unwrap_or(version), Some(Event::Gone)),
            WatchEvent::Bookmark(bookmark) => (bookmark.metadata.resource_version, None),
            WatchEvent::Error(status) if status.code == 410 => {
                // The version is older than the server remembers: not a fault, the list tells what is. Should the server
                // forget at once whatever it lists, the pauses grow.
                self.at = At::Unknown { pause: Some(self.backoff.next(fastrand::f64())) };
                return None;
            }
            WatchEvent::Error(status) => return Some(self.lost(Fault::refused(&status))),
        };
        self.at = At::Watching { version, stream, since };
        told
    }

    fn lost(&mut self, fault: Fault) -> Event<T> {
        self.fail(KubeError::Call { call: Call { verb: Verb::Watch, ..self.call.clone() }, fault })
    }

    fn fail(&mut self, error: KubeError) -> Event<T> {
        self.at = At::Unknown { pause: Some(self.backoff.next(fastrand::f64())) };
        Event::Lost(error)
    }
}

const _: () = assert!(CALL.as_secs() < WATCH as u64, "a call that hangs is noticed before a watch that does");

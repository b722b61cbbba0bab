//! Following all objects of a kind, for ever: what a store is fed with.
//!
//! A complete list first, then every change. After a fault it goes on from where it was, or lists anew if the server forgot
//! that; what was kept stays until the new list is complete. Nothing is kept here.

use std::pin::Pin;

use futures_util::stream::{Stream, StreamExt, unfold};
use kube::api::DynamicObject;
use kube::core::{DynamicResourceScope, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde_json::Value;
use tokio::time::sleep;

use super::{ApiCall, CallFault, Cluster, KubeError, Verb, leader_client};
use crate::model::base::backoff::Backoff;

/// The server ends a watch after this many seconds, so that one that the network dropped silently is noticed.
const WATCH: u32 = 60;
/// Objects in one answer.
const PAGE: u32 = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follow {
    pub resource: super::Resource,
    pub namespace: Option<String>,
    /// Only objects with these labels: a selector as the API has it.
    pub labels: Option<&'static str>,
    /// Only their metadata: what is in them is not sent.
    pub names_only: bool,
}

/// What is told of the followed objects.
#[derive(Debug)]
pub enum WatchChange {
    /// All objects, of which some follow as [`WatchChange::Listed`], are listed anew.
    Begin,
    Listed(Value),
    /// The list is complete: what is not in it does not exist.
    Complete,
    Put(Value),
    Gone(Value),
    /// The API has no such kind: its definition is not installed. Asked again after a pause.
    Unknown,
    /// A fault; what is known stays, and it is tried again after a pause.
    Lost(KubeError),
}

type Watcher = Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<DynamicObject>>> + Send>>;

struct ListFollower {
    watcher: Watcher,
    call: ApiCall,
    backoff: Backoff,
    failed: bool,
}

impl Cluster {
    /// Follows objects; needs `list` and `watch` on them. Ends never.
    pub fn follow(&self, what: &Follow, backoff: Backoff) -> impl Stream<Item = WatchChange> + Send + use<> {
        let mut config = watcher::Config::default().timeout(WATCH).page_size(PAGE);
        if let Some(labels) = what.labels {
            config = config.labels(labels);
        }
        let namespace = what.namespace.clone().unwrap_or_default();
        let call = ApiCall { verb: Verb::List, kind: what.resource.kind, namespace, name: String::new() };
        let watcher: Watcher = if what.names_only {
            Box::pin(watcher(self.api::<PartialObjectMeta<DynamicObject>>(what), config).map(|event| event.map(without_content)))
        } else {
            Box::pin(watcher(self.api::<DynamicObject>(what), config))
        };
        let follower = ListFollower { watcher, call, backoff, failed: false };
        unfold(follower, |mut follower| async {
            let change = follower.next().await?;
            Some((change, follower))
        })
    }
}

impl Cluster {
    fn api<K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>>(&self, what: &Follow) -> Api<K> {
        let kind = ApiResource::from(what.resource);
        match &what.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }
}

/// An object of which only the metadata are known, as one.
fn without_content(event: watcher::Event<PartialObjectMeta<DynamicObject>>) -> watcher::Event<DynamicObject> {
    use watcher::Event;
    let object =
        |partial: PartialObjectMeta<DynamicObject>| DynamicObject { types: partial.types, metadata: partial.metadata, data: Value::Null };
    match event {
        Event::Init => Event::Init,
        Event::InitApply(partial) => Event::InitApply(object(partial)),
        Event::InitDone => Event::InitDone,
        Event::Apply(partial) => Event::Apply(object(partial)),
        Event::Delete(partial) => Event::Delete(object(partial)),
    }
}

impl ListFollower {
    async fn next(&mut self) -> Option<WatchChange> {
        if std::mem::take(&mut self.failed) {
            sleep(self.backoff.next(fastrand::f64())).await;
        }
        Some(match self.watcher.next().await? {
            Ok(event) => {
                use watcher::Event;
                // The beginning of a list is no news of a server that answers.
                if !matches!(event, Event::Init) {
                    self.backoff.reset();
                }
                match event {
                    Event::Init => WatchChange::Begin,
                    Event::InitApply(object) => WatchChange::Listed(leader_client::plain(object)),
                    Event::InitDone => WatchChange::Complete,
                    Event::Apply(object) => WatchChange::Put(leader_client::plain(object)),
                    Event::Delete(object) => WatchChange::Gone(leader_client::plain(object)),
                }
            }
            Err(error) => {
                self.failed = true;
                self.lost(error)
            }
        })
    }

    fn lost(&self, error: watcher::Error) -> WatchChange {
        use watcher::Error;
        let (verb, fault) = match error {
            Error::InitialListFailed(error) => (Verb::List, CallFault::of(error)),
            Error::WatchStartFailed(error) | Error::WatchFailed(error) => (Verb::Watch, CallFault::of(error)),
            Error::WatchError(status) => (Verb::Watch, CallFault::refused(&status)),
            Error::NoResourceVersion => (Verb::List, CallFault::Refused { code: 200, message: "a list without a version".to_owned() }),
        };
        if matches!(fault, CallFault::Refused { code: 404, .. }) {
            return WatchChange::Unknown;
        }
        WatchChange::Lost(KubeError::Call { call: ApiCall { verb, ..self.call.clone() }, fault })
    }
}

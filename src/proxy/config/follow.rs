//! Follows the copies of a config, from the API watch and from the kubelet's mount, and publishes the document in force.
//!
//! [`Selection`] decides. All pending events are taken before a document is parsed, so that a fast sequence of changes is parsed once. A
//! failed source never removes the document in force.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt};
use futures_util::{FutureExt, future};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::edge::files::watch::FilesView;
use crate::edge::kube::ObjectEvent;
use crate::model::config::source::{CopyKeys, CopySource, Document, InForce, Selection, WatchHealth};
use crate::runtime::timer::until;

pub type ObjectEvents = Pin<Box<dyn Stream<Item = ObjectEvent> + Send>>;
/// Mounted directory, and the file name if not the key's (`--ingress-config FILE`).
pub type MountedCopy = (watch::Receiver<FilesView>, Option<String>);

/// Sources of the copies; at least one.
pub struct CopySources {
    pub api: Option<ObjectEvents>,
    pub mount: Option<MountedCopy>,
    /// Delay of the mounted copy after a lost watch; [`crate::model::config::source::HOLD_PERIOD`].
    pub hold: Duration,
    /// Origin of times.
    pub start: Instant,
}

pub struct FollowOutputs<D: Document> {
    /// Services for the plan, sent only when changed. `None` before the first readable copy.
    pub services: watch::Sender<Option<Arc<D::Services>>>,
    /// The same with its state, for health, metrics and drain.
    pub state: watch::Sender<InForce<D>>,
}

/// Follows the copies until all receivers are dropped.
pub async fn follow<D: Document>(mut sources: CopySources, outputs: FollowOutputs<D>) {
    let mut selection = Selection::<D>::new(sources.hold, sources.api.is_some());
    loop {
        let now = sources.now();
        selection.settle(now);
        outputs.publish(selection.in_force());
        let due = selection.due(now).map(|at| sources.start + at);
        tokio::select! {
            () = outputs.closed() => return,
            input = sources.next() => {
                let now = sources.now();
                let more = std::iter::from_fn(|| sources.next().now_or_never());
                std::iter::once(input).chain(more).for_each(|input| take(&mut selection, input, now));
            }
            () = until(due) => {}
        }
    }
}

enum SourceInput {
    Api(ObjectEvent),
    Mount(FilesView, Option<String>),
}

impl CopySources {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn next(&mut self) -> SourceInput {
        let api = async {
            let event = self.api.as_mut()?.next().await;
            if event.is_none() {
                self.api = None;
            }
            event
        };
        let mount = async {
            let (views, name) = self.mount.as_mut()?;
            views.changed().await.ok()?;
            Some((views.borrow_and_update().clone(), name.clone()))
        };
        tokio::select! {
            Some(event) = api => SourceInput::Api(event),
            Some((view, name)) = mount => SourceInput::Mount(view, name),
            else => future::pending().await,
        }
    }
}

fn take<D: Document>(selection: &mut Selection<D>, input: SourceInput, now: Duration) {
    match input {
        SourceInput::Api(ObjectEvent::Current(values)) => selection.delivered(values),
        SourceInput::Api(ObjectEvent::Gone) => selection.absent(),
        SourceInput::Api(ObjectEvent::Live) => selection.live(),
        SourceInput::Api(ObjectEvent::Lost(error)) => selection.lost(now, error.reason(), error.to_string()),
        SourceInput::Mount(view, name) => {
            if let Some(snapshot) = view.snapshot {
                selection.mounted(named::<D>(snapshot.files, name.as_deref()));
            }
            if let Some(fault) = view.fault {
                selection.unmounted(fault.to_string());
            }
        }
    }
}

/// Files as keys: a single file of any name is the document's key.
fn named<D: Document>(mut files: CopyKeys, name: Option<&str>) -> CopyKeys {
    match name.and_then(|name| files.remove(name)) {
        Some(content) => [(D::KEY.to_owned(), content)].into(),
        None => files,
    }
}

impl<D: Document> FollowOutputs<D> {
    fn publish(&self, in_force: &InForce<D>) {
        let services = in_force.document.as_ref().map(|document| Arc::clone(document.services()));
        self.services.send_if_modified(|current| {
            let changed = !is_same(current.as_ref(), services.as_ref());
            *current = services;
            changed
        });
        self.state.send_if_modified(|answer| {
            let before = std::mem::replace(answer, in_force.clone());
            log(&before, answer);
            !same(&before, answer)
        });
    }

    async fn closed(&self) {
        tokio::join!(self.services.closed(), self.state.closed());
    }
}

fn is_same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    a.map(Arc::as_ptr) == b.map(Arc::as_ptr)
}

fn same<D>(a: &InForce<D>, b: &InForce<D>) -> bool {
    is_same(a.document.as_ref(), b.document.as_ref()) && (a.source, a.since, &a.fault, &a.link) == (b.source, b.since, &b.fault, &b.link)
}

/// Logs each relevant change in one line.
fn log<D: Document>(before: &InForce<D>, after: &InForce<D>) {
    let key = D::KEY;
    if let Some(document) = after.document.as_ref().filter(|_| after.since != before.since || before.document.is_none()) {
        let source = after.source.map_or("none", CopySource::name);
        tracing::info!(key, source, fingerprint = document.fingerprint(), "config in force");
    }
    match &after.fault {
        Some(fault) if before.fault.as_ref() != Some(fault) => tracing::warn!(key, reason = fault.reason(), "{fault}"),
        None if before.fault.is_some() => tracing::info!(key, "config is valid again"),
        _ => {}
    }
    match (&before.link, &after.link) {
        (WatchHealth::Lost { reason: was, .. }, WatchHealth::Lost { reason, .. }) if was == reason => {}
        (_, WatchHealth::Lost { reason, message, .. }) => tracing::warn!(key, reason, "watch lost: {message}"),
        (WatchHealth::Lost { .. } | WatchHealth::Connecting, WatchHealth::Live) => tracing::info!(key, "watch established"),
        _ => {}
    }
}

#[cfg(test)]
mod tests;

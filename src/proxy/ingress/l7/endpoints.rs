//! Endpoints of backends: watches `EndpointSlice`s of their namespaces while a route needs them.
//!
//! Known endpoints stay while the API is unavailable. A namespace without read permission is reported, and its backends use their
//! `ClusterIP`. Only slices of backends are stored: a new backend lists its namespace again. So does one whose endpoints had no room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::edge::kube::{Cluster, Follow, Resource, WatchChange, WatchedItem};
use crate::model::ingress::endpoints::{Endpoint, ServicePort, ServiceSlice, Slices, WantedPorts};
use crate::model::ingress::vhosts::Vhosts;
use crate::runtime::timer::until;
use crate::runtime::watch_ext::put;

/// Minimum time between two lists of a namespace because of new backends.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a namespace is listed again whose endpoints had no room.
const CUT_INTERVAL: Duration = Duration::from_mins(1);
/// Minimum time between two publications: each concerns all namespaces.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamEndpoints {
    pub endpoints: BTreeMap<ServicePort, Vec<Endpoint>>,
    /// Reasons of failed watches and of missing endpoints, by namespace.
    pub faults: BTreeMap<String, &'static str>,
}

/// Name of a slice, and the slice if it is one of a Service.
type NamedSlice = (String, Option<ServiceSlice>);

/// Watches of namespaces, and what they delivered.
struct Following {
    cluster: Cluster,
    sender: mpsc::Sender<(String, WatchChange<NamedSlice>)>,
    /// Dropping the set aborts all watches.
    tasks: JoinSet<()>,
    watches: BTreeMap<String, NamespaceWatch>,
    slices: Slices,
    faults: BTreeMap<String, &'static str>,
}

struct NamespaceWatch {
    task: AbortHandle,
    since: Instant,
    /// When the namespace is listed again.
    due: Option<Instant>,
}

/// Follows the endpoints of all backends. Ends when the sender is dropped.
pub async fn follow(cluster: Cluster, mut sites: watch::Receiver<Arc<Vhosts>>, endpoints: watch::Sender<Arc<UpstreamEndpoints>>) {
    // Slices in the channel are in no budget.
    let (sender, mut changes) = mpsc::channel(1);
    let mut following = Following::new(cluster, sender);
    following.want(wanted(&sites.borrow_and_update()));
    let (mut published, mut is_changed) = (None, true);
    loop {
        let due = published.map_or_else(Instant::now, |at| at + PUBLISH_INTERVAL);
        tokio::select! {
            update = sites.changed() => {
                if update.is_err() {
                    return;
                }
                following.want(wanted(&sites.borrow_and_update()));
                is_changed = true;
            }
            Some((namespace, change)) = changes.recv() => is_changed |= following.take(&namespace, change),
            () = until(following.next_list()) => following.list_due(),
            () = until(Some(due)), if is_changed => {
                following.publish(&endpoints);
                (published, is_changed) = (Some(Instant::now()), false);
            }
        }
    }
}

async fn one(cluster: Cluster, namespace: String, sender: mpsc::Sender<(String, WatchChange<NamedSlice>)>) {
    let what = Follow { resource: Resource::ENDPOINT_SLICE, namespace: Some(namespace.clone()), labels: None, fields: None };
    let mut changes = cluster.follow_as(&what, |item: WatchedItem<EndpointSlice>| {
        let name = item.metadata().name.clone().unwrap_or_default();
        (name, item.decoded().ok().and_then(ServiceSlice::read))
    });
    while let Some(change) = changes.next().await {
        if sender.send((namespace.clone(), change)).await.is_err() {
            return;
        }
    }
}

/// Ports of all backends.
fn wanted(sites: &Vhosts) -> WantedPorts {
    let mut ports = WantedPorts::new();
    let backends = sites.values().flat_map(|site| site.backends());
    for backend in backends.filter(|backend| !backend.service.is_empty() && !backend.namespace.is_empty()) {
        let services = ports.entry(backend.namespace.clone()).or_default();
        services.entry(backend.service.clone()).or_default().insert(backend.port_name.clone());
    }
    ports
}

impl Following {
    fn new(cluster: Cluster, sender: mpsc::Sender<(String, WatchChange<NamedSlice>)>) -> Self {
        let (tasks, watches, slices, faults) = Default::default();
        Self { cluster, sender, tasks, watches, slices, faults }
    }

    /// Watches the namespaces of these ports, and no others.
    fn want(&mut self, ports: WantedPorts) {
        self.watches.retain(|namespace, watch| {
            let stays = ports.contains_key(namespace);
            if !stays {
                watch.task.abort();
                self.faults.remove(namespace);
            }
            stays
        });
        for namespace in self.slices.want(ports) {
            match self.watches.get_mut(&namespace) {
                Some(watch) => watch.list_at(watch.since + LIST_INTERVAL),
                None => self.list(namespace),
            }
        }
    }

    /// Begins a watch of a namespace, which lists it first, in place of a former one.
    fn list(&mut self, namespace: String) {
        while self.tasks.try_join_next().is_some() {}
        let task = self.tasks.spawn(one(self.cluster.clone(), namespace.clone(), self.sender.clone()));
        let former = self.watches.insert(namespace, NamespaceWatch { task, since: Instant::now(), due: None });
        former.inspect(|watch| watch.task.abort());
    }

    fn next_list(&self) -> Option<Instant> {
        self.watches.values().filter_map(|watch| watch.due).min()
    }

    fn list_due(&mut self) {
        let now = Instant::now();
        let due = self.watches.iter().filter(|(_, watch)| watch.due.is_some_and(|due| due <= now));
        for namespace in due.map(|(namespace, _)| namespace.clone()).collect::<Vec<_>>() {
            self.list(namespace);
        }
    }

    /// Applies a change; returns whether there is something to publish.
    fn take(&mut self, namespace: &str, change: WatchChange<NamedSlice>) -> bool {
        // A change of a watch that was aborted.
        let Some(watch) = self.watches.get_mut(namespace) else { return false };
        match change {
            WatchChange::Begin => {
                self.slices.begin(namespace);
                false
            }
            WatchChange::Listed((name, slice)) => {
                self.slices.put(namespace, &name, slice);
                false
            }
            WatchChange::Complete => {
                self.slices.complete(namespace);
                self.faults.remove(namespace);
                watch.list_if_cut(self.slices.is_cut(namespace));
                true
            }
            WatchChange::Live => false,
            WatchChange::Put((name, slice)) => {
                let is_change = self.slices.put(namespace, &name, slice);
                watch.list_if_cut(self.slices.is_cut(namespace));
                is_change
            }
            WatchChange::Gone((name, _)) => self.slices.put(namespace, &name, None),
            WatchChange::Unknown => self.faults.insert(namespace.to_owned(), "Unknown") != Some("Unknown"),
            WatchChange::Lost(error) => {
                let reason = error.reason();
                let is_new = self.faults.insert(namespace.to_owned(), reason) != Some(reason);
                if is_new {
                    tracing::warn!(reason, namespace, "cannot watch EndpointSlices: {error}");
                }
                is_new
            }
        }
    }

    fn publish(&self, endpoints: &watch::Sender<Arc<UpstreamEndpoints>>) {
        let too_many = self.watches.keys().filter(|namespace| self.slices.is_cut(namespace));
        let too_many = too_many.map(|namespace| (namespace.clone(), "TooManyEndpoints"));
        let faults = too_many.chain(self.faults.clone()).collect();
        put(endpoints, Arc::new(UpstreamEndpoints { endpoints: self.slices.endpoints(), faults }));
    }
}

impl NamespaceWatch {
    /// Lists the namespace again after [`CUT_INTERVAL`] if endpoints are missing.
    fn list_if_cut(&mut self, is_cut: bool) {
        if is_cut {
            self.list_at(self.since + CUT_INTERVAL);
        }
    }

    /// Lists the namespace again at this time, or earlier if that is due.
    fn list_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

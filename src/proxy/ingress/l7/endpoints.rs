//! Endpoints of backends: watches `EndpointSlice`s of their namespaces while a route needs them.
//!
//! Known endpoints stay while the API is unavailable. A namespace without read permission is reported, and its backends use their
//! `ClusterIP`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::edge::kube::{Cluster, Follow, Resource, WatchChange};
use crate::model::base::backoff::Backoff;
use crate::model::controller::workload::objects::Kind;
use crate::model::ingress::endpoints::{Endpoint, Endpoints, ServicePort, Slices, WantedPorts};
use crate::model::ingress::vhosts::Vhosts;
use crate::runtime::watch_ext::put;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamEndpoints {
    pub endpoints: BTreeMap<ServicePort, Vec<Endpoint>>,
    /// Reasons of failed watches, by namespace.
    pub faults: BTreeMap<String, &'static str>,
}

/// An incomplete list of one namespace.
#[derive(Debug, Default)]
struct Following {
    slices: Slices,
    listing: BTreeMap<String, Slices>,
    faults: BTreeMap<String, &'static str>,
}

/// Follows the endpoints of all backends. Ends when the sender is dropped.
pub async fn follow(cluster: Cluster, mut sites: watch::Receiver<Arc<Vhosts>>, endpoints: watch::Sender<Arc<UpstreamEndpoints>>) {
    let (sender, mut changes) = mpsc::channel(64);
    let mut watches: BTreeMap<String, AbortHandle> = BTreeMap::new();
    // Dropping the set aborts all watches.
    let mut tasks = JoinSet::new();
    let mut following = Following::default();
    loop {
        let ports = wanted(&sites.borrow_and_update());
        let namespaces: BTreeSet<String> = ports.keys().map(|(namespace, _)| namespace.clone()).collect();
        watches.retain(|namespace, watch| {
            let stays = namespaces.contains(namespace);
            if !stays {
                watch.abort();
                following.forget(namespace);
            }
            stays
        });
        for namespace in namespaces {
            watches.entry(namespace.clone()).or_insert_with(|| tasks.spawn(one(cluster.clone(), namespace, sender.clone())));
        }
        following.publish(&ports, &endpoints);
        loop {
            tokio::select! {
                update = sites.changed() => {
                    if update.is_err() {
                        return;
                    }
                    break;
                }
                Some((namespace, change)) = changes.recv() => {
                    if watches.contains_key(&namespace) && following.take(&namespace, change) && changes.is_empty() {
                        following.publish(&ports, &endpoints);
                    }
                }
            }
        }
    }
}

async fn one(cluster: Cluster, namespace: String, sender: mpsc::Sender<(String, WatchChange)>) {
    let what = Follow { resource: Resource::from(Kind::EndpointSlice), namespace: Some(namespace.clone()), labels: None, fields: None };
    let mut changes = std::pin::pin!(cluster.follow(&what, Backoff::WATCH));
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
        ports.entry((backend.namespace.clone(), backend.service.clone())).or_default().insert(backend.port_name.clone());
    }
    ports
}

impl Following {
    fn forget(&mut self, namespace: &str) {
        self.slices.forget(namespace);
        self.listing.remove(namespace);
        self.faults.remove(namespace);
    }

    /// Applies a change; returns whether there is something to publish.
    fn take(&mut self, namespace: &str, change: WatchChange) -> bool {
        match change {
            WatchChange::Begin => {
                self.listing.insert(namespace.to_owned(), Slices::default());
                false
            }
            WatchChange::Listed(slice) => {
                if let Some(listing) = self.listing.get_mut(namespace) {
                    listing.put(slice.clone());
                }
                self.slices.put(slice);
                false
            }
            WatchChange::Complete => {
                if let Some(listing) = self.listing.remove(namespace) {
                    self.slices.retain(namespace, &listing);
                }
                self.faults.remove(namespace);
                true
            }
            WatchChange::Live => false,
            WatchChange::Put(slice) => self.slices.put(slice),
            WatchChange::Gone(slice) => self.slices.gone(&slice),
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

    fn publish(&self, ports: &WantedPorts, endpoints: &watch::Sender<Arc<UpstreamEndpoints>>) {
        let Endpoints { by_port, too_many } = self.slices.endpoints(ports);
        let too_many = too_many.into_iter().map(|namespace| (namespace, "TooManyEndpoints"));
        let faults = too_many.chain(self.faults.clone()).collect();
        put(endpoints, Arc::new(UpstreamEndpoints { endpoints: by_port, faults }));
    }
}

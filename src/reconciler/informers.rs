//! Informers: watches fill the shared cache and enqueue the keys of changes.
//!
//! One task per watch. A lost watch leaves the cache unchanged; a kind that is not installed is an empty store.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::watch;

use super::cache::{ClusterCache, WatchRole, WorkKey};
use crate::edge::kube::{Cluster, Follow, Resource, WatchChange};
use crate::model::base::backoff::Backoff;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::runtime::queue::Queue;

/// Changes within this time are reconciled together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Debounce time as a multiple of the duration of the last pass: passes of a key use at most a fifth of a processor, up to [`MAX_DEBOUNCE`].
const DEBOUNCE_FACTOR: u32 = 4;
/// Maximum debounce time.
const MAX_DEBOUNCE: Duration = Duration::from_millis(250);
/// Label of objects that the reconciler creates.
const MANAGED: &str = "tailscale.com/managed=true";
/// Selector of objects that others create.
const NOT_OURS: &str = "!tailscale.com/managed";
/// Labels of a group's own objects.
const OF_A_GROUP: &str = "tailscale.com/managed=true,tailscale.com/parent-resource-type=proxygroup";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InformerWatch {
    pub role: WatchRole,
    pub follow: Follow,
}

/// The informer cache and its queue. Clones share it.
#[derive(Debug, Clone)]
pub struct Stores {
    cache: Arc<Mutex<ClusterCache>>,
    queue: Queue<WorkKey>,
    /// Debounce time of a key, if longer than usual.
    paces: Arc<Mutex<HashMap<WorkKey, Duration>>>,
    /// Whether every required watch has had its first complete list.
    synced: watch::Sender<bool>,
    /// Whether a class needs nodes.
    wants_nodes: watch::Sender<bool>,
}

impl InformerWatch {
    /// The same watch in another namespace, or in all.
    fn within(&self, namespace: Option<String>) -> Self {
        Self { role: self.role, follow: Follow { namespace, ..self.follow.clone() } }
    }
}

/// Every watch: of the objects in `namespace`, and of users' Services, Ingresses and EndpointSlices in these namespaces or in all.
pub fn watches(namespace: &str, service_namespaces: &[String]) -> Vec<InformerWatch> {
    let everywhere = |role, resource| InformerWatch { role, follow: Follow { resource, namespace: None, labels: None, names_only: false } };
    let here = |role, resource, labels| {
        let namespace = Some(namespace.to_owned());
        InformerWatch { role, follow: Follow { resource, namespace, labels: Some(labels), names_only: false } }
    };
    let mut all = vec![
        everywhere(WatchRole::Group, Resource::PROXY_GROUP),
        everywhere(WatchRole::Class, Resource::PROXY_CLASS),
        everywhere(WatchRole::Tailnet, Resource::TAILNET),
        everywhere(WatchRole::IngressClass, Resource::INGRESS_CLASS),
        here(WatchRole::Pod, Resource::POD, MANAGED),
    ];
    for kind in Kind::ALL {
        let labels = match kind {
            // Only groups have these.
            Kind::PodDisruptionBudget => OF_A_GROUP,
            // Children and proxies of users' Services, and objects that Kubernetes derives from them; Services for metrics name no parent.
            // Certificates belong to an Ingress, as do the roles that the Tailscale operator creates for each.
            _ => MANAGED,
        };
        let watch = here(WatchRole::Owned(kind), kind.into(), labels);
        // Some of them permit groups to read users' namespaces with backends.
        let elsewhere = if kind == Kind::RoleBinding { Some(service_namespaces) } else { None };
        let namespaces: BTreeSet<_> = match elsewhere {
            Some([]) => [None].into(),
            others => others.unwrap_or_default().iter().cloned().chain([namespace.to_owned()]).map(Some).collect(),
        };
        all.extend(namespaces.into_iter().map(|namespace| watch.within(namespace)));
    }
    let mut credentials = here(WatchRole::Credentials, Resource::SECRET, NOT_OURS);
    credentials.follow.names_only = true;
    all.push(credentials);
    let mut namespaces = everywhere(WatchRole::Namespace, Resource::NAMESPACE);
    namespaces.follow.names_only = true;
    all.push(namespaces);
    let users = [
        (WatchRole::Service, Resource::SERVICE),
        (WatchRole::Ingress, Resource::INGRESS),
        (WatchRole::BackendSlice, Resource::from(Kind::EndpointSlice)),
    ];
    if service_namespaces.is_empty() {
        all.extend(users.map(|(role, resource)| everywhere(role, resource)));
        all.push(everywhere(WatchRole::Node, Resource::NODE));
    }
    for namespace in service_namespaces {
        all.extend(users.map(|(role, resource)| {
            let follow = Follow { resource, namespace: Some(namespace.clone()), labels: None, names_only: false };
            InformerWatch { role, follow }
        }));
    }
    all
}

impl Stores {
    /// Creates stores that enqueue changes to this queue.
    pub fn new(cache: ClusterCache, queue: Queue<WorkKey>) -> Self {
        let [synced, wants_nodes] = [watch::channel(false).0, watch::channel(false).0];
        Self { cache: Arc::new(Mutex::new(cache)), queue, paces: Arc::default(), synced, wants_nodes }
    }

    /// Watches one kind forever; nodes only once a class needs them.
    pub async fn feed(self, cluster: Cluster, watch: InformerWatch, lost: impl Fn(&'static str, &'static str) + Send) {
        let InformerWatch { role, follow } = watch;
        if role == WatchRole::Node {
            wait(&self.wants_nodes).await;
        }
        let namespace = follow.namespace.as_deref();
        let mut changes = Box::pin(cluster.follow(&follow, Backoff::WATCH));
        let mut logged = None;
        while let Some(change) = changes.next().await {
            let keys = match change {
                WatchChange::Begin => {
                    self.cache().begin(role, namespace);
                    BTreeSet::new()
                }
                WatchChange::Listed(value) => self.cache().listed(role, namespace, value),
                WatchChange::Complete => self.complete(role, namespace),
                WatchChange::Live => continue,
                WatchChange::Put(value) => self.cache().put(role, value),
                WatchChange::Gone(value) => self.cache().gone(role, &value),
                WatchChange::Unknown => {
                    if logged.replace("Unknown") != Some("Unknown") {
                        unknown(follow.resource);
                    }
                    self.cache().lacks(role);
                    // Without groups there is nothing to do; without another kind, its features are off.
                    if role == WatchRole::Group { BTreeSet::new() } else { self.complete(role, namespace) }
                }
                WatchChange::Lost(error) => {
                    lost(follow.resource.kind, error.reason());
                    if logged.replace(error.reason()) != Some(error.reason()) {
                        tracing::warn!(reason = error.reason(), "{error}; the cache is unchanged");
                    }
                    continue;
                }
            };
            if role == WatchRole::Class && self.cache().wants_nodes() {
                self.wants_nodes.send_if_modified(|wants| !std::mem::replace(wants, true));
            }
            self.enqueue(keys);
        }
    }

    /// Waits until every required watch has had its first complete list.
    pub async fn synced(&self) {
        wait(&self.synced).await;
    }

    /// Whether every required watch has had its first complete list.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Stores the response to a write.
    pub fn assume(&self, role: WatchRole, value: Value) {
        let keys = self.cache().put(role, value);
        self.enqueue(keys);
    }

    /// Removes an object that was deleted by us.
    pub fn deleted(&self, object: &ObjectRef, uid: Option<&str>) {
        let keys = self.cache().deleted(object, uid);
        self.enqueue(keys);
    }

    pub fn queue(&self) -> &Queue<WorkKey> {
        &self.queue
    }

    pub fn cache(&self) -> MutexGuard<'_, ClusterCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, role: WatchRole, namespace: Option<&str>) -> BTreeSet<WorkKey> {
        let (keys, missing) = {
            let mut cache = self.cache();
            (cache.complete(role, namespace), cache.missing())
        };
        if missing.is_empty() {
            self.synced.send_if_modified(|synced| !std::mem::replace(synced, true));
        }
        keys
    }

    /// Sets a key's debounce time by the duration of its last pass, without writes.
    pub fn paced(&self, key: WorkKey, took: Duration) {
        let pace = (took * DEBOUNCE_FACTOR).min(MAX_DEBOUNCE);
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        if pace > DEBOUNCE {
            paces.insert(key, pace);
        } else {
            paces.remove(&key);
        }
    }

    fn enqueue(&self, keys: BTreeSet<WorkKey>) {
        for key in keys {
            let pace = self.paces.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
            self.queue.add_after(key, pace.unwrap_or(DEBOUNCE));
        }
    }
}

/// Waits until the value is true. The sender is our own, so it cannot be dropped.
async fn wait(is: &watch::Sender<bool>) {
    let _ = is.subscribe().wait_for(|is| *is).await;
}

/// Logs a kind that is not installed.
fn unknown(resource: Resource) {
    let Resource { kind, api_version, .. } = resource;
    if kind == "ServiceMonitor" {
        tracing::info!("{kind} of {api_version} is not installed: no ServiceMonitors are made");
    } else {
        tracing::warn!(
            "{kind} of {api_version} is not installed: install the definitions (tailyard crd | kubectl apply --server-side -f -)"
        );
    }
}

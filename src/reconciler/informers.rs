//! Informers: watches fill the shared cache and enqueue the keys of changes.
//!
//! One task per watch. A lost watch leaves the cache unchanged; a kind that is not installed is an empty store.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::cache::{ClusterCache, Delivered, Id, MANAGED, ParsedObject, WatchRole, WatchScope, WorkKey};
use crate::edge::kube::{Cluster, Follow, Resource, WatchChange};
use crate::model::base::paced::Paced;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::runtime::queue::Queue;

/// Changes within this time are reconciled together.
const DEBOUNCE_PERIOD: Duration = Duration::from_millis(20);
/// Debounce time as a multiple of the duration of the last pass: passes of a key use at most a fifth of a processor, up to [`MAX_DEBOUNCE`].
const DEBOUNCE_FACTOR: u32 = 4;
/// Maximum debounce time.
const MAX_DEBOUNCE: Duration = Duration::from_millis(250);
/// Changes of an object by tenants or Pods that are stored at once; then [`CHANGES_PER_SECOND`]. A rollout changes an `EndpointSlice` ten times
/// within two seconds, and the reconciler itself writes a Service eight times until that is served: neither waits, also one after the other.
const BURST: u32 = 20;
/// As [`BURST`], of a Secret, which may be large. A replica writes its state once a second, tailscaled rarely.
const SECRET_BURST: u32 = 10;
const CHANGES_PER_SECOND: f64 = 2.0;
/// Field selector of the reconciler's own Service, which requests the device of the Kubernetes API.
const OWN_REQUEST: &str = "metadata.name=tailyard-api-server";

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
}

/// Every watch: of the objects in `namespace`, of users' Services, Ingresses and EndpointSlices in these namespaces or in all, and of the
/// cluster-wide roles by which Pods impersonate, if they may.
pub fn watches(namespace: &str, service_namespaces: &[String], impersonation: bool) -> Vec<InformerWatch> {
    let watch = |role: WatchRole, namespace, labels| InformerWatch {
        role,
        follow: Follow { resource: role.resource(), namespace, labels, fields: None },
    };
    let here = || Some(namespace.to_owned());
    let of_users = || match service_namespaces {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let is_unwatched = !service_namespaces.is_empty() && service_namespaces.iter().all(|watched| watched != namespace);
    let typed = WatchRole::TYPED.iter().flat_map(|role| match role.scope() {
        WatchScope::Everywhere => vec![watch(*role, None, None)],
        WatchScope::Proxies(labels) => vec![watch(*role, here(), Some(labels))],
        WatchScope::Selected(fields) => {
            let InformerWatch { role, follow } = watch(*role, here(), None);
            vec![InformerWatch { role, follow: Follow { fields: Some(fields), ..follow } }]
        }
        WatchScope::Users => {
            let own = (*role == WatchRole::Service && is_unwatched).then(|| {
                let InformerWatch { role, follow } = watch(*role, here(), None);
                InformerWatch { role, follow: Follow { fields: Some(OWN_REQUEST), ..follow } }
            });
            of_users().into_iter().map(|namespace| watch(*role, namespace, None)).chain(own).collect()
        }
        WatchScope::Unrestricted if service_namespaces.is_empty() => vec![watch(*role, None, None)],
        WatchScope::Unrestricted => Vec::new(),
    });
    let mut all: Vec<_> = typed.collect();
    // Children and proxies of users' Services, and objects that Kubernetes derives from them; Services for metrics name no parent.
    // Certificates belong to an Ingress, as do the roles that the Tailscale operator creates for each.
    for kind in Kind::ALL {
        if kind.is_cluster_wide() {
            let is_written = impersonation || Kind::ADMISSION.contains(&kind);
            all.extend(is_written.then(|| watch(WatchRole::Owned(kind), None, Some(MANAGED))));
            continue;
        }
        // Some of them permit groups to read users' namespaces with backends.
        let of_role_bindings = if kind == Kind::RoleBinding { of_users() } else { Vec::new() };
        let namespaces: BTreeSet<_> =
            if of_role_bindings == [None] { [None].into() } else { of_role_bindings.into_iter().chain([here()]).collect() };
        all.extend(namespaces.into_iter().map(|namespace| watch(WatchRole::Owned(kind), namespace, Some(MANAGED))));
    }
    all
}

impl Stores {
    /// Creates stores that enqueue changes to this queue.
    pub fn new(cache: ClusterCache, queue: Queue<WorkKey>) -> Self {
        Self { cache: Arc::new(Mutex::new(cache)), queue, paces: Arc::default(), synced: watch::channel(false).0 }
    }

    /// Watches one kind forever.
    pub async fn feed(self, cluster: Cluster, watch: InformerWatch, lost: impl Fn(&'static str, &'static str) + Send) {
        let changes = watch.role.follow(&cluster, &watch.follow);
        self.follow(&watch, changes, lost).await;
    }

    /// Applies changes. An object is parsed before the cache is locked, a large one beside the other tasks; changes of one that tenants or
    /// Pods may write at a rate for each.
    async fn follow(
        &self,
        InformerWatch { role, follow }: &InformerWatch,
        mut changes: impl Stream<Item = WatchChange<Delivered>> + Unpin + Send,
        lost: impl Fn(&'static str, &'static str) + Send,
    ) {
        if *role == WatchRole::CreateFailure {
            // Events are stored about known StatefulSets only.
            self.synced().await;
        }
        let (role, namespace, began) = (*role, follow.namespace.as_deref(), Instant::now());
        let burst = if role == WatchRole::Owned(Kind::Secret) { SECRET_BURST } else { BURST };
        let mut paced: Paced<Id, Delivered> = Paced::new(burst, CHANGES_PER_SECOND);
        let mut logged = None;
        loop {
            let change = tokio::select! {
                change = changes.next() => change,
                () = until(paced.next_due().map(|due| began + due)) => {
                    if let Some(object) = paced.due(began.elapsed()) {
                        self.enqueue(self.put(object).await);
                    }
                    continue;
                }
            };
            let Some(change) = change else { return };
            let keys = match change {
                WatchChange::Begin => {
                    self.cache().begin(role, namespace);
                    BTreeSet::new()
                }
                WatchChange::Listed(object) => {
                    let parsed = parse(object).await;
                    self.cache().listed(namespace, parsed)
                }
                WatchChange::Complete => {
                    // The list is newer.
                    paced.clear();
                    self.complete(role, namespace)
                }
                WatchChange::Live => continue,
                WatchChange::Put(object) if object.is_paced() => match paced.offer(&object.pace_key(), object, began.elapsed()) {
                    Some(object) => self.put(object).await,
                    None => BTreeSet::new(),
                },
                WatchChange::Put(object) => self.put(object).await,
                WatchChange::Gone(object) => {
                    paced.forget(&object.pace_key(), |waiting| waiting.id() == object.id());
                    self.cache().gone(&object)
                }
                WatchChange::Unknown => {
                    paced.clear();
                    self.lacks(role, follow, &mut logged)
                }
                WatchChange::Lost(error) => {
                    lost(follow.resource.kind, error.reason());
                    if logged.replace(error.reason()) != Some(error.reason()) {
                        tracing::warn!(reason = error.reason(), "{error}; the cache is unchanged");
                    }
                    continue;
                }
            };
            self.enqueue(keys);
        }
    }

    /// Parses and stores an object.
    async fn put(&self, object: Delivered) -> BTreeSet<WorkKey> {
        let parsed = parse(object).await;
        self.cache().put(parsed)
    }

    /// Follows that a kind is not installed.
    fn lacks(&self, role: WatchRole, follow: &Follow, logged: &mut Option<&'static str>) -> BTreeSet<WorkKey> {
        if logged.replace("Unknown") != Some("Unknown") {
            unknown(follow.resource);
        }
        self.cache().lacks(role);
        // Without groups there is nothing to do; without another kind, its features are off.
        if role == WatchRole::Group { BTreeSet::new() } else { self.complete(role, follow.namespace.as_deref()) }
    }

    /// Waits until every required watch has had its first complete list.
    pub async fn synced(&self) {
        wait(&self.synced).await;
    }

    /// Whether every required watch has had its first complete list.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Stores the response to a write. A Pod may have filled the object: it is parsed as a watch does.
    pub async fn assume(&self, role: WatchRole, value: Value) {
        let keys = self.put(role.decode(value)).await;
        self.enqueue(keys);
    }

    /// Stores the response to the apply of a manifest with this hash.
    pub async fn applied(&self, kind: Kind, value: Value, hash: String) {
        let parsed = parse(WatchRole::Owned(kind).decode(value)).await;
        let keys = self.cache().applied(parsed, hash);
        self.enqueue(keys);
    }

    /// Records an object that has the name of one that a workload was about to create.
    pub async fn found(&self, key: &WorkloadKey, object: ObjectRef, value: Value) {
        let parsed = parse(WatchRole::Owned(object.kind).decode(value)).await;
        self.cache().found(key, object, &parsed, Instant::now());
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
        if pace > DEBOUNCE_PERIOD {
            paces.insert(key, pace);
        } else {
            paces.remove(&key);
        }
    }

    fn enqueue(&self, keys: BTreeSet<WorkKey>) {
        for key in keys {
            let pace = self.paces.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
            self.queue.add_after(key, pace.unwrap_or(DEBOUNCE_PERIOD));
        }
    }
}

/// Parses an object; a large one on another thread, so that it delays no other task.
async fn parse(object: Delivered) -> ParsedObject {
    if !object.is_large() {
        return object.parse();
    }
    match tokio::task::spawn_blocking(move || object.parse()).await {
        Ok(parsed) => parsed,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime ends.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Waits until the value is true. The sender is our own, so it cannot be dropped.
async fn wait(is: &watch::Sender<bool>) {
    let _ = is.subscribe().wait_for(|is| *is).await;
}

/// Waits until a time; forever without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
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

#[cfg(test)]
mod tests;

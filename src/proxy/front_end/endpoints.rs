//! Endpoints of backends: watches `EndpointSlice`s of their namespaces while a route needs them.
//!
//! Known endpoints stay while the API is unavailable. A namespace without read permission is reported, and its backends use their
//! `ClusterIP`. Only slices of backends are stored: a new backend lists its namespace again. So does one whose endpoints had no room.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::edge::kube::{Cluster, Follow, Resource, WatchChange, WatchedItem};
use crate::model::front_end::endpoints::{Endpoint, ServicePort, ServiceSlice, Slices, WantedPorts, dialed};
use crate::model::front_end::vhosts::Vhosts;
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

/// A change in a namespace, with the number of the watch that delivered it.
type NamespaceChange = (String, u64, WatchChange<NamedSlice>);

/// Watches of namespaces, and what they delivered.
struct Following {
    cluster: Cluster,
    sender: mpsc::Sender<NamespaceChange>,
    /// Dropping the set aborts all watches.
    tasks: JoinSet<()>,
    watches: BTreeMap<String, NamespaceWatch>,
    /// Number of the newest watch.
    number: u64,
    slices: Slices,
    faults: BTreeMap<String, &'static str>,
}

struct NamespaceWatch {
    task: AbortHandle,
    number: u64,
    /// The watch before this one: its changes count until this one has listed something, or all of nothing.
    former: Option<(u64, AbortHandle)>,
    progress: ListProgress,
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
            Some((namespace, number, change)) = changes.recv() => is_changed |= following.take(&namespace, number, change),
            () = until(following.next_list()) => following.list_due(),
            () = until(Some(due)), if is_changed => {
                following.publish(&endpoints);
                (published, is_changed) = (Some(Instant::now()), false);
            }
        }
    }
}

/// Publishes the addresses that the front end connects to. Ends when the sender of virtual hosts is dropped.
pub async fn publish_dialed(
    mut sites: watch::Receiver<Arc<Vhosts>>,
    mut endpoints: watch::Receiver<Arc<UpstreamEndpoints>>,
    addresses: watch::Sender<Arc<BTreeSet<IpAddr>>>,
) {
    loop {
        let (current_sites, current) = (Arc::clone(&sites.borrow_and_update()), Arc::clone(&endpoints.borrow_and_update()));
        put(&addresses, Arc::new(dialed(&current_sites, &current.endpoints)));
        drop((current_sites, current));
        tokio::select! {
            Ok(()) = endpoints.changed() => {}
            update = sites.changed() => if update.is_err() {
                return;
            },
        }
    }
}

async fn one(cluster: Cluster, namespace: String, number: u64, sender: mpsc::Sender<NamespaceChange>) {
    let what = Follow { resource: Resource::ENDPOINT_SLICE, namespace: Some(namespace.clone()), labels: None, fields: None };
    let mut changes = cluster.follow_as(&what, |item: WatchedItem<EndpointSlice>| {
        let name = item.metadata().name.clone().unwrap_or_default();
        (name, item.decoded().ok().and_then(ServiceSlice::read))
    });
    while let Some(change) = changes.next().await {
        if sender.send((namespace.clone(), number, change)).await.is_err() {
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
    fn new(cluster: Cluster, sender: mpsc::Sender<NamespaceChange>) -> Self {
        let (tasks, watches, number, slices, faults) = Default::default();
        Self { cluster, sender, tasks, watches, number, slices, faults }
    }

    /// Watches the namespaces of these ports, and no others.
    fn want(&mut self, ports: WantedPorts) {
        self.watches.retain(|namespace, watch| {
            let stays = ports.contains_key(namespace);
            if !stays {
                watch.abort();
                self.faults.remove(namespace);
            }
            stays
        });
        for namespace in self.slices.want(ports) {
            match self.watches.get_mut(&namespace) {
                // A list that has delivered nothing has them too.
                Some(watch) if watch.progress == ListProgress::Pending => {}
                Some(watch) => watch.list_at(watch.since + LIST_INTERVAL),
                None => self.list(namespace),
            }
        }
    }

    /// Begins a watch of a namespace, which lists it first. A former one stays until then.
    fn list(&mut self, namespace: String) {
        while self.tasks.try_join_next().is_some() {}
        self.number += 1;
        let task = self.tasks.spawn(one(self.cluster.clone(), namespace.clone(), self.number, self.sender.clone()));
        let former = self.watches.remove(&namespace).map(NamespaceWatch::into_former);
        self.watches.insert(namespace, NamespaceWatch::new(self.number, task, former));
    }

    fn next_list(&self) -> Option<Instant> {
        self.watches.values().filter_map(NamespaceWatch::next_list).min()
    }

    fn list_due(&mut self) {
        let now = Instant::now();
        let due = self.watches.iter().filter(|(_, watch)| watch.next_list().is_some_and(|due| due <= now));
        for namespace in due.map(|(namespace, _)| namespace.clone()).collect::<Vec<_>>() {
            self.list(namespace);
        }
    }

    /// Applies a change; returns whether there is something to publish.
    fn take(&mut self, namespace: &str, number: u64, change: WatchChange<NamedSlice>) -> bool {
        let Some(watch) = self.watches.get_mut(namespace) else { return false };
        match watch.admit(number, &change) {
            ChangeAdmission::Ignored => return false,
            ChangeAdmission::Applied => {}
            ChangeAdmission::FirstOfList => self.slices.begin(namespace),
        }
        match change {
            WatchChange::Begin => false,
            // A watch that resumes lists nothing.
            WatchChange::Live => self.faults.remove(namespace).is_some(),
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

/// Progress of a watch's newest list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListProgress {
    /// Nothing is listed yet.
    Pending,
    Listing,
    Complete,
}

/// What a change of a watch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeAdmission {
    /// The watch has ended, or another one lists in its place.
    Ignored,
    Applied,
    /// Applied as the first of a list: what is not in that goes.
    FirstOfList,
}

impl NamespaceWatch {
    fn new(number: u64, task: AbortHandle, former: Option<(u64, AbortHandle)>) -> Self {
        Self { task, number, former, progress: ListProgress::Pending, since: Instant::now(), due: None }
    }

    fn abort(&self) {
        self.task.abort();
        self.former.iter().for_each(|(_, former)| former.abort());
    }

    /// When the namespace is listed again: never before a list is complete.
    fn next_list(&self) -> Option<Instant> {
        self.due.filter(|_| self.progress == ListProgress::Complete)
    }

    /// The watch whose changes count while the next one has not listed: this one if it has, else its former one.
    fn into_former(self) -> (u64, AbortHandle) {
        match self.former {
            Some(former) => {
                self.task.abort();
                former
            }
            None => (self.number, self.task),
        }
    }

    /// Whether a change is applied. The first that this watch lists ends the former one, whose changes may be older.
    fn admit<T>(&mut self, number: u64, change: &WatchChange<T>) -> ChangeAdmission {
        if number != self.number {
            let is_former = self.former.as_ref().is_some_and(|(former, _)| *former == number);
            let is_delta = matches!(change, WatchChange::Put(_) | WatchChange::Gone(_));
            return if is_former && is_delta { ChangeAdmission::Applied } else { ChangeAdmission::Ignored };
        }
        match change {
            WatchChange::Begin => {
                self.progress = ListProgress::Pending;
                ChangeAdmission::Applied
            }
            WatchChange::Listed(_) | WatchChange::Complete => {
                let is_first = self.progress == ListProgress::Pending;
                self.progress = if matches!(change, WatchChange::Complete) { ListProgress::Complete } else { ListProgress::Listing };
                if !is_first {
                    return ChangeAdmission::Applied;
                }
                self.former.take().inspect(|(_, former)| former.abort());
                ChangeAdmission::FirstOfList
            }
            _ => ChangeAdmission::Applied,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::routes::Backend;
    use crate::model::front_end::vhosts::{Proxied, RouteTarget, Vhost, VhostRoute};

    fn idle(tasks: &mut JoinSet<()>) -> AbortHandle {
        tasks.spawn(std::future::pending())
    }

    fn put() -> WatchChange<()> {
        WatchChange::Put(())
    }

    #[tokio::test]
    async fn addresses_that_the_front_end_connects_to_follow_backends_and_endpoints() {
        let set = |texts: &[&str]| Arc::new(texts.iter().map(|text| text.parse().expect("an address")).collect::<BTreeSet<IpAddr>>());
        let (sites, sites_in) = watch::channel(Arc::new(Vhosts::new()));
        let (endpoints, endpoints_in) = watch::channel(Arc::new(UpstreamEndpoints::default()));
        let addresses = watch::Sender::default();
        let mut published = addresses.subscribe();
        let work = tokio::spawn(publish_dialed(sites_in, endpoints_in, addresses));
        let mut next = async || {
            published.changed().await.expect("a sender");
            Arc::clone(&published.borrow_and_update())
        };
        let backend = |address: &str| {
            let backend = Backend { namespace: "shop".into(), service: "web".into(), address: address.into(), ..Backend::default() };
            let target = RouteTarget::Backend(Proxied { backend: backend.into(), ..Proxied::default() }.into());
            VhostRoute { host: None, port: None, path: "/".into(), exact: false, target }
        };
        let routes = ["10.96.0.7:80", "[fd00::7]:80", "web.shop.svc:80"].map(backend).into();
        sites.send_replace(Arc::new([("svc:shop".to_owned(), Arc::new(Vhost { routes, ..Vhost::default() }))].into()));
        assert_eq!(next().await, set(&["10.96.0.7", "fd00::7"]));
        let port = ServicePort { namespace: "shop".into(), service: "web".into(), port: String::new() };
        let ready = ["10.0.2.1:8080", "10.0.2.2:8080"]
            .map(|address| Endpoint { address: address.parse().expect("an address"), topology: Arc::default() });
        let ready = [(port, ready.into())].into();
        endpoints.send_replace(Arc::new(UpstreamEndpoints { endpoints: ready, ..UpstreamEndpoints::default() }));
        assert_eq!(next().await, set(&["10.0.2.1", "10.0.2.2", "10.96.0.7", "fd00::7"]));
        drop(endpoints);
        sites.send_replace(Arc::default());
        assert_eq!(next().await, set(&["10.0.2.1", "10.0.2.2"]), "the ports are the watch's to remove");
        drop(sites);
        work.await.expect("it ends");
    }

    #[tokio::test]
    async fn watch_stays_until_the_next_one_lists() {
        let firsts: [fn() -> WatchChange<()>; 2] = [|| WatchChange::Listed(()), || WatchChange::Complete];
        for first in firsts {
            let mut tasks = JoinSet::new();
            let mut one = NamespaceWatch::new(1, idle(&mut tasks), None);
            assert_eq!(
                [WatchChange::Begin, first(), put()].map(|change| one.admit(1, &change)),
                [ChangeAdmission::Applied, ChangeAdmission::FirstOfList, ChangeAdmission::Applied]
            );
            let working = one.task.clone();
            // One that lists nothing, and one more.
            let two = NamespaceWatch::new(2, idle(&mut tasks), Some(one.into_former()));
            let silent = two.task.clone();
            let mut three = NamespaceWatch::new(3, idle(&mut tasks), Some(two.into_former()));
            tokio::task::yield_now().await;
            assert!(silent.is_finished() && !working.is_finished());
            assert_eq!(three.admit(3, &WatchChange::<()>::Begin), ChangeAdmission::Applied);
            assert_eq!((three.admit(1, &put()), three.admit(2, &put())), (ChangeAdmission::Applied, ChangeAdmission::Ignored));
            for relisted in [WatchChange::Begin, WatchChange::Listed(()), WatchChange::Complete] {
                assert_eq!(three.admit(1, &relisted), ChangeAdmission::Ignored, "the next one lists");
            }
            three.list_at(Instant::now());
            assert_eq!(three.next_list(), None, "nothing is listed");
            assert_eq!(three.admit(3, &first()), ChangeAdmission::FirstOfList);
            assert_eq!(three.next_list().is_some(), matches!(first(), WatchChange::Complete));
            assert_eq!(three.admit(3, &WatchChange::<()>::Complete), ChangeAdmission::Applied);
            assert!(three.next_list().is_some(), "the list is complete");
            assert_eq!((three.admit(1, &put()), three.admit(3, &put())), (ChangeAdmission::Ignored, ChangeAdmission::Applied));
            tokio::task::yield_now().await;
            assert!(working.is_finished() && !three.task.is_finished());
        }
    }
}

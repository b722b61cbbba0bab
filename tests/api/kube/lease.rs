//! Two candidates for one Lease, on a real API server that stops and restarts.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease as Object;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tailyard::edge::kube::{Leading, Lease};
use tailyard::model::base::leader::{LeaseCandidate, LeaseTerms};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use kit::apiserver::{Cluster, DEADLINE, NAMESPACE, cluster};
use kit::wait::eventually_async;

const NAME: &str = "tailyard-reconciler";

struct One {
    leading: watch::Receiver<Option<Leading>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl One {
    async fn start(cluster: &Cluster, name: &str) -> Self {
        let lease = Lease::new(cluster.pod().await, NAME, LeaseCandidate::new(name, None, LeaseTerms::RECONCILER));
        let (sender, leading) = watch::channel(None);
        let (stop, stopped) = oneshot::channel::<()>();
        let publish = move |leading| {
            sender.send_replace(leading);
        };
        let task = tokio::spawn(lease.hold(watch::channel(Some(())).1, publish, async move { drop(stopped.await) }));
        Self { leading, stop: Some(stop), task }
    }

    fn leads(&self) -> bool {
        self.leading.borrow().is_some_and(|leading| Instant::now() < leading.until)
    }

    async fn until(&mut self, leads: bool) -> Duration {
        let begin = Instant::now();
        let changed = self.leading.wait_for(|leading| leading.is_some() == leads);
        tokio::time::timeout(DEADLINE, changed).await.expect("in time").expect("the task runs");
        begin.elapsed()
    }

    async fn stop(&mut self) {
        drop(self.stop.take());
        (&mut self.task).await.expect("ended");
    }
}

/// The first candidate, which leads.
async fn leader(cluster: &Cluster) -> One {
    cluster.allow_in("coordination.k8s.io", "leases", &[], &["create"]).await;
    cluster.allow_in("coordination.k8s.io", "leases", &[NAME], &["get", "patch"]).await;
    let mut first = One::start(cluster, "first").await;
    first.until(true).await;
    first
}

#[test]
fn one_of_two_candidates_leads_and_releases_the_lease() {
    cluster(async |cluster| {
        let mut first = leader(&cluster).await;
        let mut second = One::start(&cluster, "second").await;
        tokio::time::timeout(Duration::from_secs(5), second.until(true)).await.expect_err("another leads");
        assert!(first.leads() && !second.leads());
        first.stop().await;
        assert!(second.until(true).await < LeaseTerms::RECONCILER.lease_duration, "a Lease that was given back is not waited for");
    });
}

/// Sets a label of the Lease, and with it another resource version.
async fn label(api: &Api<Object>) -> Object {
    let label = Patch::Merge(json!({"metadata": {"labels": {"team": "net"}}}));
    api.patch(NAME, &PatchParams::default(), &label).await.expect("labelled")
}

/// A renewal that the end of the leader interrupted has the same effect: the leader does not know the version.
#[test]
fn lease_of_an_unknown_version_is_released() {
    cluster(async |cluster| {
        let mut first = leader(&cluster).await;
        let api: Api<Object> = Api::namespaced(cluster.admin(), NAMESPACE);
        label(&api).await;
        first.stop().await;
        let lease = api.get(NAME).await.expect("a Lease");
        assert_eq!(lease.spec.expect("a spec").holder_identity.as_deref(), Some(""));
        assert_eq!(lease.metadata.labels.expect("labels")["team"], "net");
    });
}

#[test]
fn renewal_keeps_acquire_time_and_foreign_labels() {
    cluster(async |cluster| {
        let first = leader(&cluster).await;
        let api: Api<Object> = Api::namespaced(cluster.admin(), NAMESPACE);
        let before = label(&api).await.spec.expect("a spec");
        let lease = async || api.get(NAME).await.expect("a Lease");
        let renewed = |lease: &Object| lease.spec.as_ref().is_some_and(|spec| spec.renew_time > before.renew_time);
        let lease = eventually_async("a renewal", DEADLINE, lease, renewed).await;
        assert_eq!(lease.spec.expect("a spec").acquire_time, before.acquire_time);
        assert_eq!(lease.metadata.labels.expect("labels")["team"], "net");
        let managers = lease.metadata.managed_fields.expect("managers").into_iter().filter_map(|entry| entry.manager);
        let is_ours = |manager: &String| ["tailyard", "tailscale-container"].contains(&manager.as_str());
        assert_eq!(managers.filter(is_ours).collect::<Vec<_>>(), ["tailyard"], "no replica's manager");
        assert!(first.leads());
    });
}

#[test]
fn dead_leader_is_replaced_within_fifteen_seconds() {
    cluster(async |cluster| {
        let first = leader(&cluster).await;
        let mut second = One::start(&cluster, "second").await;
        eventually_async("a renewal", DEADLINE, async || cluster.count("patch", "leases"), |count| *count >= 3).await;
        first.task.abort();
        let took = second.until(true).await;
        println!("another leads after {took:?}");
        assert!(took <= Duration::from_secs(15), "{took:?}");
    });
}

#[test]
fn frozen_api_server_ends_leadership_before_the_lease_expires() {
    cluster(async |cluster| {
        let mut first = leader(&cluster).await;
        cluster.freeze_server();
        let ended = first.until(false).await;
        assert!(ended <= LeaseTerms::RECONCILER.lease_duration, "{ended:?} is after another may lead");
        assert!(!first.leads());
        cluster.thaw_server();
        first.until(true).await;
    });
}

#[test]
fn time_of_the_api_server_is_read() {
    cluster(async |cluster| {
        let before = Timestamp::now();
        let time = cluster.pod().await.time().await.expect("an answer").expect("a time");
        let second = SignedDuration::from_secs(1);
        assert!(time > before - second && time <= Timestamp::now(), "{time}, asked at {before}");
    });
}

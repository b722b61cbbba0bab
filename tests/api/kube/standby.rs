//! Two Pods with one identity, on a real API server that freezes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tailyard::edge::kube::{LeaderClient, Leading};
use tailyard::model::base::leader::LeaseTerms;
use tailyard::model::settings::{ActiveLease, HttpListener};
use tailyard::proxy::standby::Standby;
use tailyard::runtime::tasks::{self, Stopper, Tasks};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use kit::apiserver::{Cluster, DEADLINE, NAMESPACE, cluster};
use kit::wait::eventually_async;

const NAME: &str = "ts-web-abcde-0";

/// A Pod that is not a replica yet.
struct Waiting {
    standby: Standby,
    tasks: Tasks,
    leaver: Stopper,
    shutdown: tasks::Stop,
}

impl Waiting {
    async fn start(cluster: &Cluster, uid: &str) -> Self {
        let mut tasks = Tasks::default();
        let election = ActiveLease { name: NAME.to_owned(), pod_uid: uid.to_owned() };
        let standby = Standby::start(cluster.pod().await, &election, &mut tasks);
        let (leaver, shutdown) = tasks::stop();
        Self { standby, tasks, leaver, shutdown }
    }

    async fn becomes_active(&self, within: Duration) -> bool {
        timeout(within, self.standby.wait(None, &self.tasks, &self.shutdown)).await.unwrap_or(false)
    }
}

/// The first Pod, which is active.
async fn active(cluster: &Cluster) -> Waiting {
    cluster.allow_in("coordination.k8s.io", "leases", &[], &["create"]).await;
    cluster.allow_in("coordination.k8s.io", "leases", &[NAME], &["get", "patch"]).await;
    cluster.allow("secrets", &[NAME], &["get"]).await;
    cluster.make_secret(NAME, &[]).await;
    let first = Waiting::start(cluster, "first").await;
    assert!(first.becomes_active(DEADLINE).await);
    first
}

/// Status line of a response.
fn status(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.lines().next().map(str::to_owned)
}

#[test]
fn second_pod_waits_and_answers_probes_until_the_first_has_left() {
    cluster(async |cluster| {
        let first = active(&cluster).await;
        let api: Api<Lease> = Api::namespaced(cluster.admin(), NAMESPACE);
        let lease = api.get(NAME).await.expect("the Lease");
        assert_eq!(lease.metadata.owner_references.expect("owners")[0].name, NAME, "it is deleted with the state Secret");
        let second = Waiting::start(&cluster, "second").await;
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("an address");
        let listener = HttpListener { address, metrics: false, preshutdown: false };
        let waits = second.standby.wait(Some(listener), &second.tasks, &second.shutdown);
        let probes = async {
            let ask = async |path: &'static str| spawn_blocking(move || status(address, path)).await.expect("a thread");
            let alive = |found: &Option<String>| found.as_deref() == Some("HTTP/1.1 200 OK");
            eventually_async("liveness", DEADLINE, async || ask("/livez").await, alive).await;
            assert_eq!(ask("/readyz").await.as_deref(), Some("HTTP/1.1 503 Service Unavailable"));
            tokio::time::sleep(2 * LeaseTerms::ACTIVE_POD.retry_period).await;
        };
        tokio::select! {
            _ = waits => panic!("both are active"),
            () = probes => {}
        }
        first.standby.release().await;
        assert!(second.becomes_active(LeaseTerms::ACTIVE_POD.renew_deadline).await, "a Lease that was released is not waited for");
    });
}

#[test]
fn passed_claim_stops_the_active_pod_and_starts_the_other_at_once() {
    cluster(async |cluster| {
        cluster.allow_in("coordination.k8s.io", "leases", &[NAME], &["list", "watch"]).await;
        let first = active(&cluster).await;
        let second = Waiting::start(&cluster, "second").await;
        let leading = Leading { since: Instant::now(), until: Instant::now() + DEADLINE };
        let observer = LeaderClient::new(cluster.pod().await, watch::channel(Some(leading)).1, Arc::new(|_, _, _| ()));
        let mut pods = [(&first, "first"), (&second, "second")];
        // The watch is established.
        tokio::time::sleep(2 * LeaseTerms::ACTIVE_POD.retry_period).await;
        let mut total = Duration::ZERO;
        for _ in 0..6 {
            let [(active, _), (waiting, uid)] = pods;
            let fence = active.standby.fence(async {}, active.shutdown.clone(), active.tasks.stop());
            let begin = Instant::now();
            let passed = async || {
                let read = observer.lease(NAME).await.expect("an answer").expect("a Lease");
                observer.pass_claim(NAME, &read, uid, LeaseTerms::ACTIVE_POD).await
            };
            // A renewal may come first.
            eventually_async("the claim passes", DEADLINE, passed, Result::is_ok).await.expect("passed");
            assert!(waiting.becomes_active(DEADLINE).await);
            timeout(DEADLINE, fence).await.expect("it learns it").expect_err("tailscaled is killed");
            total += begin.elapsed();
            pods.reverse();
        }
        println!("six claims passed in {total:?}");
        assert!(total < 2 * LeaseTerms::ACTIVE_POD.retry_period, "no Pod waits for its next read: {total:?}");
    });
}

#[test]
fn holder_that_cannot_renew_stops_tailscaled() {
    cluster(async |cluster| {
        let first = active(&cluster).await;
        let (killed, kill) = oneshot::channel();
        let fence = first.standby.fence(
            async move {
                let _ = killed.send(());
            },
            first.shutdown.clone(),
            first.tasks.stop(),
        );
        cluster.freeze_server();
        let ended = timeout(LeaseTerms::ACTIVE_POD.lease_duration, fence).await.expect("before another Pod may be active");
        assert!(ended.is_err(), "the process ends");
        kill.await.expect("tailscaled is killed first");
        cluster.thaw_server();
        // A Pod that leaves kills it as well, and goes on with its shutdown.
        assert!(first.becomes_active(DEADLINE).await);
        first.leaver.escalate();
        let fence = first.standby.fence(async {}, first.shutdown.clone(), first.tasks.stop());
        cluster.freeze_server();
        timeout(LeaseTerms::ACTIVE_POD.lease_duration, fence).await.expect_err("it waits for the end of the shutdown");
        cluster.thaw_server();
    });
}

//! Failover: replicas whose health servers stop answering. There is no kubelet, so nothing but a test changes a Pod back.

use std::time::Instant;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Health, Running, Stage, stage};
use kit::wait::{eventually_async, until_async};

/// Group of the processes of a reconciler with a broken path.
const BROKEN: u32 = 4242;

/// Creates the ready Pods of a group of two replicas on two nodes, with health servers.
async fn replicas(stage: &Stage) -> [Health; 2] {
    stage.group("g", 2).await;
    [stage.probed_pod("g", 0).await, stage.probed_pod("g", 1).await]
}

async fn condition(stage: &Stage, name: &str, kind: &str) -> PodCondition {
    let pod = stage.here::<Pod>().get(name).await.expect("a Pod");
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    conditions.into_iter().find(|condition| condition.type_ == kind).expect("a condition")
}

async fn is_lost(stage: &Stage, name: &str) -> bool {
    let ready = condition(stage, name, "Ready").await;
    ready.status == "False" && ready.reason.as_deref() == Some("TailyardUnreachable")
}

/// Note about a replica.
async fn note(stage: &Stage, name: &str) -> Option<String> {
    let pod = stage.here::<Pod>().get(name).await.expect("a Pod");
    pod.metadata.annotations?.remove("tailyard.io/unreachable")
}

/// Waits for this many more probes of an outcome.
async fn probed(running: &Running, outcome: &str, more: u64) {
    let series = format!("tailyard_failover_probes_total{{outcome=\"{outcome}\"}}");
    let target = running.metric(&series) + more;
    until_async(&format!("{more} probes {outcome}"), DEADLINE, async || running.metric(&series) >= target).await;
}

/// Holder of the failover Lease; `None` without a Lease.
async fn holder(stage: &Stage) -> Option<String> {
    let lease = stage.here::<Lease>().get_opt("tailyard-failover").await.expect("an answer")?;
    Some(lease.spec?.holder_identity.unwrap_or_default())
}

#[test]
fn hung_replica_is_made_unready_by_one_reconciler_and_returns() {
    stage(async |stage| {
        let first = stage.reconciler("first", 9101);
        // The leader reports the return: it must not be the one without failover.
        first.leads(true).await;
        let second = stage.reconciler("second", 9102);
        let off = stage.reconciler_with("off", 9103, &["--failover", "off"]);
        let [hung, _other] = replicas(&stage).await;
        for running in [&first, &second] {
            probed(running, "answered", 8).await;
        }
        assert_eq!(holder(&stage).await, None, "nothing is written while all replicas answer");
        hung.hang();
        let begin = Instant::now();
        until_async("the replica is unready", DEADLINE, async || is_lost(&stage, "g-0").await).await;
        println!("unready after {:?}", begin.elapsed());
        let message = condition(&stage, "g-0", "Ready").await.message.unwrap_or_default();
        assert!(message.starts_with("no answer to health probes since 20") && message.contains("made the Pod unready"), "{message}");
        assert_eq!(condition(&stage, "g-0", "ContainersReady").await.status, "True", "other conditions stay");
        assert_eq!(condition(&stage, "g-1", "Ready").await.status, "True");
        let events = async || stage.events("g").await;
        eventually_async("an Event", DEADLINE, events, |all| {
            all.iter().any(|event| event.starts_with("ReplicaLost replica g-0 on node n0"))
        })
        .await;
        let marks =
            || [&first, &second].map(|running| running.metric("tailyard_failover_unready_total{proxygroup=\"g\"}")).iter().sum::<u64>();
        assert_eq!(marks(), 1, "one writer");
        for running in [&first, &second] {
            until_async("the gauge", DEADLINE, async || running.metric("tailyard_lost_replicas{proxygroup=\"g\"}") == 1).await;
        }
        eventually_async("the Lease is released", DEADLINE, async || holder(&stage).await, |holder| holder.as_deref() == Some("")).await;
        hung.resume();
        eventually_async("an Event", DEADLINE, events, |all| all.iter().any(|event| event.starts_with("ReplicaReachable replica g-0")))
            .await;
        assert_eq!((marks(), off.metric("tailyard_failover_probes_total")), (1, 0));
    });
}

#[test]
fn standby_makes_a_replica_unready_when_the_leader_ends_with_its_node() {
    stage(async |stage| {
        let leader = stage.reconciler("leader", 9101);
        leader.leads(true).await;
        let standby = stage.reconciler("standby", 9102);
        let [hung, _other] = replicas(&stage).await;
        probed(&standby, "answered", 8).await;
        hung.hang();
        leader.kill();
        let begin = Instant::now();
        until_async("the replica is unready", DEADLINE, async || is_lost(&stage, "g-0").await).await;
        println!("unready after {:?}", begin.elapsed());
        let marked = "replica lost: no answer to health probes; made its Pod unready";
        until_async("the response to its write", DEADLINE, async || standby.log().contains(marked)).await;
        assert!(standby.get("/metrics").contains("\ntailyard_leader 0\n"), "it is not the leader of the reconcilers yet");
    });
}

#[test]
fn last_ready_replica_is_never_made_unready() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9101);
        let [first, second] = replicas(&stage).await;
        probed(&running, "answered", 8).await;
        first.hang();
        second.hang();
        probed(&running, "missed", 20).await;
        assert_eq!(holder(&stage).await, None, "without a survivor nothing is suspected");
        for name in ["g-0", "g-1"] {
            assert_eq!(condition(&stage, name, "Ready").await.status, "True", "{name}");
        }
        second.resume();
        until_async("the first is unready", DEADLINE, async || is_lost(&stage, "g-0").await).await;
        second.hang();
        probed(&running, "missed", 20).await;
        assert_eq!(condition(&stage, "g-1", "Ready").await.status, "True", "the other one is not ready");
        first.resume();
        // One that is reached is restored, and survives the other one.
        until_async("the second is unready", DEADLINE, async || is_lost(&stage, "g-1").await).await;
        assert_eq!(condition(&stage, "g-0", "Ready").await.status, "True");
    });
}

#[test]
fn lost_replica_stays_out_until_it_is_reached() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9101);
        let [first, _second] = replicas(&stage).await;
        probed(&running, "answered", 8).await;
        first.hang();
        until_async("the replica is unready", DEADLINE, async || is_lost(&stage, "g-0").await).await;
        // Its kubelet lives.
        stage.make_ready("g-0").await;
        until_async("the replica is unready again", DEADLINE, async || is_lost(&stage, "g-0").await).await;
        assert!(note(&stage, "g-0").await.is_some_and(|note| note.contains(r#""stage":"lost""#)), "for the replica");
        let lost = async || stage.events("g").await.iter().filter(|event| event.starts_with("ReplicaLost")).count();
        eventually_async("one Event", DEADLINE, lost, |count| *count == 1).await;
        first.resume();
        let is_back = async || condition(&stage, "g-0", "Ready").await.status == "True" && note(&stage, "g-0").await.is_none();
        until_async("the replica is ready, without a note", DEADLINE, is_back).await;
        assert_eq!(lost().await, 1);
    });
}

/// Two reconcilers; one has a broken path to a replica that the other reaches.
#[test]
fn replica_that_one_reconciler_does_not_reach_stays_ready() {
    stage(async |stage| {
        let [sound, broken] = [stage.reconciler("sound", 9101), stage.reconciler_of_gid("broken", 9102, BROKEN)];
        let [first, _second] = replicas(&stage).await;
        for running in [&sound, &broken] {
            probed(running, "answered", 8).await;
        }
        first.cut_off(BROKEN);
        let disputes = async || broken.metric("tailyard_failover_disputed_total{proxygroup=\"g\"}");
        eventually_async("a dispute", DEADLINE, disputes, |count| *count == 1).await;
        assert!(broken.log().contains("another reconciler reaches it: its Pod stays ready"), "{}", broken.log());
        probed(&broken, "missed", 20).await;
        assert_eq!(disputes().await, 1, "the next suspicion waits");
        // Under load the objection may be late; it then restores the Pod. There is no kubelet that would.
        assert_eq!(condition(&stage, "g-0", "Ready").await.status, "True");
        assert_eq!(note(&stage, "g-0").await, None);
        println!("marks: {}", broken.metric("tailyard_failover_unready_total{proxygroup=\"g\"}"));
        // A replica that neither reaches is lost, although one that was wrong before suspects it.
        first.hang();
        until_async("the replica is unready", DEADLINE, async || is_lost(&stage, "g-0").await).await;
    });
}

/// The two Pods of the proxy of a Service, and the Lease of the first one as that renews it.
struct Pair<'a> {
    stage: &'a Stage,
    names: [String; 2],
    uids: [String; 2],
    active: Health,
    _waiting: Health,
}

impl<'a> Pair<'a> {
    async fn create(stage: &'a Stage, service: &str, number: u8) -> Self {
        let spec = json!({"ports": [{"port": 80}]});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": service}, "spec": spec});
        stage.apply(stage.users(), service, object).await;
        let [(first, active), (second, waiting)] = stage.probed_pair(service, number).await;
        let names = [first, second];
        let mut uids = [String::new(), String::new()];
        for (name, uid) in names.iter().zip(&mut uids) {
            *uid = stage.here::<Pod>().get(name).await.expect("a Pod").metadata.uid.expect("a UID");
        }
        let pair = Self { stage, names, uids, active, _waiting: waiting };
        pair.renew(&pair.uids[0]).await;
        pair
    }

    /// Renews the Lease as this holder.
    async fn renew(&self, holder: &str) {
        let now = MicroTime(Timestamp::now());
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 10, "leaseTransitions": 3, "renewTime": now});
        let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.names[0]}, "spec": spec});
        let parameters = PatchParams::apply("pod").force();
        self.stage.here::<Lease>().patch(&self.names[0], &parameters, &Patch::Apply(&object)).await.expect("renewed");
    }

    async fn holder(&self) -> String {
        let lease = self.stage.here::<Lease>().get(&self.names[0]).await.expect("a Lease");
        lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }
}

#[test]
fn claim_of_a_lost_active_pod_passes_to_the_waiting_one() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9101);
        let pair = Pair::create(&stage, "web", 0).await;
        probed(&running, "answered", 8).await;
        pair.active.lose();
        let begin = Instant::now();
        eventually_async("the waiting Pod has the claim", DEADLINE, async || pair.holder().await, |holder| *holder == pair.uids[1]).await;
        println!("the claim passed after {:?}", begin.elapsed());
        let lease = stage.here::<Lease>().get(&pair.names[0]).await.expect("a Lease").spec.expect("a spec");
        assert_eq!((lease.lease_transitions, lease.lease_duration_seconds), (Some(4), Some(10)));
        until_async("the lost Pod is unready", DEADLINE, async || is_lost(&stage, &pair.names[0]).await).await;
        let expected = format!("ReplicaLost replica {} on node n0", pair.names[0]);
        eventually_async(
            "an Event",
            DEADLINE,
            async || stage.events("web").await,
            |all| all.iter().any(|event| event.starts_with(&expected)),
        )
        .await;
        let series = "tailyard_lost_replicas{proxygroup=\"service/default/web\"}";
        until_async("the gauge", DEADLINE, async || running.metric(series) == 1).await;
    });
}

#[test]
fn claim_of_an_active_pod_that_renews_or_hangs_stays() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9101);
        let [renews, hangs] = [Pair::create(&stage, "renews", 0).await, Pair::create(&stage, "hangs", 1).await];
        probed(&running, "answered", 16).await;
        renews.active.lose();
        hangs.active.hang();
        for _ in 0..10 {
            renews.renew(&renews.uids[0]).await;
            probed(&running, "missed", 3).await;
        }
        for pair in [&renews, &hangs] {
            assert_eq!(pair.holder().await, pair.uids[0]);
            assert_eq!(condition(&stage, &pair.names[0], "Ready").await.status, "True", "the last ready one");
            assert!(running.log().contains(&format!("pod=\"{}\"", pair.names[0])), "{}", running.log());
        }
    });
}

#[test]
fn lease_that_names_the_lost_pod_of_another_proxy_stays() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9101);
        let [lost, other] = [Pair::create(&stage, "web", 0).await, Pair::create(&stage, "other", 1).await];
        probed(&running, "answered", 16).await;
        // A compromised Pod may write its own Lease, and create others.
        other.renew(&lost.uids[0]).await;
        lost.renew(&other.uids[0]).await;
        lost.active.lose();
        probed(&running, "missed", 20).await;
        assert_eq!([other.holder().await, lost.holder().await], [lost.uids[0].clone(), other.uids[0].clone()]);
        lost.renew(&lost.uids[0]).await;
        eventually_async("the waiting Pod has the claim", DEADLINE, async || lost.holder().await, |holder| *holder == lost.uids[1]).await;
        assert_eq!(other.holder().await, lost.uids[0]);
    });
}

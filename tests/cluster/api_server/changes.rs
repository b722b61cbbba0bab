//! Changes of the group, and faults, while clients use it.

use std::time::{Duration, Instant, SystemTime};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::{DEADLINE, pods};
use kit::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use super::identity::{answers, requests};
use super::stage::{GROUP, RENAMED, Stage};

/// Timeout of a connection. A client's kernel retransmits after one second, two, three and so on.
const PATIENCE: &str = "5s";
/// Connections per second.
const RATE: &str = "20";
/// Number of answers after which the API is served again.
const ENOUGH: u64 = 60;
/// Prefix of the API server's root.
const ROOT: &str = "{";
/// Port of the Kubernetes API.
const HTTPS: u16 = 443;
/// Time limit until the API is served again after a kill; the kubelet starts a container within ten seconds.
const SERVED_WITHIN: Duration = Duration::from_secs(40);
/// Time limit of the 503 response.
const REFUSED_WITHIN: Duration = Duration::from_secs(15);

/// Restarts the group while requests arrive on new connections and on one that exists.
pub(crate) fn restart_fails_no_request(stage: &Stage) {
    let load = stage.alice.client.begin((GROUP, HTTPS), ROOT, RATE, PATIENCE);
    let url = format!("https://{}/version?[1-100000]", stage.alice.client.name(GROUP));
    let mut connected = requests(&stage.alice, "connected", &url, "20/s");
    let set = format!("statefulset/{GROUP}");
    stage.cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, &set]);
    stage.cluster.rolled_out(NAMESPACE, &set);
    let report = load.end();
    connected.signal(Signal::SIGTERM);
    connected.wait();
    let answers = answers(&connected);
    let connects: usize = answers.iter().map(|(_, connects)| connects).sum();
    println!("a rolling restart: {report}; {} requests on {connects} connections", answers.len());
    report.measured("a rolling restart");
    assert!(report.failed() == 0, "{report}\n{}", stage.logs());
    let failed = answers.iter().filter(|(status, _)| *status != 200).count();
    assert!(
        failed == 0 && answers.len() > 100,
        "{failed} failed of those on existing connections: {}\n{}",
        connected.output(),
        stage.logs()
    );
    assert_eq!(stage.pebble.issued(), 1, "a restart orders nothing");
}

/// Kills all processes of the replica that receives the connections.
pub(crate) fn killed_replica_is_replaced(stage: &Stage) {
    let replica = format!("{GROUP}-{}", stage.primary(GROUP));
    let load = stage.alice.client.begin((GROUP, HTTPS), ROOT, RATE, PATIENCE);
    let (killed, uid) = (SystemTime::now(), pods::uid(&stage.cluster, NAMESPACE, &replica));
    pods::signal(&uid, Some("tailyard"), Signal::SIGKILL);
    let answered = load.so_far().answered_so_far();
    let ((), took) = Stage::timed("answers", || (load.so_far().answered_so_far() > answered + ENOUGH).then_some(()));
    stage.cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    stage.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    let report = load.end();
    let outage = report.last_failure_after(killed);
    println!("{replica} killed: {ENOUGH} answers after {took:?}, the last failed connection began after {outage:?}; {report}");
    report.measured("a replica is killed");
    assert!(outage < SERVED_WITHIN, "{report}\n{}", stage.logs());
}

/// Requests get 503 with a `Status` while the API server is down, and pass again without a restart of the replicas.
pub(crate) fn outage_of_the_api_server_is_a_status(stage: &Stage) {
    let cluster = &stage.cluster;
    let uids = || [0, 1].map(|ordinal| pods::uid(cluster, NAMESPACE, &format!("{GROUP}-{ordinal}")));
    let (before, ask) = (uids(), || stage.alice.ask(GROUP, "/version", &[]));
    cluster.control.stop_api();
    let begin = Instant::now();
    let mut answer = ask();
    while answer.as_ref().is_ok_and(|answer| answer.status != 503) && begin.elapsed() < REFUSED_WITHIN {
        answer = ask();
    }
    let took = begin.elapsed();
    cluster.control.start_api(&cluster.pki, &cluster.bin);
    let answer = answer.expect("a response");
    println!("without an API server: {} after {took:?}: {}", answer.status, answer.message());
    assert_eq!(answer.status, 503, "{answer:?}\n{}", stage.logs());
    let (_, took) = Stage::timed("the API server's answer", || ask().ok().filter(|answer| answer.status == 200));
    println!("answered {took:?} after its start");
    stage.is_ready(GROUP);
    assert_eq!(uids(), before, "no replica is replaced");
}

/// Renames the API. The former name answers until the new one does.
pub(crate) fn former_name_is_served_until_the_new_one(stage: &Stage) {
    let begin = Instant::now();
    stage.patch(&json!({"spec": {"kubeAPIServer": {"hostname": RENAMED}}}));
    let exists = || stage.alice.client.services().iter().any(|one| one["name"] == format!("svc:{RENAMED}"));
    let answers = |name: &str| stage.alice.ask(name, "/version", &["--max-time", "5"]).is_ok_and(|answer| answer.status == 200);
    let mut is_known = false;
    while !(is_known && answers(RENAMED)) {
        // The new name may be served since.
        assert!(answers(GROUP) || (is_known && answers(RENAMED)), "neither name answers after {:?}\n{}", begin.elapsed(), stage.logs());
        if !is_known && exists() {
            stage.alice.client.resolve(RENAMED);
            is_known = true;
        }
        assert!(begin.elapsed() < DEADLINE, "the new name is not served\n{}", stage.logs());
    }
    println!("another host name: served after {:?}", begin.elapsed());
    stage.is_ready(RENAMED);
    eventually("the former Tailscale Service is deleted", DEADLINE, || {
        stage.alice.client.services().iter().all(|one| one["name"] != format!("svc:{GROUP}")).then_some(())
    });
    stage.alice.configure(RENAMED);
    assert!(stage.alice.kubectl(&["get", "pods", "-o", "name"]).contains("pod/"), "by the new name");
    assert_eq!(stage.pebble.issued(), 2, "one order for the new name");
}

//! Outages of the reconcilers and of the API server. Forwarding depends on neither.

use std::time::{Duration, Instant, SystemTime};

use crate::stage::{Stage, whole};
use kit::cluster::chart::{NAMESPACE, RECONCILER};
use kit::cluster::{DEADLINE, pods};
use kit::wait::eventually;
use nix::sys::signal::Signal;

/// Time limit for a killed container to serve again. The kubelet restarts a container at once only the first time, then after 10 s, 20 s
/// and so on; so the test uses a Pod without restarts.
const STARTED: Duration = Duration::from_secs(10);

/// Observation time for failures: some seconds longer than an attempt takes to fail.
const QUIET: Duration = Duration::from_secs(8);

pub(crate) fn targets_move_without_a_reconciler(stage: &Stage) {
    let cluster = &stage.cluster;
    let load = whole::load(cluster, "alone", None, &["--active", "4", "--idle", "4"]);
    cluster.kubectl(&["scale", "-n", NAMESPACE, RECONCILER, "--replicas=0"]);
    cluster.wait(&["-n", NAMESPACE, "--for=delete", "pod", "-l", "app.kubernetes.io/name=tailyard"]);
    let report = load.end();
    println!("the reconcilers leave: {report}");
    report.assert_no_failures("the reconcilers leave");
    assert_eq!((report.reset(), report.hung()), (0, 0), "{report}");

    // The name moves from one tailnet node to another: replicas follow without a reconciler.
    let [db, spare] = ["db", "spare"].map(|name| cluster.tailnet.node_id(name).to_string());
    let rename = |node: &str, to: &str| drop(cluster.tailnet.headscale(&["nodes", "rename", "-i", node, to]));
    rename(&db, "old");
    rename(&spare, "db");
    stage.answered_by("spare");
    rename(&spare, "spare");
    rename(&db, "db");
    stage.answered_by("db");

    // Changes by users are not processed yet.
    cluster.kubectl(&["annotate", "service/db", "--overwrite", "tailscale.com/tailnet-fqdn=spare.tail.lab"]);
    for _ in 0..3 {
        stage.answered_by("db");
    }
    cluster.kubectl(&["scale", "-n", NAMESPACE, RECONCILER, "--replicas=2"]);
    stage.answered_by("spare");
    cluster.kubectl(&["annotate", "service/db", "--overwrite", "tailscale.com/tailnet-fqdn=db.tail.lab"]);
    stage.answered_by("db");
    cluster.wait(&["--for=condition=Available", "-n", NAMESPACE, RECONCILER]);
}

pub(crate) fn without_an_api_server_everything_goes_on(stage: &Stage) {
    let cluster = &stage.cluster;
    let load = whole::load(cluster, "outage", None, &["--active", "8", "--idle", "8"]);
    let (begin, length) = (Instant::now(), outage());
    cluster.control.stop_api();
    wait_until(begin, length);
    cluster.control.start_api(&cluster.pki, &cluster.bin);
    println!("the API server was away for {:?}", begin.elapsed());
    whole::settled(cluster);
    let report = load.end();
    println!("{report}");
    report.assert_no_failures("no API server");
    assert_eq!((report.reset(), report.hung()), (0, 0), "{report}");
}

pub(crate) fn a_container_starts_without_an_api_server(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, "eg-1"]);
    whole::settled(cluster);
    let load = whole::load(cluster, "restart", None, &whole::SPARSE);
    // A kube-proxy that does not know the new Pod by now learns of it only after the API server's return.
    eventually("connections through both replicas are answered", DEADLINE, || {
        let (report, now) = (load.so_far(), SystemTime::now());
        let recent = |due: &SystemTime| now.duration_since(*due).is_ok_and(|age| age < QUIET);
        (report.since_begun(now) > QUIET && !report.failures().iter().any(recent)).then_some(())
    });
    let (uid, addresses) = (pods::uid(cluster, NAMESPACE, "eg-1"), cluster.tailnet.addresses_of("eg-1"));
    let daemon = || pods::processes(&uid, Some("tailscaled"));
    let before = daemon();
    cluster.control.stop_api();
    let (begin, killed) = (Instant::now(), SystemTime::now());
    // The container's first process, and with it all others; the Pod's sandbox stays.
    pods::signal(&uid, Some("tailyard"), Signal::SIGKILL);
    eventually("another tailscaled", DEADLINE, || Some(daemon()).filter(|found| !found.is_empty() && *found != before));
    println!("another tailscaled after {:?}", begin.elapsed());
    wait_until(Instant::now(), STARTED + QUIET);
    cluster.control.start_api(&cluster.pki, &cluster.bin);
    whole::settled(cluster);
    let report = load.end();
    let last = report.last_failure_after(killed);
    println!("a container killed without an API server: connections begun up to {last:?} later failed; {report}");
    // Half of all connections begun during the outage are routed to this replica: it answers long before the API server is back.
    report.assert_few_failures_after(killed + STARTED, "a container killed without an API server");
    assert_eq!(cluster.tailnet.addresses_of("eg-1"), addresses, "it is the same device");
}

/// Duration of outages: `TAILYARD_OUTAGE` in seconds; by default longer than a Lease of the reconciler.
fn outage() -> Duration {
    Duration::from_secs(kit::setting("TAILYARD_OUTAGE").unwrap_or(20))
}

fn wait_until(begin: Instant, length: Duration) {
    while let Some(remaining) = length.checked_sub(begin.elapsed()).filter(|remaining| !remaining.is_zero()) {
        std::thread::park_timeout(remaining);
    }
}

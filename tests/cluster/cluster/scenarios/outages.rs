//! What is away: the reconcilers, the API server. What is forwarded depends on neither.

use std::time::{Duration, Instant};

use super::{Stage, outage};
use crate::cluster::whole;
use kit::cluster::chart::{NAMESPACE, RECONCILER};

pub(crate) fn targets_move_without_a_reconciler(stage: &Stage) {
    let cluster = &stage.cluster;
    let load = whole::load(cluster, "alone", None, &["--active", "4", "--idle", "4"]);
    cluster.kubectl(&["scale", "-n", NAMESPACE, RECONCILER, "--replicas=0"]);
    cluster.wait(&["-n", NAMESPACE, "--for=delete", "pod", "-l", "app.kubernetes.io/name=tailyard"]);
    let told = load.end();
    println!("the reconcilers leave: {told}");
    told.lost_nothing("the reconcilers leave");
    assert_eq!((told.reset(), told.hung()), (0, 0), "{told}");

    // The name goes from one node of the tailnet to another: replicas see that by themselves.
    let [db, spare] = ["db", "spare"].map(|name| cluster.tailnet.node_id(name).to_string());
    let rename = |node: &str, to: &str| drop(cluster.tailnet.headscale(&["nodes", "rename", "-i", node, to]));
    rename(&db, "old");
    rename(&spare, "db");
    stage.answered_by("spare");
    rename(&spare, "spare");
    rename(&db, "db");
    stage.answered_by("db");

    // What a user writes waits.
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
    let told = load.end();
    println!("{told}");
    told.lost_nothing("no API server");
    assert_eq!((told.reset(), told.hung()), (0, 0), "{told}");
}

fn wait_until(begin: Instant, length: Duration) {
    while let Some(left) = length.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

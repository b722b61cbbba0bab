//! What people do to a group on purpose.

use std::time::{Duration, Instant, SystemTime};

use super::Stage;
use crate::cluster::whole::{self, GRACE};
use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::wait::eventually;

/// How many connections of each kind are held open: more than enough that each replica has some.
const HELD: &str = "16";

pub(crate) fn a_rolling_restart_loses_nothing(stage: &Stage) {
    let cluster = &stage.cluster;
    let load = whole::load(cluster, "restart", None, &[]);
    let begin = Instant::now();
    cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/eg"]);
    cluster.rolled_out(NAMESPACE, "statefulset/eg");
    let took = begin.elapsed();
    let told = load.end();
    println!("restarted within {took:?}: {told}");
    told.lost_nothing("a rolling restart");
}

pub(crate) fn scaling_loses_nothing_and_restarts_nobody_else(stage: &Stage) {
    let cluster = &stage.cluster;
    let lives = || whole::lives(cluster, &["eg-0", "eg-1"]);
    let before = lives();
    let load = whole::load(cluster, "scale", None, &["--proto", "both"]);
    let begin = Instant::now();
    whole::scale(cluster, 3);
    println!("three replicas within {:?}", begin.elapsed());
    whole::scale(cluster, 2);
    println!("two replicas within {:?}", begin.elapsed());
    let told = load.end();
    println!("{told}");
    told.lost_nothing("scaling");
    assert_eq!(lives(), before, "nobody else is restarted");
}

pub(crate) fn a_leaving_replica_resets_what_outlives_its_grace(stage: &Stage) {
    let cluster = &stage.cluster;
    let (leaving, staying) = (whole::addresses(cluster, "eg-1"), whole::addresses(cluster, "eg-0"));
    let load = whole::load(cluster, "leave", None, &["--active", HELD, "--idle", HELD]);
    eventually("all connections stand", DEADLINE, || {
        let told = load.so_far();
        (told.held_by(&leaving).len() + told.held_by(&staying).len() == 32).then_some(())
    });
    let (held, kept) = (load.so_far().held_by(&leaving), load.so_far().held_by(&staying));
    let told_to_leave = SystemTime::now();
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, "eg-1"]);
    whole::settled(cluster);
    let told = load.end();
    println!("{told}");
    assert!(held.iter().any(|flow| *flow < 16) && held.iter().any(|flow| *flow >= 16), "active ones and idle ones: {held:?}");
    let mut ends = Vec::new();
    for flow in held {
        let (how, when) = told.end_of(flow).unwrap_or_else(|| panic!("connection {flow} did not end: {told}"));
        assert_eq!(how, "reset", "connection {flow}");
        ends.push(when.duration_since(told_to_leave).expect("after"));
    }
    ends.sort();
    println!("the Pod was deleted {:?} after the load began", told.since_begun(told_to_leave));
    println!("grace {GRACE} s: {} connections reset from {:?} to {:?} after the Pod's deletion", ends.len(), ends[0], ends[ends.len() - 1]);
    // The signal takes its time from the API server to the Pod; a busy machine makes it longer.
    let grace = Duration::from_secs(GRACE);
    assert!(ends[0] >= grace, "not before the grace is over");
    assert!(ends[ends.len() - 1] < grace + Duration::from_secs(4), "within a second of its end");
    for flow in kept {
        assert!(told.end_of(flow).is_none(), "connection {flow} is by the other replica");
    }
    told.lost_little("a leaving replica");
}

pub(crate) fn a_group_goes_before_its_service(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.apply(&[whole::group("other"), whole::service("first", "other", "spare.tail.lab")]);
    cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/first"]);
    cluster.kubectl(&["delete", "proxygroup/other", "--timeout=120s"]);
    cluster
        .wait(&["--for=jsonpath={.status.conditions[?(@.type==\"TailscaleEgressSvcValid\")].reason}=ProxyGroupNotReady", "service/first"]);
    whole::wait_gone(cluster, "other");
    cluster.kubectl(&["delete", "service/first", "--timeout=120s"]);
    assert_eq!(whole::children(cluster, "first"), "", "nothing of the Service is left");
    stage.answered_by("db");
}

pub(crate) fn a_service_goes_before_its_group(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.apply(&[whole::group("other"), whole::service("second", "other", "spare.tail.lab")]);
    cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/second"]);
    cluster.kubectl(&["delete", "service/second", "--timeout=120s"]);
    assert_eq!(whole::children(cluster, "second"), "", "nothing of the Service is left");
    cluster.kubectl(&["delete", "proxygroup/other", "--timeout=120s"]);
    whole::wait_gone(cluster, "other");
    stage.answered_by("db");
}

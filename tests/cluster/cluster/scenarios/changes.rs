//! Intended changes of a group by its users.

use std::time::{Duration, Instant, SystemTime};

use crate::stage::Stage;
use crate::stage::whole::{self, GRACE};
use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::wait::eventually;

/// Open connections of each kind: enough that each replica has some.
const HELD: &str = "16";

pub(crate) fn a_rolling_restart_loses_nothing(stage: &Stage) {
    let cluster = &stage.cluster;
    let load = whole::load(cluster, "restart", None, &[]);
    let begin = Instant::now();
    cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/eg"]);
    cluster.rolled_out(NAMESPACE, "statefulset/eg");
    let took = begin.elapsed();
    let report = load.end();
    println!("restarted within {took:?}: {report}");
    report.assert_no_failures("a rolling restart");
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
    let report = load.end();
    println!("{report}");
    report.assert_no_failures("scaling");
    assert_eq!(lives(), before, "no other Pod is restarted");
}

pub(crate) fn a_leaving_replica_resets_what_outlives_its_grace(stage: &Stage) {
    let cluster = &stage.cluster;
    let (leaving, staying) = (whole::addresses(cluster, "eg-1"), whole::addresses(cluster, "eg-0"));
    let load = whole::load(cluster, "leave", None, &["--active", HELD, "--idle", HELD]);
    eventually("all connections stand", DEADLINE, || {
        let report = load.so_far();
        (report.flows_via(&leaving).len() + report.flows_via(&staying).len() == 32).then_some(())
    });
    let (ended, staying_flows) = (load.so_far().flows_via(&leaving), load.so_far().flows_via(&staying));
    let told_to_leave = SystemTime::now();
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, "eg-1"]);
    whole::settled(cluster);
    let report = load.end();
    println!("{report}");
    assert!(ended.iter().any(|flow| *flow < 16) && ended.iter().any(|flow| *flow >= 16), "active ones and idle ones: {ended:?}");
    let mut ends = Vec::new();
    for flow in ended {
        let (how, when) = report.end_of(flow).unwrap_or_else(|| panic!("connection {flow} did not end: {report}"));
        assert_eq!(how, "reset", "connection {flow}");
        ends.push(when.duration_since(told_to_leave).expect("after"));
    }
    ends.sort();
    println!("the Pod was deleted {:?} after the load began", report.since_begun(told_to_leave));
    println!("grace {GRACE} s: {} connections reset from {:?} to {:?} after the Pod's deletion", ends.len(), ends[0], ends[ends.len() - 1]);
    // SIGTERM reaches the Pod some time after the deletion, longer on a busy machine.
    let grace = Duration::from_secs(GRACE);
    assert!(ends[0] >= grace, "not before the grace is over");
    assert!(ends[ends.len() - 1] < grace + Duration::from_secs(4), "within a second of its end");
    for flow in staying_flows {
        assert!(report.end_of(flow).is_none(), "connection {flow} is by the other replica");
    }
    report.assert_few_failures("a leaving replica");
}

//! Tailyard and the Tailscale operator in each other's place, on a real cluster: our reconciler with their proxy image, our
//! image under their operator, and a group handed over from theirs to ours and back under load.
//!
//! Their operator and their proxy are real; the control plane of both is a stand-in (`tests/servers/hosted`), since
//! Tailscale's own cannot run here. Needs root, control groups of version 1 and what `tests/servers/build` makes.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions"
)]

#[allow(dead_code, reason = "shared with the cluster tier, which uses the rest")]
#[path = "lab/kubernetes.rs"]
mod kubernetes;
#[allow(dead_code, reason = "shared with the kernel tier, which uses all of it")]
#[path = "kernel/lab.rs"]
mod lab;
#[allow(dead_code, reason = "shared with the tailnet tier, which uses all of it")]
#[path = "support/tailnet.rs"]
mod support;

#[path = "dropin/load.rs"]
mod load;
#[path = "dropin/parties.rs"]
mod parties;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kubernetes::eventually;
use kubernetes::images::{STOCK, TAILYARD};
use load::{Load, under_load};
use parties::Stage;

/// Two clusters at once would be too much for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// In so many seconds connections may fail where ours cannot help it. Their operator gives Pods neither a probe nor a readiness
/// gate: the second replica is taken away as soon as the first one's new process runs, and both are no endpoints until that one
/// has published its services. And their proxy is healthy before the ways to its targets are open.
const UNSERVED: usize = 15;

fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the proxies be replaced under a load, and waits until all is ready again; what the load met, and how long it took.
fn replaced(stage: &Stage, what: &str, change: impl FnOnce()) -> (Load, Duration) {
    let begin = Instant::now();
    let mut took = Duration::ZERO;
    let load = under_load(&stage.cluster, || {
        stage.replaced(change);
        took = begin.elapsed();
    });
    println!("{what}: {took:?}, {load}");
    stage.ready();
    assert!(load.answered > 0, "{what}: {load}");
    (load, took)
}

#[test]
fn our_reconciler_runs_the_stock_image() {
    let _turn = turn();
    let begin = Instant::now();
    let stage = Stage::set();
    stage.install_ours(STOCK);
    stage.ask_for_a_group();
    println!("a group of the stock image by our reconciler: {:?}", begin.elapsed());
    assert_eq!(stage.image(), STOCK);
    stage.through_both_replicas();
    let (load, _) = replaced(&stage, "a rolling restart of the stock image under our reconciler", || stage.restart());
    assert!(load.seconds() <= UNSERVED, "{load}");
}

#[test]
fn our_image_runs_under_their_operator() {
    let _turn = turn();
    let stage = Stage::set();
    stage.install_theirs();
    let begin = Instant::now();
    stage.ask_for_a_group();
    println!("a group of the stock image by their operator: {:?}", begin.elapsed());
    stage.through_both_replicas();
    let devices = stage.replicas();
    let (_, theirs) = replaced(&stage, "a restart of the stock image under their operator", || stage.set_class(None, "second"));

    replaced(&stage, "from the stock image to ours under their operator", || stage.set_class(Some(TAILYARD), "second"));
    assert_eq!(stage.image(), TAILYARD);
    stage.through_both_replicas();
    assert_eq!(stage.replicas(), devices, "the devices are the same");
    let (load, ours) = replaced(&stage, "a restart of our image under their operator", || stage.set_class(Some(TAILYARD), "third"));
    println!("ours to theirs: {:.2}", ours.as_secs_f64() / theirs.as_secs_f64());
    assert!(load.seconds() <= UNSERVED, "{load}");

    let keys = stage.keys();
    stage.expire("eg-0");
    eventually("a key asked for", || (stage.state("eg-0", "reissue_authkey").is_some() || stage.keys() > keys).then_some(()));
    eventually("another key given out", || (stage.keys() > keys).then_some(()));
    eventually("a device again", || {
        let asks = stage.state("eg-0", "reissue_authkey").is_some();
        (!asks && stage.state("eg-0", "device_id").is_some() && stage.cluster.tailnet.knows("eg-0")).then_some(())
    });
    stage.ready();
    stage.through_both_replicas();
}

#[test]
fn a_group_is_handed_over_and_back() {
    let _turn = turn();
    let stage = Stage::set();
    stage.install_theirs();
    stage.ask_for_a_group();
    stage.through_both_replicas();
    let (devices, service) = (stage.replicas(), stage.service());

    let (load, _) = replaced(&stage, "from their operator to our reconciler, with the stock image", || {
        stage.stop("operator");
        stage.install_ours_beside_theirs(STOCK);
    });
    assert!(load.seconds() <= UNSERVED, "{load}");
    assert_eq!((stage.replicas(), stage.service()), (devices.clone(), service.clone()), "devices and the user's Service are the same");
    let (load, _) = replaced(&stage, "from the stock image to ours under our reconciler", || stage.set_proxy_image(TAILYARD));
    assert!(load.seconds() <= UNSERVED, "{load}");
    assert_eq!(stage.image(), TAILYARD);
    stage.through_both_replicas();

    let (load, _) = replaced(&stage, "from our reconciler back to their operator", || {
        stage.stop("tailyard-reconciler");
        stage.run("operator");
        stage.give_endpoints_back();
    });
    assert!(load.seconds() <= UNSERVED, "{load}");
    assert_eq!(stage.image(), STOCK);
    assert_eq!((stage.replicas(), stage.service()), (devices, service), "devices and the user's Service are the same");
    stage.through_both_replicas();
}

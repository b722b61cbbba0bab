//! Ingress on a real cluster: a user applies a group, an Ingress and a Service, and somebody in the tailnet reaches them, over
//! HTTPS with certificates of a real ACME server (Pebble) and without TLS, while replicas are replaced.
//!
//! The control plane is a stand-in (`tests/servers/hosted`), since Tailscale's own cannot run here. Needs root, control groups of
//! version 1 and what `tests/servers/build` makes.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions"
)]

#[path = "lab/tier.rs"]
mod tier;

#[path = "ingress/load.rs"]
mod load;
#[allow(dead_code, reason = "shared with the tier of certificates, which uses all of it")]
#[path = "certs/pebble.rs"]
mod pebble;
#[path = "ingress/stage.rs"]
mod stage;

use std::time::Instant;

use load::under_load;
use stage::{GROUP, Stage};
use tier::chart::{self, NAMESPACE};
use tier::{kubernetes, support};

#[test]
fn an_ingress_is_reached_over_https_while_replicas_are_replaced() {
    let stage = Stage::set();
    let begin = Instant::now();
    stage.publish();
    stage.reached("https", "web");
    println!("from Ingress applied to the first byte over HTTPS: {:?}", begin.elapsed());
    assert_eq!(stage.pebble.issued(), 1, "one order for the group");
    stage.reached("http", "plain");
    stage.reached("http", "outside");

    let loads = under_load(&stage, || {
        stage.cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, &format!("statefulset/{GROUP}")]);
        stage.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    });
    for (what, load) in ["HTTPS", "TCP"].iter().zip(&loads) {
        println!("a rolling restart, {what}: {load}");
    }
    for load in &loads {
        assert!(load.answered() > 0 && load.failed.is_empty(), "{load}\n{}", stage.said());
    }
    assert_eq!(stage.pebble.issued(), 1, "a restart orders nothing");

    stage.cluster.kubectl(&["delete", "ingress/web", "service/plain", "service/outside", "--timeout=120s"]);
    assert_eq!(stage.services(), Vec::<String>::new(), "the tailnet's services are gone");
    stage.cluster.kubectl(&["delete", &format!("proxygroup/{GROUP}"), "--timeout=120s"]);
    assert_eq!(chart::left(&stage.cluster, GROUP), "", "nothing of the group is left");
}

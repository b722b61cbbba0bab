//! From one cluster to another: a Service that one cluster publishes in the tailnet is used by Pods of another, through a group of
//! proxies on either side, while the publishing side is restarted.
//!
//! Both clusters and the tailnet are real but for its control plane, which is a stand-in (`tests/servers/hosted`): Tailscale's own
//! cannot run here, and headscale has no Tailscale Services. Needs root, control groups of version 1 and what
//! `tests/servers/build` makes.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions"
)]

#[path = "lab/tier.rs"]
mod tier;

#[path = "crossing/sides.rs"]
mod sides;

use std::time::Instant;

use chart::NAMESPACE;
use load::Load;
use sides::{PORT, Sides, egress, published};
use tier::{chart, client, kubernetes, load, support};

#[test]
fn a_service_of_one_cluster_is_used_from_another_while_its_proxies_are_restarted() {
    let begin = Instant::now();
    let sides = Sides::start();
    println!("two clusters, a group of two replicas on each: {:?}", begin.elapsed());

    let begin = Instant::now();
    sides.publisher.apply(&[published()]);
    sides.user.apply(&[egress(&sides)]);
    sides.answered();
    println!("first answer: {:?} after both Services were there", begin.elapsed());
    sides.user.wait(&["--for=condition=TailscaleEgressSvcReady", "service/orders"]);

    let to = format!("orders.default.svc.cluster.local:{PORT}");
    // Longer than WireGuard takes to ask a second time for a handshake, which is 5 s.
    let load = Load::begin(&sides.user, "load", None, &[&to, "--expect", "orders", "--rate", "20", "--patience", "10"]);
    let begin = Instant::now();
    sides.publisher.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/in"]);
    sides.publisher.rolled_out(NAMESPACE, "statefulset/in");
    let took = begin.elapsed();
    let told = load.end();
    println!("the publishing group restarted within {took:?}: {told}");
    // A service's address is at one replica at a time: who is in the middle of connecting when it moves is cut.
    told.lost_little("a restart of the publishing group");
}

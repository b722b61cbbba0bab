//! Ingress on a real cluster: a user applies a group, an Ingress and a Service. A tailnet client reaches them while replicas are replaced,
//! over HTTPS with certificates of a real ACME server (Pebble) and without TLS.
//!
//! The control plane is a stand-in (`tests/servers/hosted`), since Tailscale's own cannot run here. Needs root, cgroup v1 and the programs
//! of `tests/servers/build`.

mod hands;
mod outage;
mod restricted;
mod stage;
mod standalone;

use std::time::Instant;

use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::site::GREETS;
use kit::scenario::scenario;
use serde_json::Value;
use stage::{ANSWER, GROUP, Stage};

/// Timeout of an attempt. A client's kernel retransmits after one second, two, three and so on.
const PATIENCE: &str = "5s";

#[test]
fn ingress_is_reached_over_https_during_rollouts() {
    let stage = Stage::set();
    let begin = Instant::now();
    stage.publish();
    stage.user.wait_for_answer("https", "web", ANSWER);
    println!("from Ingress applied to the first byte over HTTPS: {:?}", begin.elapsed());
    assert_eq!(stage.pebble.issued(), 1, "one order for the group");
    stage.user.wait_for_answer("http", "plain", ANSWER);
    stage.user.wait_for_answer("http", "outside", ANSWER);
    assert_eq!(stage.cluster.doctor().faults(&[]), [""; 0]);

    scenario("a rolling restart", || roll(&stage));
    scenario("containers start without an API server", || outage::containers_start_without_an_api_server(&stage));
    assert_eq!(stage.pebble.issued(), 1, "a start without the API server orders nothing");

    stage.cluster.kubectl(&["delete", "service/plain", "service/outside", "--timeout=120s"]);
    scenario("to the Tailscale operator's image and back", || hands::a_certificate_outlives_a_change_of_the_image(&stage));
    scenario("an Ingress without a group", || standalone::a_site_has_a_proxy_of_its_own(&stage));
    scenario("a proxy without rights", || restricted::a_site_is_served_without_any_right(&stage));

    stage.cluster.kubectl(&["delete", "ingress/web", "ingress/api", "--timeout=120s"]);
    assert_eq!(stage.user.services(), Vec::<Value>::new(), "the tailnet's services are gone");
    stage.cluster.kubectl(&["delete", &format!("proxygroup/{GROUP}"), "--timeout=120s"]);
    chart::wait_gone(&stage.cluster, GROUP);
}

/// Restarts the group under load.
fn roll(stage: &Stage) {
    let targets = [("HTTPS", ("web", 443), "20"), ("TCP", ("plain", GREETS), "5")];
    let loads = targets.map(|(what, to, rate)| (what, stage.user.begin(to, ANSWER, rate, PATIENCE)));
    stage.cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, &format!("statefulset/{GROUP}")]);
    stage.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    for (what, report) in loads.map(|(what, load)| (what, load.end())) {
        println!("a rolling restart, {what}: {report}");
        report.measured(what);
        assert!(report.failed() == 0, "{what}: {report}\n{}", stage.logs());
    }
    assert_eq!(stage.pebble.issued(), 1, "a restart orders nothing");
}

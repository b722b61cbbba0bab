//! Kubernetes API over the tailnet: the real `kubectl` on tailnet clients, a ProxyGroup of type `kube-apiserver`, the real API server and
//! kubelet. Clients are a user, a user without grants and a tagged node.
//!
//! The control plane is a stand-in (`tests/servers/hosted`), which sends grants as Tailscale's own does. Needs root, cgroup v1 and the
//! programs of `tests/servers/build`.

mod changes;
mod commands;
mod device;
mod identity;
mod noauth;
mod stage;
mod streams;
pub(crate) mod user;

use std::time::Instant;

use kit::cluster::{DEADLINE, chart};
use kit::scenario::scenario;
use kit::wait::eventually;
use serde_json::Value;
use stage::{GROUP, Stage};

#[test]
fn kubectl_works_over_the_tailnet() {
    let stage = Stage::set();
    let begin = Instant::now();
    stage.publish();
    println!("from ProxyGroup applied to the first answer: {:?}", begin.elapsed());
    assert_eq!(stage.pebble.issued(), 1, "one order for the group");
    // The last replica may wait for its approval.
    eventually("no fault", DEADLINE, || stage.cluster.doctor().faults(&[]).is_empty().then_some(()));

    scenario("identities", || identity::callers_are_who_their_nodes_are(&stage));
    scenario("headers of other users", || identity::no_header_names_another_user(&stage));
    scenario("kubectl reads", || commands::reads(&stage));
    scenario("kubectl writes", || commands::writes(&stage));
    scenario("discovery in bursts", || commands::discovery_in_bursts(&stage));
    for protocol in streams::PROTOCOLS {
        scenario(&format!("streams over {}", protocol.name), || streams::carry_every_byte(&stage, protocol));
    }
    scenario("grants that cannot be served", || identity::refusals_name_their_cause(&stage));
    scenario("a grant to the Tailscale Service", || identity::grant_to_the_service_counts_for_its_clients(&stage));
    scenario("a grant is revoked", || identity::revoked_grant_ends_with_the_next_request(&stage));
    scenario("a rolling restart", || changes::restart_fails_no_request(&stage));
    scenario("a session while its replica drains", || changes::session_ends_before_its_replica(&stage));
    scenario("a replica is killed", || changes::killed_replica_is_replaced(&stage));
    scenario("another token of the Pod", || changes::replaced_token_is_used_without_a_restart(&stage));
    scenario("no API server", || changes::outage_of_the_api_server_is_a_status(&stage));
    scenario("another host name", || changes::former_name_is_served_until_the_new_one(&stage));
    scenario("HTTP", || changes::plain_http_has_the_same_identity(&stage));
    scenario("a certificate from a Secret", || changes::own_certificate_replaces_that_of_the_control_plane(&stage));
    scenario("mode noauth", || noauth::requests_have_their_own_credentials(&stage));

    stage.cluster.kubectl(&["delete", &format!("proxygroup/{GROUP}"), "--timeout=120s"]);
    assert_eq!(stage.alice.client.services(), Vec::<Value>::new(), "the Tailscale Services are deleted");
    chart::wait_gone(&stage.cluster, GROUP);
    assert_eq!(stage.cluster_roles(), "", "and the cluster's roles");
    scenario("the operator's device", || device::serves_without_a_reconciler(&stage));
}

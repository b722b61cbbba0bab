//! A Connector on a real cluster: a subnet router of two replicas to a network behind a node. A tailnet client that accepts routes reaches it
//! once the control plane approves them, and while the replicas are replaced.
//!
//! The control plane is a stand-in (`tests/servers/hosted`), which approves no route by itself. Needs root, cgroup v1 and the programs of
//! `tests/servers/build`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::node::ProxyMode;
use kit::cluster::{Cluster, DEADLINE};
use kit::scenario::scenario;
use kit::tailnet::Control;
use kit::tailnet_client::{LoadRun, behind_a_gateway};
use kit::wait::eventually;
use serde_json::json;

const NAME: &str = "lab";
const DEVICES: [&str; 2] = ["lab-connector", "lab-connector-1"];
/// The network behind a node, and its server.
const NETWORK: &str = "10.55.0.0/24";
const SERVER: &str = "10.55.0.7:7000";
/// Timeout of a single attempt.
const TRY: Duration = Duration::from_secs(1);

#[test]
fn network_behind_a_node_is_reached_through_approved_routes_during_a_rollout() {
    let cluster = Cluster::start_with(2, Control::Hosted, ProxyMode::Nftables);
    cluster.load_tailyard(Path::new(kit::tailyard()));
    chart::install(&cluster, &["connectors.enabled=true"]);
    let [first, second] = [0, 1].map(|index| &cluster.nodes[index].machine);
    first.node.ip("link add behind type bridge\naddr add 10.55.0.7/24 dev behind\nlink set behind up\n");
    second.node.ip(&format!("route add {NETWORK} via {}\n", first.address));
    let at: SocketAddr = SERVER.parse().expect("an address");
    let _server = first.node.serve(at.port());
    let client = cluster.tailnet.machine("user");
    let _tailscaled = client.tailscaled();
    cluster.tailnet.join(&client, &["--accept-routes"]);
    behind_a_gateway(&client, NETWORK);
    let ask = || client.node.ask_tcp(at, TRY).ok().map(|greeting| greeting.name);

    let spec = json!({"replicas": 2, "subnetRouter": {"advertiseRoutes": [NETWORK]}});
    cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Connector", "metadata": {"name": NAME}, "spec": spec})]);
    let connector = format!("connector/{NAME}");
    cluster.wait(&["--for=condition=ConnectorReady", &connector]);
    cluster.wait(&["--for=condition=TailyardRoutesApproved=False", &connector]);
    assert_eq!(ask(), None, "no route is approved");
    let begin = Instant::now();
    for device in DEVICES {
        cluster.tailnet.approve_routes(device, &[NETWORK]);
    }
    let name = eventually("an answer from the network", DEADLINE, ask);
    println!("from the approval to the first answer: {:?}", begin.elapsed());
    cluster.wait(&["--for=condition=TailyardRoutesApproved", &connector]);

    scenario("a rolling restart", || {
        let args = [SERVER, "--expect", &format!("{name} "), "--rate", "5", "--timeout", "5s"];
        let load = LoadRun::begin(&client, NAME, &args);
        let selector = format!("tailscale.com/parent-resource-type=connector,tailscale.com/parent-resource={NAME}");
        let set = cluster.kubectl(&["get", "statefulsets", "-n", NAMESPACE, "-l", &selector, "-o", "name"]);
        cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, set.trim()]);
        cluster.rolled_out(NAMESPACE, set.trim());
        cluster.wait(&["--for=condition=ConnectorReady", &connector]);
        let report = load.end();
        println!("a rolling restart of the subnet router: {report}");
        report.assert_no_failures("a rolling restart of the subnet router");
    });

    cluster.kubectl(&["delete", &connector, "--timeout=180s"]);
    assert!(DEVICES.iter().all(|device| !cluster.tailnet.knows(device)), "devices are deleted before the finalizer");
    chart::wait_gone(&cluster, NAME);
}

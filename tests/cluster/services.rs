//! Each kind of Service on a real cluster, what deletions leave, and the documents from the installation to its end. No time limit needs
//! the whole machine.
//!
//! Needs root, cgroup v1 and the programs of `tests/servers/build`.

mod api_server;
mod deletions;
mod devices;
mod group;
mod published;
mod standalone;
mod standby;

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::stage::{NODES, PORT, Scenario, Stage, documents, whole};
use kit::cluster::pods::client;
use kit::cluster::{Cluster, DEADLINE, turn};
use kit::machine::Machine;
use kit::wait::eventually;

/// Response of the scenarios' backends.
const ANSWER: &str = "hello";

/// All scenarios, in the order of execution.
const ALL: [Scenario; 8] = [
    ("a device deleted at headscale", devices::a_device_is_deleted),
    ("a Service published by a route", published::a_service_is_reached_by_a_route_that_was_approved),
    ("the Kubernetes API over HTTP", api_server::kubernetes_api_is_reached_over_http),
    ("Services without a group", standalone::services_have_proxies_of_their_own),
    ("a proxy with standby", standby::a_waiting_pod_takes_over),
    ("a group deleted before its Service", deletions::a_group_goes_before_its_service),
    ("a Service deleted before its group", deletions::a_service_goes_before_its_group),
    ("the proxy of a device deleted at headscale", devices::its_proxy_has_joined_again),
];

#[test]
fn each_kind_of_service_is_served_and_leaves_nothing() {
    let _turn = turn();
    let stage = Stage::start();
    stage.play(&ALL);
    let cluster = &stage.cluster;
    whole::uninstall(cluster);
    whole::delete_without_reconciler(cluster);
    documents::follow_the_others(&stage.guide, cluster);
    // Helm does not wait for the Pods.
    let remaining = || whole::everything_of_ours(cluster);
    eventually("nothing of ours is left", DEADLINE, || Some(remaining()).filter(Vec::is_empty));
}

#[test]
fn pod_reaches_a_tailnet_target_through_a_service() {
    let _turn = turn();
    let before = kit::netns::own_links();
    let begin = Instant::now();
    let cluster = Cluster::start(NODES);
    println!("{NODES} nodes and DNS: {:?}", begin.elapsed());
    cluster.load_tailyard(Path::new(kit::tailyard()));
    println!("image on the nodes: {:?}", begin.elapsed());
    let (db, _tailscaled) = cluster.tailnet.node("db");
    let _server = db.node.serve(PORT);
    cluster.apply(&group::objects(&cluster.tailnet, "eg", 2, &group::to("db.tail.lab", PORT)));
    cluster.apply(&[client()]);
    cluster.rolled_out("default", "statefulset/eg");
    cluster.wait(&["--for=condition=Ready", "pod/client"]);
    println!("two replicas: {:?}", begin.elapsed());

    let replicas: Vec<IpAddr> = ["eg-0", "eg-1"].iter().flat_map(|name| cluster.tailnet.addresses_of(name)).collect();
    assert_eq!(replicas.len(), 4, "one of each family for each replica: {replicas:?}");

    let ask = |to: &str| cluster.try_in_pod("client", &["timeout", "10", "nc", to, &PORT.to_string()]);
    let addresses = cluster.kubectl(&["get", "service", "eg-db", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    let addresses: Vec<&str> = addresses.split_whitespace().collect();
    assert_eq!(addresses.len(), 2, "one of each family: {addresses:?}");
    for to in [&["eg-db.default.svc.cluster.local"], &addresses[..]].concat() {
        let answer = eventually(&format!("an answer by {to}"), DEADLINE, || ask(to).filter(|answer| !answer.is_empty()));
        let (name, peer) = answer.trim().split_once(' ').expect("a greeting");
        assert_eq!(name, "db");
        // A name may be resolved to either family.
        let six = to.parse().ok().map(|to: IpAddr| to.is_ipv6());
        let source: SocketAddr = peer.parse().expect("an address");
        assert!(replicas.contains(&source.ip()), "the target sees a replica's own address, not {source}");
        assert!(six.is_none_or(|six| source.is_ipv6() == six), "{source} by {to}");
    }
    println!("answers of both families: {:?}", begin.elapsed());

    drop(cluster);
    let groups = format!("/sys/fs/cgroup/pids/tailyard-{}", std::process::id());
    assert!(!Path::new(&groups).exists(), "{groups} is left");
    assert_eq!(kit::netns::own_links(), before);
}

/// Whether a backend answers a tailnet client at an address, on a new connection, within the timeout.
fn answer(guest: &Machine, address: IpAddr, patience: Duration) -> Option<()> {
    let mut text = String::new();
    guest.node.connect(SocketAddr::from((address, PORT)), patience).ok()?.read_to_string(&mut text).ok()?;
    (text.trim() == ANSWER).then_some(())
}

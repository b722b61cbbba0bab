//! Real tailscaleds on a real control server: contents of the LocalAPI, and behaviour of the supervised daemon.
//!
//! Needs root and the programs of `tests/servers/build`.

mod group;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use tailyard::api::replica::{FlowDirection, RejectKind, RejectReason, Rejects, ReplicaStatus};
use tailyard::edge::localapi::{LocalApi, MASK};
use tailyard::model::base::net::Family;
use tailyard::model::base::netmap::Fqdn;
use tailyard::model::tailnet::ipn_bus::{BackendState, Fold};
use tailyard::model::tailnet::peer_warmup::MAX_READINESS_DELAY;

use group::{Load, Manner, PATIENCE, Replica};
use kit::agent::{Agent, conf};
use kit::doctor::Diagnosis;
use kit::machine::DEADLINE;
use kit::tailnet::Tailnet;
use kit::wait::{eventually, uninterrupted};

/// Reads the bus of a daemon until `done`, which checks the fold's snapshot after each message.
async fn read_until(api: &LocalApi, what: &str, mut done: impl FnMut(&Fold) -> bool) {
    let work = async {
        let (mut bus, mut fold) = (api.watch(MASK).await.expect("the bus"), Fold::default());
        while let Some(message) = bus.next().await.expect("a message") {
            let effect = fold.fold(message);
            if effect.ask_status {
                fold.status(&api.status().await.expect("a status").0);
            }
            if done(&fold) {
                return;
            }
        }
        panic!("the bus has ended");
    };
    tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"));
}

fn resolve(fold: &Fold, name: &str) -> BTreeSet<IpAddr> {
    let map = fold.snapshot().netmap.unwrap_or_default();
    map.resolve(&Fqdn::new(name).expect("a name"))
}

#[test]
fn localapi_reports_joining_and_leaving_peers() {
    let before = kit::netns::own_links();
    let tailnet = Tailnet::start([10, 99, 0]);
    let (one, _one) = tailnet.node("one");
    let (mut two, _two) = tailnet.node("two");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let api = LocalApi::new(one.socket());
    let wanted: BTreeSet<IpAddr> = two.tailnet_addresses().into_iter().collect();
    runtime.block_on(read_until(&api, "two by its name", |fold| {
        fold.snapshot().state == BackendState::Running && resolve(fold, "TWO.tail.lab.") == wanted
    }));
    runtime.block_on(async {
        let gone = read_until(&api, "two leaving", |fold| fold.snapshot().netmap.is_some() && resolve(fold, "two.tail.lab").is_empty());
        let remove = async { tailnet.headscale(&["nodes", "delete", "--force", "-i", &tailnet.node_id("two").to_string()]) };
        tokio::join!(gone, remove);
    });
    runtime.block_on(async {
        let metrics = api.usermetrics().await.expect("metrics");
        assert!(String::from_utf8_lossy(&metrics).contains("tailscaled_"), "{metrics:?}");
        let fault = api.reload_config().await.expect_err("it was started without a config");
        assert_eq!(fault.reason(), "NotReloaded");
    });
    drop((one, two, tailnet));
    assert_eq!(kit::netns::own_links(), before, "the machine's own network is untouched");
}

#[test]
fn supervised_daemon_recovers_from_a_kill_and_accepts_a_new_key() {
    let tailnet = Tailnet::start([10, 99, 0]);
    let (mut peer, _peer) = tailnet.node("peer");
    let machine = tailnet.machine("replica");
    let agent = Agent::start(&machine, &conf("replica", tailnet.key()), None);
    let first = agent.running();
    let wanted: Vec<String> = peer.tailnet_addresses().iter().map(ToString::to_string).collect();
    eventually("the peer by its name", DEADLINE, || {
        let addresses = agent.netmap()["peers"]["peer.tail.lab"].clone();
        (addresses.as_array()?.len() == wanted.len()).then_some(())
    });
    let own = agent.netmap()["node"]["addresses"].clone();

    machine.kill("tailscaled", Signal::SIGKILL);
    let (_, noticed) = agent.until("its death", |status| status.phase != "Running");
    assert!(noticed < Duration::from_secs(5), "noticed after {noticed:?}");
    let (again, back) = agent.until("running again", |status| status.phase == "Running" && status.restarts == 1);
    println!("a killed tailscaled: noticed after {noticed:?}, running again after {:?}", noticed + back);
    assert!(back < Duration::from_secs(30), "running again after {back:?}");
    assert_ne!(again.pid, first.pid);
    assert_eq!(agent.netmap()["node"]["addresses"], own);

    let id = tailnet.node_id("replica").to_string();
    eventually("waiting for a key", DEADLINE, || {
        // The restarted daemon registers again within its first seconds, which reverts an expiry.
        tailnet.headscale(&["nodes", "expire", "-i", &id]);
        agent.soon(Duration::from_secs(3), |status| status.phase == "Degraded" && status.login == "waiting for another key")
    });
    agent.configure(&conf("replica", &tailnet.new_key()));
    let (renewed, took) = agent.until("running by the new key", |status| status.phase == "Running" && status.login == "settled");
    println!("a new key: running after {took:?}");
    assert_eq!((renewed.pid, renewed.restarts), (again.pid, 1), "in place");
    assert_eq!(agent.netmap()["node"]["addresses"], own);
    agent.stop();
    assert_eq!(machine.pid_of("tailscaled"), None);
}

#[test]
fn two_step_login_needs_no_tailscale_command() {
    let tailnet = Tailnet::start([10, 99, 0]);
    let machine = tailnet.machine("two-steps");
    let agent = Agent::start(&machine, "", Some(tailnet.key()));
    agent.running();
    eventually("its own name", DEADLINE, || (agent.netmap()["node"]["name"] == "two-steps.tail.lab.").then_some(()));
    agent.stop();
}

#[test]
fn pod_network_in_the_tailnet_range_stays_reachable() {
    let tailnet = Tailnet::start([100, 65, 0]);
    let machine = tailnet.machine("replica");
    let client = tailnet.machine("client");
    let agent = Agent::start(&machine, &conf("replica", tailnet.key()), None);
    agent.running();
    let _server = machine.node.serve(7000);
    let ask = || client.node.ask_tcp(SocketAddr::new(machine.address, 7000), Duration::from_secs(2));
    assert_eq!(ask().expect("an answer").peer.ip(), client.address);
    machine.tailscale(&["set", "--netfilter-mode=on"]);
    eventually("the daemon's own filter, which drops it", DEADLINE, || ask().is_err().then_some(()));
    machine.tailscale(&["set", "--netfilter-mode=nodivert"]);
    eventually("an answer", DEADLINE, || ask().ok());
    agent.stop();
}

/// Permitted failures while a tailscaled restarts, for a client with a connection timeout of one second.
const FEW: usize = 6;

/// Egress config of the group: `db` by its name (TCP and UDP), `app` by its address, `app` by its name.
fn services(app: IpAddr) -> serde_json::Value {
    let port = |protocol: &str, port: u16| serde_json::json!({"protocol": protocol, "matchPort": port, "targetPort": 7000});
    serde_json::json!({
        "by-name": {"tailnetTarget": {"fqdn": "db.tail.lab."}, "ports": [port("TCP", 10001), port("UDP", 10001)]},
        "by-address": {"tailnetTarget": {"ip": app.to_string()}, "ports": [port("TCP", 10002)]},
        "leaver": {"tailnetTarget": {"fqdn": "App.tail.lab"}, "ports": [port("TCP", 10003)]},
    })
}

/// Two replicas in front of three real nodes, and a client.
struct Group {
    replicas: [Replica; 2],
    client: kit::machine::Machine,
    /// Nodes, with handles that keep their processes and servers running.
    nodes: Vec<(kit::machine::Machine, kit::machine::Process, kit::netns::Server)>,
    tailnet: Tailnet,
}

impl Group {
    fn start() -> Self {
        let tailnet = Tailnet::start([10, 99, 0]);
        let mut nodes = Vec::new();
        let mut app = None;
        for name in ["db", "app", "spare"] {
            let (mut machine, process) = tailnet.node(name);
            let server = machine.node.serve(7000);
            let own = machine.tailnet_addresses();
            app = if name == "app" { own.into_iter().find(IpAddr::is_ipv4) } else { app };
            nodes.push((machine, process, server));
        }
        let config = services(app.expect("an IPv4 address"));
        let replicas = ["eg-0", "eg-1"].map(|name| Replica::start(&tailnet, name, &config));
        let client = tailnet.machine("client");
        Self { replicas, client, nodes, tailnet }
    }

    /// Waits until this node answers the service of every replica.
    fn answered_by(&self, port: u16, name: &str) {
        for replica in &self.replicas {
            eventually(&format!("{name} at port {port}"), DEADLINE, || {
                self.client.node.ask_tcp(replica.at(port), PATIENCE).ok().filter(|greeting| greeting.name == name)
            });
        }
    }

    fn rename(&self, from: &str, to: &str) {
        let id = self.tailnet.node_id(from).to_string();
        self.tailnet.headscale(&["nodes", "rename", "-i", &id, to]);
    }
}

#[test]
fn replicas_serve_and_follow_real_peers() {
    let group = Group::start();
    for replica in &group.replicas {
        for (port, name) in [(10001, "db"), (10002, "app"), (10003, "app")] {
            let greeting = eventually(name, DEADLINE, || group.client.node.ask_tcp(replica.at(port), PATIENCE).ok());
            assert_eq!((greeting.name.as_str(), greeting.peer.ip()), (name, replica.source()));
        }
        let greeting = group.client.node.ask_udp(replica.at(10001), PATIENCE).expect("an answer by UDP");
        assert_eq!((greeting.name.as_str(), greeting.peer.ip()), ("db", replica.source()));
    }
    let mut lasting = group.client.node.connect(group.replicas[0].at(10002), PATIENCE).expect("a connection");
    kit::netns::Greeting::read(&mut lasting).expect("a greeting");
    let load = Load::start(&group.client.node, &group.replicas.each_ref(), 10001);

    // The name moves to another node, and thus to another address.
    let begin = Instant::now();
    group.rename("db", "db-old");
    group.rename("spare", "db");
    group.answered_by(10001, "spare");
    let moved = Instant::now();
    let (made, failed) = load.failed_since(begin, &["db", "spare"]);
    println!("a name moved: {made} connections, {} refused while no node had it, moved after {:?}", failed.len(), moved - begin);
    assert!(failed.iter().all(|outcome| outcome.answer == Err(ErrorKind::ConnectionRefused)), "{failed:?}");

    // A flow of another service was not interrupted.
    lasting.write_all(b"still").expect("sent");
    let mut echo = [0; 5];
    lasting.read_exact(&mut echo).expect("an echo");
    assert_eq!(&echo, b"still");

    // A node is deleted: connections to its name are refused at once.
    group.tailnet.headscale(&["nodes", "delete", "--force", "-i", &group.tailnet.node_id("app").to_string()]);
    for replica in &group.replicas {
        eventually("a refusal", DEADLINE, || {
            let begin = Instant::now();
            let refused =
                group.client.node.ask_tcp(replica.at(10003), PATIENCE).is_err_and(|fault| fault.kind() == ErrorKind::ConnectionRefused);
            (refused && begin.elapsed() < Duration::from_millis(200)).then_some(())
        });
    }
    let (made, failed) = load.failed_since(moved, &["spare"]);
    assert!(made > 0 && failed.is_empty(), "{failed:?}");
}

#[test]
fn killed_tailscaled_and_restarted_replica_lose_few_connections() {
    let mut group = Group::start();
    group.answered_by(10001, "db");
    let load = Load::start(&group.client.node, &group.replicas.each_ref(), 10001);

    let begin = Instant::now();
    group.replicas[0].machine.kill("tailscaled", Signal::SIGKILL);
    let unready = group.replicas[0].wait_unready();
    let back = group.replicas[0].wait_ready() + unready;
    let (made, failed) = load.failed_since(begin, &["db"]);
    println!("tailscaled killed: unready after {unready:?}, ready after {back:?}, {} of {made} connections failed", failed.len());
    assert!(unready < Duration::from_secs(5), "unready after {unready:?}");
    assert!(failed.len() <= FEW, "{failed:?}");

    // A leaving replica ends a flow that outlives its grace period.
    let mut lasting = group.client.node.connect(group.replicas[1].at(10002), PATIENCE).expect("a connection");
    kit::netns::Greeting::read(&mut lasting).expect("a greeting");
    lasting.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    lasting.write_all(b"x").expect("a connection");
    eventually("the first replica answering again", DEADLINE, || group.client.node.ask_tcp(group.replicas[0].at(10001), PATIENCE).ok());
    let begin = Instant::now();
    let mut end = move || uninterrupted(|| lasting.read(&mut [0; 16]));
    let leaving = thread::spawn(move || end().and_then(|_| end()));
    let took = group.replicas[1].shut_down();
    let ended = leaving.join().expect("no panic");
    assert_eq!(ended.map_err(|fault| fault.kind()), Err(ErrorKind::ConnectionReset), "the flow that outlived the grace");
    group.replicas[1].run();
    let back = group.replicas[1].wait_ready();
    group.answered_by(10001, "db");
    let (made, failed) = load.failed_since(begin, &["db"]);
    println!("a replica left in {took:?} and was ready again {back:?} after its start: {} of {made} connections failed", failed.len());
    assert!(made > 0 && failed.len() <= FEW, "{failed:?}");
}

#[test]
fn crashed_replica_keeps_forwarding_and_readopts_tailscaled() {
    let mut group = Group::start();
    group.answered_by(10001, "db");
    let replica = &group.replicas[0];
    let daemon = replica.machine.pid_of("tailscaled").expect("it runs");
    let mut lasting = group.client.node.connect(replica.at(10001), PATIENCE).expect("a connection");
    kit::netns::Greeting::read(&mut lasting).expect("a greeting");
    kill(Pid::from_raw(replica.worker().expect("it runs")), Signal::SIGKILL).expect("killed");
    let begin = Instant::now();
    let (mut ready, mut answers) = (None, Vec::new());
    // Connections do not depend on readiness here: a kubelet polls it less often than this loop connects.
    while ready.is_none_or(|at: Duration| begin.elapsed() < at + Duration::from_secs(12)) {
        answers.push((begin.elapsed(), group.client.node.ask_tcp(replica.at(10001), PATIENCE).map(|greeting| greeting.name)));
        ready = ready.or_else(|| replica.ready().then(|| begin.elapsed()));
        assert!(begin.elapsed() < DEADLINE, "not ready again: {}", replica.log());
    }
    let failed: Vec<_> = answers.iter().filter(|(_, answer)| !answer.as_ref().is_ok_and(|name| name == "db")).collect();
    println!("crashed: ready after {ready:?}, {} of {} connections failed", failed.len(), answers.len());
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(replica.machine.pid_of("tailscaled"), Some(daemon), "it was started again");
    lasting.write_all(b"x").and_then(|()| lasting.read_exact(&mut [0])).expect("the flow from before");
    assert!(replica.log().contains("crashed (signal SIGKILL)"), "{}", replica.log());

    // An adopted tailscaled is supervised like an own child: its exit makes the replica unready until it is restarted.
    let after = replica.worker();
    kill(Pid::from_raw(daemon), Signal::SIGKILL).expect("killed");
    replica.wait_unready();
    replica.wait_ready();
    assert_eq!(replica.worker(), after, "it went on");
    group.replicas[0].shut_down();
}

/// Time limit for a connection right after a replica becomes ready; without a path to the target it takes 5 s.
const AT_ONCE: Duration = Duration::from_secs(3);

#[test]
fn connections_succeed_right_after_readiness() {
    let mut group = Group::start();
    group.answered_by(10001, "db");
    group.answered_by(10002, "app");
    let [replica, _] = &mut group.replicas;
    for _ in 0..3 {
        replica.shut_down();
        replica.run();
        let ready = replica.wait_ready();
        for (port, name) in [(10001, "db"), (10002, "app")] {
            let begin = Instant::now();
            let answer = group.client.node.ask_tcp(replica.at(port), AT_ONCE);
            println!("a replica ready {ready:?} after its start: {name} asked for {:?}", begin.elapsed());
            assert_eq!(answer.expect("served as soon as it is ready").name, name);
        }
    }

    let app = group.nodes.iter().find(|(machine, ..)| machine.node.name == "app").map(|(machine, ..)| machine).expect("app");
    app.kill("tailscaled", Signal::SIGKILL);
    replica.shut_down();
    replica.run();
    let address = app.node.tailnet[&Family::V4].to_string();
    let named = || replica.get("/readyz").is_ok_and(|answer| answer.contains("peer-connectivity: no answer") && answer.contains(&address));
    eventually("the silent target being named", DEADLINE, || named().then_some(()));
    let waited = replica.wait_ready();
    println!("a replica waited {waited:?} for a target that does not answer");
    assert!(waited < MAX_READINESS_DELAY * 3, "{waited:?}");
    assert_eq!(group.client.node.ask_tcp(replica.at(10001), AT_ONCE).expect("the others are served").name, "db");
}

#[test]
fn replica_with_pod_network_in_the_tailnet_range_forwards() {
    let tailnet = Tailnet::start([100, 65, 0]);
    let db = tailnet.machine("db");
    let _tailscaled = db.tailscaled();
    tailnet.join(&db, &["--netfilter-mode=nodivert"]); // otherwise tailscaled's filter drops its own network's packets
    let _server = db.node.serve(7000);
    let client = tailnet.machine("client");
    let replica = Replica::start(&tailnet, "eg-0", &services("100.64.0.1".parse().expect("an address")));
    let greeting = eventually("an answer", DEADLINE, || client.node.ask_tcp(replica.at(10001), PATIENCE).ok());
    assert_eq!((greeting.name.as_str(), greeting.peer.ip()), ("db", replica.source()));
}

/// A replica in front of one real node, `db`, and a client.
struct Pair {
    replica: Replica,
    client: kit::machine::Machine,
    /// Node, with handles that keep its process and server running.
    _db: (kit::machine::Machine, kit::machine::Process, kit::netns::Server),
    _tailnet: Tailnet,
}

impl Pair {
    fn start(manner: Manner) -> Self {
        let tailnet = Tailnet::start([10, 99, 0]);
        let (db, tailscaled) = tailnet.node("db");
        let server = db.node.serve(7000);
        let client = tailnet.machine("client");
        let replica = Replica::start_with(&tailnet, "eg-0", &services(db.address), manner);
        Self { replica, client, _db: (db, tailscaled, server), _tailnet: tailnet }
    }
}

#[test]
fn replica_answers_probes_of_nodes_in_the_tailnet_range() {
    let Pair { replica, client, .. } = &Pair::start(Manner { node_ip: "100.66.0.1", ..Manner::default() });
    // A client with a node's address: the kubelet, or a Pod in its host network.
    let [at, from]: [IpAddr; 2] = ["100.66.0.5", "100.66.0.9"].map(|ip| ip.parse().expect("an address"));
    for (machine, ip) in [(&replica.machine, at), (client, from)] {
        machine.node.ip(&format!("addr add {ip}/24 dev eth0\n"));
    }
    let greeting = eventually("an answer", DEADLINE, || client.node.ask_tcp(SocketAddr::new(at, 10001), PATIENCE).ok());
    assert_eq!((greeting.name.as_str(), greeting.peer.ip()), ("db", replica.source()));
    let probed = group::get(&client.node, SocketAddr::new(at, 9002), "/readyz").expect("an answer");
    assert!(probed.starts_with("HTTP/1.1 200"), "{probed}");
}

#[test]
fn unprivileged_replica_forwards() {
    let Pair { replica, client, .. } = &Pair::start(Manner { confined: true, ..Manner::default() });
    let status = std::fs::read_to_string(format!("/proc/{}/status", replica.worker().expect("a process"))).expect("a status");
    // From linux/capability.h: 10 NET_BIND_SERVICE, 12 NET_ADMIN, 13 NET_RAW.
    assert!(status.contains("CapEff:\t0000000000003400") && status.contains("NoNewPrivs:\t1"), "{status}");
    let greeting = eventually("an answer", DEADLINE, || client.node.ask_tcp(replica.at(10001), PATIENCE).ok());
    assert_eq!((greeting.name.as_str(), greeting.peer.ip()), ("db", replica.source()));
}

/// Targets behind a subnet router, by IPv4 address and by 4via6 name, of a replica on this network. The router advertises the replica's and
/// its client's network, too.
fn targets_behind_a_subnet_router(net: [u8; 3], mode: &str) {
    let tailnet = Tailnet::start(net);
    let router = tailnet.machine("router");
    let _tailscaled = router.tailscaled();
    let covering = format!("{}.{}.{}.0/24", net[0], net[1], net[2]);
    let subnets = format!("10.50.0.0/24,fd7a:115c:a1e0:b1a:0:7:a32:0/120,{covering}");
    tailnet.join(&router, &[&format!("--netfilter-mode={mode}"), &format!("--advertise-routes={subnets}")]);
    router.node.ip("link set lo up\naddr add 10.50.0.5/32 dev lo\n");
    let _server = router.node.serve(7000);
    let port = |port: u16| serde_json::json!([{"protocol": "TCP", "matchPort": port, "targetPort": 7000}]);
    let config = serde_json::json!({
        "subnet": {"tailnetTarget": {"ip": "10.50.0.5"}, "ports": port(10001)},
        "site": {"tailnetTarget": {"fqdn": "10-50-0-5-via-7"}, "ports": port(10002)},
    });
    let replica = Replica::start_with(&tailnet, "eg-0", &config, Manner { routes: true, ..Manner::default() });
    let client = tailnet.machine("client");
    for (machine, address) in [(&replica.machine, "fd99::1/64"), (&client, "fd99::2/64")] {
        machine.node.ip(&format!("addr add {address} dev eth0 nodad\n"));
    }
    let unrouted = "tailyard_service_rejected{proxied_service=\"subnet\",reason=\"Unrouted\"} 1";
    let rejected = || replica.get("/metrics").is_ok_and(|page| page.contains(unrouted));
    eventually("the rejection while the routes are not approved", DEADLINE, || rejected().then_some(()));
    tailnet.headscale(&["nodes", "approve-routes", "-i", &tailnet.node_id("router").to_string(), "-r", &subnets]);
    eventually("the end of the rejection", DEADLINE, || (!rejected()).then_some(()));
    let accepted = || replica.machine.node.feed(&["ip", "route", "show", "table", "52"], "").contains(&covering);
    eventually("the route over its network", DEADLINE, || accepted().then_some(()));
    let site = SocketAddr::new("fd99::1".parse().expect("an address"), 10002);
    for to in [replica.at(10001), site] {
        let greeting = eventually(&format!("an answer by {to}"), DEADLINE, || client.node.ask_tcp(to, PATIENCE).ok());
        assert_eq!(greeting.name, "router");
    }
    let refused = client.node.ask_tcp(replica.at(10002), PATIENCE).expect_err("a 4via6 target has no IPv4 address in the tailnet");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn targets_behind_a_subnet_router_are_served() {
    targets_behind_a_subnet_router([10, 99, 0], "on");
}

#[test]
fn targets_behind_a_subnet_router_are_served_without_daemon_netfilter() {
    targets_behind_a_subnet_router([100, 65, 0], "nodivert");
}

#[test]
fn rejected_connections_are_in_status_and_doctor_if_the_node_attribute_is_set() {
    let tailnet = Tailnet::start([10, 99, 0]);
    let (mut peer, _peer) = tailnet.node("peer");
    let _servers = [7000, 7001].map(|port| peer.node.serve(port));
    let replica = Replica::start(&tailnet, "eg-0", &services(peer.tailnet_addresses()[0]));
    let status = || {
        let answer = replica.get("/status").ok()?;
        serde_json::from_str::<ReplicaStatus>(answer.split_once("\r\n\r\n")?.1).ok()?.rejects
    };
    let to_peer = |port| replica.machine.node.ask_tcp(SocketAddr::new(peer.node.tailnet[&Family::V4], port), PATIENCE);
    let to_replica = || peer.node.ask_tcp(SocketAddr::new(replica.source(), 7002), PATIENCE);
    let permit = |attributes: &[&str]| {
        let grants = serde_json::json!([{"src": ["*"], "dst": ["*"], "ip": ["tcp:7000"]}]);
        let attributes = serde_json::json!([{"target": ["*"], "attr": attributes}]);
        tailnet.set_policy(&serde_json::json!({"grants": grants, "nodeAttrs": attributes}));
    };

    permit(&["randomize-client-port"]);
    eventually("the policy being in force", DEADLINE, || to_peer(7001).is_err().then_some(()));
    assert_eq!(status(), Some(Rejects::default()), "nothing is recorded");
    permit(&["debug-conn-reject"]);
    eventually("records", DEADLINE, || status().is_some_and(|rejects| rejects.recorded).then_some(()));
    eventually("a permitted port", DEADLINE, || to_peer(7000).ok());
    let rejected = |direction, port| RejectKind { direction, reason: RejectReason::Acl, protocol: 6, port };
    let expected = [rejected(FlowDirection::Outgoing, 7001), rejected(FlowDirection::Incoming, 7002)];
    eventually("a rejected connection of each direction", DEADLINE, || {
        assert!(to_peer(7001).is_err() && to_replica().is_err());
        let kinds: Vec<_> = status()?.flows.iter().map(|row| row.kind).collect();
        expected.iter().all(|kind| kinds.contains(kind)).then_some(())
    });
    assert!(status().expect("rejects").flows.iter().all(|row| row.kind.port != 7000), "{:?}", status());

    let mut doctor = replica.machine.command(Path::new(kit::tailyard()));
    doctor.args(["doctor", "-o", "json", "--node-checks"]).env("TS_SOCKET", replica.machine.socket());
    let found = Diagnosis::read(&doctor.output().expect("nsenter")).of("rejects");
    let [(finding, what)] = &found[..] else { panic!("{found:?}") };
    let flow = format!("outgoing acl {}:", replica.source());
    assert!(finding == "warn" && what.contains(&flow) && what.contains(":7001 (tcp:7001), "), "{what}");
}

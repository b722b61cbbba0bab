//! Real tailscaleds on a real control server: what the LocalAPI tells, and what the supervised daemon does.
//!
//! Needs root and what `tests/servers/build` makes.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "helpers of tests are outside of test functions")]

#[allow(dead_code, reason = "shared with the kernel tier, which uses all of it")]
#[path = "kernel/lab.rs"]
mod lab;
#[path = "support/tailnet.rs"]
mod support;

#[path = "tailnet/agent.rs"]
mod agent;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;

use tailyard::edge::localapi::{LocalApi, MASK};
use tailyard::model::netmap::Fqdn;
use tailyard::model::notify::{BackendState, Fold};

use agent::{Agent, conf};
use lab::eventually;
use support::{DEADLINE, Tailnet};

#[test]
#[ignore = "not a test: the supervision task that the tests start in a machine"]
fn agent_in_a_machine() {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(agent::be());
}

/// Reads the bus of a daemon until `done`, in which the fold's snapshot is looked at after each message.
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
    let map = fold.snapshot().netmap.unwrap_or_else(|| Arc::new(Default::default()));
    map.resolve(&Fqdn::new(name).expect("a name"))
}

#[test]
fn the_localapi_tells_of_peers_that_come_and_go() {
    let before = support::own_links();
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
        assert_eq!(fault.kind(), "NotReloaded");
    });
    drop((one, two, tailnet));
    assert_eq!(support::own_links(), before, "the machine's own network is untouched");
}

#[test]
fn a_supervised_daemon_joins_survives_a_kill_and_takes_a_new_key_in_place() {
    let tailnet = Tailnet::start([10, 99, 0]);
    let (mut peer, _peer) = tailnet.node("peer");
    let machine = tailnet.machine("replica");
    let agent = Agent::start(&machine, &conf("replica", tailnet.key()), None);
    let first = agent.running();
    let own = agent.netmap()["node"]["addresses"].clone();
    let wanted: Vec<String> = peer.tailnet_addresses().iter().map(ToString::to_string).collect();
    eventually("the peer by its name", DEADLINE, || {
        let known = agent.netmap()["peers"]["peer.tail.lab"].clone();
        (known.as_array()?.len() == wanted.len()).then_some(())
    });

    machine.kill("tailscaled", Signal::SIGKILL);
    let (_, noticed) = agent.until("its death", |said| said.phase != "Running");
    assert!(noticed < Duration::from_secs(1), "noticed after {noticed:?}");
    let (again, back) = agent.until("running again", |said| said.phase == "Running" && said.restarts == 1);
    println!("a killed tailscaled: noticed after {noticed:?}, running again after {:?}", noticed + back);
    assert!(back < Duration::from_secs(10), "running again after {back:?}");
    assert_ne!(again.pid, first.pid);
    assert_eq!(agent.netmap()["node"]["addresses"], own);

    let id = tailnet.node_id("replica").to_string();
    eventually("waiting for a key", DEADLINE, || {
        // The restarted daemon registers again within its first seconds, which takes an expiry back.
        tailnet.headscale(&["nodes", "expire", "-i", &id]);
        agent.soon(Duration::from_secs(3), |said| said.phase == "Degraded" && said.login == "waiting for another key")
    });
    agent.configure(&conf("replica", &tailnet.new_key()));
    let (renewed, took) = agent.until("running by the new key", |said| said.phase == "Running" && said.login == "settled");
    println!("a new key: running after {took:?}");
    assert_eq!((renewed.pid, renewed.restarts), (again.pid, 1), "in place");
    assert_eq!(agent.netmap()["node"]["addresses"], own);
    agent.stop();
    assert_eq!(machine.pid_of("tailscaled"), None);
}

#[test]
fn two_steps_join_without_the_tailscale_command() {
    let tailnet = Tailnet::start([10, 99, 0]);
    let machine = tailnet.machine("two-steps");
    let agent = Agent::start(&machine, "", Some(tailnet.key()));
    agent.running();
    eventually("its own name", DEADLINE, || (agent.netmap()["node"]["name"] == "two-steps.tail.lab.").then_some(()));
    agent.stop();
}

#[test]
fn a_pod_network_inside_the_tailnets_range_stays_reachable() {
    let tailnet = Tailnet::start([100, 65, 0]);
    let machine = tailnet.machine("replica");
    let client = tailnet.machine("client");
    let agent = Agent::start(&machine, &conf("replica", tailnet.key()), None);
    agent.running();
    let _server = machine.node.serve(7000);
    let ask = || client.node.ask_tcp(SocketAddr::new(machine.address, 7000), Duration::from_millis(500));
    assert_eq!(ask().expect("an answer").peer.ip(), client.address);
    machine.tailscale(&["set", "--netfilter-mode=on"]);
    eventually("the daemon's own filter, which drops it", DEADLINE, || ask().is_err().then_some(()));
    machine.tailscale(&["set", "--netfilter-mode=nodivert"]);
    eventually("an answer", DEADLINE, || ask().ok());
    agent.stop();
}

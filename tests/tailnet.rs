//! Real tailscaleds on a real control server: what the LocalAPI tells, and what the supervised daemon does.
//!
//! Needs root and what `tests/servers/build` makes.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "helpers of tests are outside of test functions")]

#[allow(dead_code, reason = "shared with the kernel tier, which uses all of it")]
#[path = "kernel/lab.rs"]
mod lab;
#[path = "support/tailnet.rs"]
mod support;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tailyard::edge::localapi::{LocalApi, MASK};
use tailyard::model::netmap::Fqdn;
use tailyard::model::notify::{BackendState, Fold};

use support::{DEADLINE, Tailnet};

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

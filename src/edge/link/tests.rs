//! Tests against the kernel, in their own namespaces.

use std::time::Duration;

use kit::wait::wait_for_value;

use super::build::build;
use super::routing_rules::{open_tunnel, sync};
use super::*;
use crate::edge::netns::Namespace;

fn name(text: &str) -> InterfaceName {
    text.parse().expect("an interface name")
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().expect("an address and its prefix length")
}

fn ips(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

const DEADLINE: Duration = Duration::from_mins(1);

/// Runs the test in a new namespace, with a second one as its peer.
fn between_two(test: impl AsyncFnOnce(&Namespace) + Send) {
    let (here, there) = (Namespace::make().expect("a namespace"), Namespace::make().expect("a namespace"));
    here.block_on(|| async { test(&there).await }).expect("the test's thread");
}

/// Runs the ip program in the calling thread's namespace.
fn run_ip(arguments: &str) {
    let status = std::process::Command::new("ip").args(arguments.split(' ')).status().expect("ip is installed");
    assert!(status.success(), "ip {arguments}");
}

#[test]
fn link_watch_reports_creation_change_and_removal() {
    between_two(async |there| {
        let ts0 = name("ts0");
        let (links, mut states) = Links::watch(ts0.clone()).await.expect("watched");
        assert_eq!(*states.borrow(), LinkState::default());
        let follower = tokio::spawn(links.run());
        for _ in 0..2 {
            let made = build(async |b| {
                b.veth(&ts0, &name("far"), there).await?;
                b.mtu(&ts0, 1280).await?;
                b.address(&ts0, net("100.64.0.1/10")).await?;
                b.up(&ts0).await?;
                b.address(&ts0, net("fd7a:115c:a1e0::1/48")).await
            });
            made.await.expect("made");
            let both = ips(&["100.64.0.1", "fd7a:115c:a1e0::1"]);
            let state = wait_for_value("the addresses of both families", DEADLINE, &mut states, |state| state.addresses == both).await;
            assert_eq!((state.present, state.mtu), (true, 1280));
            assert!(!state.up, "no carrier while the far end is down");
            there.block_on(|| build(async |b| b.up(&name("far")).await)).expect("the thread").expect("up");
            wait_for_value("the link is up", DEADLINE, &mut states, |state| state.up).await;
            run_ip("addr del 100.64.0.1/10 dev ts0");
            build(async |b| b.address(&ts0, net("100.64.0.9/10")).await).await.expect("readdressed");
            let moved = ips(&["100.64.0.9", "fd7a:115c:a1e0::1"]);
            wait_for_value("the addresses have moved", DEADLINE, &mut states, |state| state.addresses == moved).await;
            run_ip("link del ts0");
            wait_for_value("the link is gone", DEADLINE, &mut states, |state| *state == LinkState::default()).await;
        }
        drop(states);
        tokio::time::timeout(Duration::from_mins(1), follower).await.expect("ends with its last receiver").expect("no panic");
    });
}

#[test]
fn link_watch_recovers_from_socket_buffer_overflow() {
    between_two(async |there| {
        let ts0 = name("ts0");
        build(async |b| b.veth(&ts0, &name("far"), there).await).await.expect("made");
        let (links, mut states) = Links::watch(ts0.clone()).await.expect("watched");
        let follower = tokio::spawn(links.run());
        tokio::task::yield_now().await;
        // The watcher shares this thread: it reads nothing while the flood runs on another thread, so its socket overflows.
        let here = Namespace::current().expect("this namespace");
        let flood = || {
            build(async |b| {
                for round in 0..2_000_u32 {
                    b.mtu(&name("ts0"), 1280 + round % 100).await?;
                }
                b.address(&name("ts0"), net("100.64.0.7/10")).await
            })
        };
        here.block_on(flood).expect("the thread").expect("flooded");
        let state = wait_for_value("an address", DEADLINE, &mut states, |state| !state.addresses.is_empty()).await;
        assert_eq!(state.addresses, ips(&["100.64.0.7"]));
        assert_eq!(state.mtu, 1280 + 1_999 % 100);
        follower.abort();
    });
}

#[test]
fn pod_addresses_exclude_link_local_and_tailnet_addresses() {
    between_two(async |there| {
        build(async |b| {
            b.veth(&name("eth0"), &name("far0"), there).await?;
            b.veth(&name("ts0"), &name("far1"), there).await?;
            for (link, address) in [("eth0", "169.254.7.7/16"), ("eth0", "10.1.0.5/24"), ("ts0", "100.64.0.1/10")] {
                b.address(&name(link), net(address)).await?;
            }
            b.up(&name("eth0")).await?;
            b.up(&name("lo")).await?;
            b.address(&name("eth0"), net("fd00::5/64")).await
        })
        .await
        .expect("made");
        assert_eq!(pod_addresses(&name("ts0")).await.expect("read"), ips(&["10.1.0.5", "fd00::5"]));
        let (_, states) = Links::watch(name("ts0")).await.expect("watched");
        assert_eq!(states.borrow().addresses, ips(&["100.64.0.1"]));
    });
}

#[test]
fn failed_link_change_names_operation_and_cause() {
    between_two(async |_| {
        let fault = build(async |b| b.up(&name("ghost")).await).await.expect_err("no such link");
        assert_eq!((fault.reason(), fault.to_string().as_str()), ("Missing", "there is no interface ghost in this network namespace"));
        let fault =
            build(async |b| b.route(net("10.0.0.0/8"), "10.9.9.9".parse().expect("an address")).await).await.expect_err("no way there");
        assert_eq!(fault.reason(), "Change");
        assert!(fault.to_string().starts_with("cannot route 10.0.0.0/8 by 10.9.9.9: "), "{fault}");
    });
}

/// Routing rules that the ip program lists, without those of the kernel.
fn listed(family: &str) -> Vec<String> {
    let output = std::process::Command::new("ip").args([family, "rule"]).output().expect("ip is installed");
    let text = String::from_utf8(output.stdout).expect("text");
    let rules = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut rules: Vec<_> = rules.filter(|rule| !(rule.starts_with("0:") || rule.starts_with("3276"))).collect();
    rules.sort();
    rules
}

/// The rule for lookups that show whether the tunnel is open.
const TUNNEL: &str = "5189: from all fwmark 0x1000000/0x1000000 lookup 151";

#[test]
fn routing_rules_of_our_priority_become_the_wanted_ones() {
    use crate::model::firewall::routing::rules;
    between_two(async |_| {
        run_ip("rule add pref 5270 lookup 52");
        run_ip("rule add pref 5190 from 192.0.2.1 lookup main");
        let nets = ["10.244.0.0/16", "fd00:10::/56"].map(net);
        for _ in 0..2 {
            sync(&rules(&name("ts0"), &nets)).await.expect("written");
            let four = ["5190: from all iif ts0 [detached] lookup main", "5190: from all to 10.244.0.0/16 iif lo lookup main"];
            assert_eq!(listed("-4"), [TUNNEL, four[0], four[1], "5270: from all lookup 52"]);
            let six = ["5190: from all iif ts0 [detached] lookup main", "5190: from all to fd00:10::/56 iif lo lookup main"];
            assert_eq!(listed("-6"), [TUNNEL, six[0], six[1]]);
        }
        run_ip("rule del pref 5190 iif ts0");
        run_ip("rule del pref 5189");
        run_ip("rule add pref 5189 fwmark 0x1000000 lookup 151");
        sync(&rules(&name("ts0"), [])).await.expect("written");
        assert_eq!(listed("-4"), [TUNNEL, "5190: from all iif ts0 [detached] lookup main", "5270: from all lookup 52"]);
        assert_eq!(listed("-6"), [TUNNEL, "5190: from all iif ts0 [detached] lookup main"]);
    });
}

#[test]
fn route_of_an_open_tunnel_ends_with_its_interface() {
    between_two(async |_| {
        let route = |family| {
            let output =
                std::process::Command::new("ip").args([family, "route", "show", "table", "151"]).output().expect("ip is installed");
            String::from_utf8(output.stdout).expect("text").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(open_tunnel(&name("ghost")).await.expect_err("no such link").reason(), "Missing");
        run_ip("tuntap add ts0 mode tun");
        run_ip("link set ts0 up");
        for _ in 0..2 {
            open_tunnel(&name("ts0")).await.expect("written");
            assert_eq!(["-4", "-6"].map(route), ["default dev ts0", "default dev ts0"]);
        }
        run_ip("link del ts0");
        assert_eq!(["-4", "-6"].map(route), ["", ""]);
    });
}

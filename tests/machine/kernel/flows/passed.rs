//! Rules and connections that appear and disappear during a flow cleanup.

use std::thread;
use std::time::Duration;

use tailyard::model::flows::flow::{FlowFilter, TcpState};

use tailyard::model::base::net::{Family, Proto};
use tailyard::model::firewall::ruleset::Ruleset;
use tailyard::proxy::forwarding::flow_cleanup::{Applied, FlowCleaner, TerminatedFlows};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::stage::{Stage, is_reset, key};
use crate::kernel::firewall::Backend::Nftables;
use kit::wait::eventually;

const SOON: Duration = Duration::from_secs(10);

/// Runs a flow cleanup with the first rules alone, and then one with all others at once.
async fn clean_up(first: Ruleset, others: [Ruleset; 2]) -> TerminatedFlows {
    let (applied, in_force) = mpsc::unbounded_channel();
    let (cleaner, mut ended) = FlowCleaner::new(in_force);
    tokio::spawn(cleaner.run());
    let apply = |rules| applied.send(Applied { rules, netmap: None }).expect("a receiver");
    apply(first);
    timeout(SOON, ended.wait_for(|ended| !ended.forwarding)).await.expect("a cleanup").expect("it goes on");
    others.into_iter().for_each(apply);
    timeout(SOON, ended.wait_for(|ended| ended.reset > 0)).await.expect("reset").expect("it goes on").clone()
}

#[test]
fn flow_of_a_key_removed_between_two_cleanups_is_reset() {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::new(Nftables);
    let target = stage.target(0, Family::V4, 80);
    let nothing = stage.write(|_| ());
    let there = stage.write(|rules| drop(rules.ports.insert(tcp, [target].into())));
    let listener = stage.listen(0, Family::V4, 80);
    let (mut client, mut server) = stage.pair(stage.pod(Family::V4, 10042), &listener);
    let gone = stage.write(|rules| drop(rules.ports.remove(&tcp)));
    let ended = stage.proxy().ns.block_on(|| clean_up(nothing, [there, gone])).expect("ran");
    assert_eq!((ended.reset, ended.forwarding), (1, false));
    assert!(is_reset(&mut client) && is_reset(&mut server));
}

#[test]
fn half_open_flow_is_reset_once_established() {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
    let listener = stage.listen(0, Family::V4, 80);
    let drop_rule = "table ip held {
        chain output {
            type filter hook output priority 0
            tcp flags & (syn | ack) == syn | ack drop
        }
    }";
    stage.lab.targets[0].feed(&["nft", "-f", "-"], drop_rule);
    let (node, pod) = (stage.client().clone(), stage.pod(Family::V4, 10042));
    let client = thread::spawn(move || node.connect(pod, SOON).expect("connected"));
    let is_half_open =
        || stage.flows(FlowFilter::under_way()).first().is_some_and(|flow| flow.tcp == Some(TcpState::SynSent)).then_some(());
    eventually("a first packet has passed", SOON, is_half_open);
    let mut pair = None;
    let (deleted, report) = stage.change_while(
        &|_| true,
        |rules| drop(rules.ports.remove(&tcp)),
        |stage| {
            stage.lab.targets[0].feed(&["nft", "delete", "table", "ip", "held"], "");
            pair = Some((client.join().expect("connected"), listener.accept().expect("accepted").0));
        },
    );
    assert_eq!((deleted, report.reset), (1, 1));
    let (mut client, mut server) = pair.expect("both ends");
    assert!(is_reset(&mut client) && is_reset(&mut server));
}

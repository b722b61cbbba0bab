//! Rules that come and go while flows are judged by others.

use std::time::Duration;

use tailyard::model::net::{Family, Proto};
use tailyard::model::ruleset::Ruleset;
use tailyard::proxy::surgeon::{Applied, Ended, Surgeon};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::stage::{Stage, is_reset, key};
use crate::firewall::Backend::Nftables;

const SOON: Duration = Duration::from_secs(10);

/// Has flows judged by the first rules alone, and then by all others at once.
async fn judged(first: Ruleset, others: [Ruleset; 2]) -> Ended {
    let (applied, in_force) = mpsc::unbounded_channel();
    let (surgeon, mut ended) = Surgeon::new(in_force);
    tokio::spawn(surgeon.run());
    let tell = |rules| applied.send(Applied { rules, netmap: None }).expect("somebody listens");
    tell(first);
    timeout(SOON, ended.wait_for(|ended| !ended.forwarding)).await.expect("judged").expect("it goes on");
    others.into_iter().for_each(tell);
    timeout(SOON, ended.wait_for(|ended| ended.reset > 0)).await.expect("reset").expect("it goes on").clone()
}

#[test]
fn a_connection_of_a_key_that_came_and_went_between_two_judgements_is_reset() {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::new(Nftables);
    let target = stage.target(0, Family::V4, 80);
    let nothing = stage.write(|_| ());
    let there = stage.write(|rules| drop(rules.ports.insert(tcp, [target].into())));
    let listener = stage.listen(0, Family::V4, 80);
    let (mut client, mut server) = stage.pair(stage.pod(Family::V4, 10042), &listener);
    let gone = stage.write(|rules| drop(rules.ports.remove(&tcp)));
    let ended = stage.proxy().ns.block_on(|| judged(nothing, [there, gone])).expect("ran");
    assert_eq!((ended.reset, ended.forwarding), (1, false));
    assert!(is_reset(&mut client) && is_reset(&mut server));
}

//! Flows in the real kernel: which of them a change ends, how their ends learn of it, and what it costs.
//!
//! Needs: namespaces (root, or `unshare -Urnm`), `nft` and `ip`.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "flows/lab.rs"]
mod lab;

use std::time::{Duration, Instant};

use lab::{Lab, is_reset, key, pod, rules, target};
use tailyard::model::flow::FlowFilter;
use tailyard::model::net::{Family, Proto};

#[test]
fn both_ends_of_an_idle_flow_of_a_removed_key_are_reset() {
    for family in Family::ALL {
        let (tcp, to) = (key(Proto::Tcp, 10042), target(family, 2, 80));
        let mut lab = Lab::new(rules(&[(tcp, &[to])]));
        let listener = lab.listen(to);
        let (mut client, mut server) = lab.pair(pod(family, 10042), &listener);
        assert_eq!(lab.flows(FlowFilter::forwarded()).len(), 1);
        let start = Instant::now();
        let (deleted, report) = lab.change(|rules| rules.ports.clear());
        println!("{family} {deleted} {report:?} {:?}", start.elapsed());
        assert!(is_reset(&mut server), "the target's end");
        assert!(is_reset(&mut client), "the client's end");
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!((deleted, report.reset), (1, 1));
    }
}

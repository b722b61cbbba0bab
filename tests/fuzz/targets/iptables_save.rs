//! Arbitrary text as output of iptables-save: no panic, only our own chains are named, and only configured ports have counters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::firewall::iptables::{LeftoverRules, PREFIX, chains_in, ours, remove, traffic};
use tailyard::model::firewall::ruleset::Ruleset;

fuzz_target!(|data: &[u8]| {
    let Ok(dump) = std::str::from_utf8(data) else { return };
    let mut ruleset = Ruleset::empty(InterfaceName::tailscale0());
    let key = PortKey { proto: Proto::Tcp, port: Port::new(10_001).expect("not zero") };
    ruleset.ports.insert(key, ["100.64.0.2:80", "100.64.0.3:80"].map(|to| to.parse().expect("an address")).into_iter().collect());
    for family in Family::ALL {
        assert!(traffic(&ruleset, family, dump).keys().all(|counted| *counted == key));
    }
    let found = LeftoverRules { chains: chains_in(dump).collect(), ..LeftoverRules::default() };
    assert!(found.chains.iter().all(|(_, name)| name.starts_with(PREFIX)));
    let _ = (ours(dump), remove(&found));
});

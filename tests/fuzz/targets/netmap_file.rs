//! Arbitrary bytes as a static netmap: no panic, and every name in it resolves to its own addresses.
#![no_main]

use std::collections::BTreeSet;
use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use tailyard::model::base::netmap::{NetMap, via6};

fuzz_target!(|data: &[u8]| {
    let Ok(file) = serde_json::from_slice(data) else { return };
    let (netmap, _) = NetMap::from_file(&file);
    for name in netmap.peers.keys().chain(netmap.records.keys()) {
        // A peer takes precedence over a service of the same name.
        let addresses: BTreeSet<IpAddr> = netmap.peers.get(name).or_else(|| netmap.records.get(name)).cloned().unwrap_or_default();
        let spelled = via6(name).map(IpAddr::from);
        let found = netmap.resolve(name);
        assert!(found.iter().all(|ip| addresses.contains(ip) || Some(*ip) == spelled));
        // In a static netmap, the node's routes include every address of a name.
        assert!(addresses.is_subset(&found));
    }
});

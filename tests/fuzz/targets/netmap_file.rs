//! Any bytes as a static netmap: no panic, and every name in it can be resolved.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::netmap::NetMap;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = serde_json::from_slice(data) else { return };
    let (netmap, _) = NetMap::from_file(&file);
    for name in netmap.peers.keys().chain(netmap.records.keys()) {
        let _ = netmap.resolve(name);
    }
});

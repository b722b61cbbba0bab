//! Any lines as the messages of tailscaled's bus, folded one after the other: no panic, and every name can be resolved.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::api::localapi::{DnsConfig, Notify, Status};
use tailyard::model::notify::Fold;

fuzz_target!(|data: &[u8]| {
    let mut fold = Fold::default();
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(message) = serde_json::from_slice::<Notify>(line) {
            let _ = fold.fold(message);
        }
        if let Ok(status) = serde_json::from_slice::<Status>(line) {
            let _ = fold.status(&status);
        }
        if let Ok(dns) = serde_json::from_slice::<DnsConfig>(line) {
            let _ = fold.dns(&dns);
        }
    }
    if let Some(netmap) = fold.snapshot().netmap {
        for name in netmap.peers.keys().chain(netmap.records.keys()) {
            let _ = netmap.resolve(name);
        }
    }
});

//! Arbitrary lines as messages of tailscaled's bus, folded in sequence, and as responses to `whois` and `debug-rejects`: no panic, folding
//! a message again changes nothing, every name resolves to its own addresses, identities are valid header values, and summaries of rejected
//! flows are short and read as they were written.
#![no_main]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tailyard::api::localapi::{DaemonStatus, DebugRejects, DnsConfig, Notify};
use tailyard::api::replica::Rejects;
use tailyard::api::whois::WhoIs;
use tailyard::model::base::netmap::via6;
use tailyard::model::front_end::vhosts::identity::{ClientIdentity, encoded};
use tailyard::model::tailnet::ipn_bus::Fold;
use tailyard::model::tailnet::rejects;

fuzz_target!(|data: &[u8]| {
    let mut fold = Fold::default();
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(message) = serde_json::from_slice::<Notify>(line) {
            let _ = fold.fold(message.clone());
            let once = fold.snapshot();
            let _ = fold.fold(message);
            assert_eq!(fold.snapshot(), once);
        }
        if let Ok(status) = serde_json::from_slice::<DaemonStatus>(line) {
            fold.status(&status);
            let once = fold.snapshot();
            fold.status(&status);
            assert_eq!(fold.snapshot(), once);
        }
        if let Ok(identity) = serde_json::from_slice::<WhoIs>(line).map(ClientIdentity::from) {
            let granted: Vec<_> = identity.caps.keys().cloned().collect();
            let caps = identity.caps(&granted);
            let user = identity.user.into_iter().flat_map(|user| [user.login, user.name, user.picture]);
            assert!(user.chain(caps).all(|text| encoded(&text).bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))));
        }
        if let Ok(rejects) = serde_json::from_slice::<DebugRejects>(line) {
            let flows = rejects::recent(&rejects, Duration::from_hours(500_000));
            let summary = rejects::summary(flows.as_deref());
            assert!(summary.flows.len() <= rejects::MAX_SHOWN);
            let text = serde_json::to_vec(&summary).expect("JSON");
            assert_eq!(serde_json::from_slice::<Rejects>(&text).expect("read"), summary);
            let kinds: Vec<_> = summary.flows.iter().map(|row| row.kind).collect();
            assert!(rejects::remedies(&kinds).len() <= kinds.len());
            assert!(flows.into_iter().flatten().all(|flow| flow.to_string().len() < 300));
        }
        if let Ok(dns) = serde_json::from_slice::<DnsConfig>(line) {
            fold.dns(&dns);
            let once = fold.snapshot();
            fold.dns(&dns);
            assert_eq!(fold.snapshot(), once);
        }
    }
    if let Some(netmap) = fold.snapshot().netmap {
        for name in netmap.peers.keys().chain(netmap.records.keys()) {
            let addresses = netmap.peers.get(name).into_iter().chain(netmap.records.get(name)).flatten();
            let addresses: BTreeSet<_> = addresses.copied().collect();
            let spelled = via6(name).map(IpAddr::from);
            assert!(netmap.resolve(name).iter().all(|ip| addresses.contains(ip) || Some(*ip) == spelled));
        }
    }
});

//! Arbitrary bytes as an egress and as an ingress config and as target policy, after any other: no panic, every plan is renderable, and no
//! target is in a range that the policy denies.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tailyard::api::siblings::Siblings;
use tailyard::api::targets::TargetRules;
use tailyard::model::base::net::{Family, InterfaceName};
use tailyard::model::config::{EgressConfig, IngressConfig};
use tailyard::model::firewall::iptables;
use tailyard::model::firewall::nft;
use tailyard::model::plan::Planned;
use tailyard::model::plan::world::World;

fuzz_target!(|data: &[u8]| {
    let (first, second) = data.split_at(data.len() / 2);
    let mut world = World::empty(InterfaceName::tailscale0(), [].into());
    let before = EgressConfig::parse(first).unwrap_or_default();
    for bytes in [second, data] {
        if let Ok(egress) = before.next(&bytes.to_vec().into()) {
            world.egress = Arc::new(egress);
        }
        if let Ok(ingress) = IngressConfig::parse(bytes) {
            world.ingress = Arc::new(ingress);
        }
        if let Ok(rules) = serde_json::from_slice::<TargetRules>(bytes) {
            world.targets.rules = Arc::new(rules);
        }
        if let Ok(siblings) = serde_json::from_slice::<Siblings>(bytes) {
            world.pod_ips = siblings.iter().copied().take(2).collect();
            world.siblings = Arc::new(siblings);
        }
        let planned = Planned::new(&world);
        let rules = &world.targets.rules;
        for target in planned.ruleset.ports.values().flat_map(|targets| targets.iter()).filter(|_| rules.allowed.is_empty()) {
            assert!(!rules.denied.iter().any(|net| net.contains(&target.ip())), "{target}");
        }
        let _ = nft::table(&planned.ruleset);
        for family in Family::ALL {
            let _ = iptables::restore(&planned.ruleset, family);
        }
    }
});

//! Arbitrary addresses as successive DNS answers: no panic, and no forbidden target in the ruleset.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tailyard::model::base::net::InterfaceName;
use tailyard::model::config::IngressConfig;
use tailyard::model::plan::Planned;
use tailyard::model::plan::world::{Single, World};

const CONFIG: &[u8] = br#"{"svc:db":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":""},
    "IPv6Mapping":{"TailscaleServiceIP":"fd7a::99","ClusterIP":""},"externalName":"db.test"}}"#;

/// Decodes addresses: an odd byte begins an IPv6 address, an even one an IPv4 address.
fn addresses(mut data: &[u8]) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    while let Some((kind, rest)) = data.split_first() {
        let (ip, rest): (IpAddr, _) = match (kind % 2, rest.split_first_chunk::<4>(), rest.split_first_chunk::<16>()) {
            (0, Some((bytes, rest)), _) => (Ipv4Addr::from(*bytes).into(), rest),
            (1, _, Some((bytes, rest))) => (Ipv6Addr::from(*bytes).into(), rest),
            _ => break,
        };
        found.insert(ip);
        data = rest;
    }
    found
}

fn forbidden(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_unspecified() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast() || ip.is_unspecified(),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut world = World::empty(InterfaceName::tailscale0(), [].into());
    world.ingress = Arc::new(IngressConfig::parse(CONFIG).expect("a config"));
    world.single = Single::DestDns("db.test".to_owned());
    world.pod_ips = [IpAddr::from([10, 0, 0, 5])].into();
    let mut planned = Planned::new(&world);
    let (first, second) = data.split_at(data.len() / 2);
    for answer in [first, second, data] {
        world.names = Arc::new(BTreeMap::from([("db.test".to_owned(), addresses(answer))]));
        planned = planned.next(&world);
        assert_eq!(planned.ruleset, Planned::new(&world).ruleset);
        let targets = planned.ruleset.from_tailnet.values().flat_map(|targets| targets.iter());
        for target in targets {
            assert!(!forbidden(*target) && !world.is_own(*target), "{target}");
        }
    }
});

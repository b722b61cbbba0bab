//! Listener addresses of virtual hosts: one loopback address per Tailscale Service.
//!
//! Access to one Service of a tailnet does not imply access to another, so each has its own listeners: no client header can select another
//! Service. The address derives from the Service's name, so that it is stable across restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// 127.84.0.0/16.
const NETWORK: [u8; 2] = [127, 84];
/// Offset that is added to lower ports, which may require a privilege to listen on.
const HIGH: u16 = 20_000;

/// Retains the addresses of existing names and assigns a free one to each new name. Names beyond the 65,534 available addresses get none.
pub fn assign(addresses: &mut BTreeMap<String, Ipv4Addr>, names: &BTreeSet<&str>) {
    addresses.retain(|name, _| names.contains(name.as_str()));
    let mut taken: BTreeSet<Ipv4Addr> = addresses.values().copied().collect();
    for name in names {
        if addresses.contains_key(*name) {
            continue;
        }
        let first = hash(name);
        let free =
            (0..u16::MAX).map(|step| address(first.wrapping_add(step))).find(|address| is_host(*address) && !taken.contains(address));
        if let Some(free) = free {
            taken.insert(free);
            addresses.insert((*name).to_owned(), free);
        }
    }
}

pub fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    let port = if port < HIGH { port + HIGH } else { port };
    SocketAddrV4::new(address, port).into()
}

fn address(host: u16) -> Ipv4Addr {
    let [high, low] = host.to_be_bytes();
    Ipv4Addr::new(NETWORK[0], NETWORK[1], high, low)
}

fn is_host(address: Ipv4Addr) -> bool {
    !matches!(address.octets(), [.., 0, 0] | [.., 255, 255])
}

/// FNV-1a, folded.
fn hash(name: &str) -> u16 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    u16::from_be_bytes([a ^ c, b ^ d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_stable_and_unique() {
        let names: Vec<String> = (0..5000).map(|number| format!("svc:app-{number}")).collect();
        let mut addresses = BTreeMap::new();
        assign(&mut addresses, &names.iter().map(String::as_str).collect());
        let unique: BTreeSet<_> = addresses.values().collect();
        assert_eq!((addresses.len(), unique.len()), (5000, 5000));
        assert!(addresses.values().all(|address| address.is_loopback() && is_host(*address)));
        let before = addresses.clone();
        let some: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| name.len() > 10).chain(["svc:new"]).collect();
        assign(&mut addresses, &some);
        assert_eq!(addresses.len(), some.len());
        assert!(addresses.iter().all(|(name, address)| name == "svc:new" || before[name] == *address));
    }

    #[test]
    fn loopback_address_is_derived_from_the_name() {
        let mut addresses = BTreeMap::new();
        assign(&mut addresses, &["svc:web"].into());
        assert_eq!(at(addresses["svc:web"], 443).to_string(), format!("{}:20443", address(hash("svc:web"))));
        assert_eq!(at(Ipv4Addr::LOCALHOST, 30000).port(), 30000);
    }
}

//! Connection and request limits: per process, per Tailscale Service, per client.
//!
//! A connection takes a file descriptor and memory. A part of both is reserved for the rest of the process: without descriptors
//! tailscaled's notifications are lost and every virtual host is withdrawn; without memory the container is killed.

use std::net::IpAddr;

/// Maximum number of client connections, if there are enough file descriptors.
pub const MOST_CONNECTIONS: usize = 16_384;
/// File descriptors reserved for LocalAPI, watches, netlink, probes and listeners; at most a quarter of all.
const RESERVE: usize = 1024;
/// Typical memory of a connection in bytes, with its request and backend connection. Half of the memory is available to connections.
const CONNECTION: usize = 128 << 10;

/// Maximum concurrent resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub connections: usize,
    /// Client connections of the listeners of one Tailscale Service.
    pub site: usize,
    /// Connections per client ([`source`]).
    pub source: usize,
    /// Requests in progress.
    pub requests: usize,
    /// Requests in progress per client.
    pub source_requests: usize,
    /// Connections to backends.
    pub upstream: usize,
}

impl Shares {
    /// Limits for this number of file descriptors and bytes of memory, with at most `most` client connections.
    pub fn of(descriptors: usize, memory: usize, most: usize) -> Self {
        let free = descriptors - RESERVE.min(descriptors / 4);
        let connections = most.min(free / 2).min(memory / 2 / CONNECTION).max(1);
        let requests = connections.saturating_mul(2);
        Self {
            connections,
            site: connections - connections / 4,
            source: (connections / 4).max(1),
            requests,
            source_requests: (requests / 4).max(1),
            upstream: (free - connections).min(connections.saturating_mul(2)),
        }
    }
}

impl Default for Shares {
    fn default() -> Self {
        Self::of(usize::MAX, usize::MAX, MOST_CONNECTIONS)
    }
}

/// Client key for limits: the address; for IPv6 its /64 network, except for tailnet addresses.
pub fn source(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V6(address) if address.segments()[..3] != [0xfd7a, 0x115c, 0xa1e0] => {
            IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn descriptors_and_memory_limit_connections() {
        let few = Shares::of(1024, usize::MAX, MOST_CONNECTIONS);
        assert_eq!((few.connections, few.upstream, few.site, few.source), (384, 384, 288, 96));
        let many = Shares::of(1 << 20, usize::MAX, MOST_CONNECTIONS);
        assert_eq!((many.connections, many.site, many.source, many.upstream), (16_384, 12_288, 4096, 32_768));
        assert_eq!(Shares::default(), many);
        assert_eq!(Shares::of(1 << 20, 256 << 20, MOST_CONNECTIONS).connections, 1024);
    }

    #[test]
    fn client_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| source(text.parse().expect("an address")).to_string();
        assert_eq!(of("100.64.0.9"), "100.64.0.9");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("fd7a:115c:a1e0::9"), "fd7a:115c:a1e0::9");
    }

    proptest! {
        #[test]
        fn connection_limits_never_use_the_descriptor_reserve(descriptors in 4usize..2_000_000, memory: usize, most in 1usize..100_000) {
            let shares = Shares::of(descriptors, memory, most);
            prop_assert!(shares.connections + shares.upstream <= descriptors - RESERVE.min(descriptors / 4));
            prop_assert!(shares.site <= shares.connections && shares.source <= shares.site.max(1));
            prop_assert!(shares.source <= shares.source_requests && shares.source_requests <= shares.requests.div_ceil(2));
        }
    }
}

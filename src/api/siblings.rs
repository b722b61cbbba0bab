//! Addresses of an egress group's replicas, in the config Secret of each: a replica whose tunnel is closed passes new flows to another one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Key of the config Secret: a JSON array of addresses.
pub const KEY: &str = "siblings.json";

/// Maximum number of addresses, for 256 replicas with two families.
const MAX_ADDRESSES: usize = 512;

/// Pod addresses of all replicas, canonical and unicast.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<IpAddr>")]
pub struct Siblings(BTreeSet<IpAddr>);

impl Siblings {
    /// The lowest [`MAX_ADDRESSES`] usable ones of these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let all: BTreeSet<IpAddr> = addresses.into_iter().map(|ip| ip.to_canonical()).filter(is_usable).collect();
        Self(all.into_iter().take(MAX_ADDRESSES).collect())
    }
}

impl std::ops::Deref for Siblings {
    type Target = BTreeSet<IpAddr>;

    fn deref(&self) -> &BTreeSet<IpAddr> {
        &self.0
    }
}

/// The array has too many addresses, or one that no Pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a list of at most {MAX_ADDRESSES} unicast addresses")]
pub struct SiblingsError;

impl TryFrom<Vec<IpAddr>> for Siblings {
    type Error = SiblingsError;

    fn try_from(addresses: Vec<IpAddr>) -> Result<Self, SiblingsError> {
        let are_usable = addresses.iter().all(|ip| is_usable(&ip.to_canonical()));
        if are_usable && addresses.len() <= MAX_ADDRESSES { Ok(Self::new(addresses)) } else { Err(SiblingsError) }
    }
}

fn is_usable(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_pod_has_and_long_lists_are_rejected() {
        let read = |text: &str| serde_json::from_str::<Siblings>(text).map(|found| found.len());
        assert_eq!(read(r#"["::ffff:10.0.0.2","10.0.0.2","fd00::2"]"#).expect("two addresses"), 2);
        for text in ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::", "fe80::1", "ff02::1"]
        {
            assert!(read(&format!(r#"["10.0.0.2","{text}"]"#)).is_err(), "{text}");
        }
        let many =
            |count: u32| serde_json::to_string(&(0..count).map(|i| IpAddr::from(i.to_be_bytes().map(|b| b | 1))).collect::<Vec<_>>());
        let many = |count: u32| many(count).expect("serializable");
        assert!(read(&many(512)).is_ok() && read(&many(513)).is_err());
    }
}

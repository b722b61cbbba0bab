//! The kernel tier: what our rules do to real packets, in namespaces that the tests make and that vanish with them.
//!
//! Needs root, or `unshare -Urnm`; nft, iptables (both makes) and iproute2. Whatever is missing fails the tests.

pub(crate) mod entries;
mod firewall;
mod flows;
mod packets;
mod repair;

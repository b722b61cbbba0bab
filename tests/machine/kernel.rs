//! Kernel tests: effects of our rules on real packets, in network namespaces that the tests create and that are deleted with them.
//!
//! Needs root, or `unshare -Urnm`; nft, iptables (both variants) and iproute2. A missing program fails the tests.

pub(crate) mod entries;
mod firewall;
mod flows;
mod listeners;
mod packets;
mod repair;
mod siblings;

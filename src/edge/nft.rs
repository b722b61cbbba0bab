//! The nftables of this network namespace.

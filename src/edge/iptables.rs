//! The iptables of this network namespace.

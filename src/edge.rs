//! IO: one outside world for each file. No decisions; typed errors whose `kind()` is what metrics and Events say.

pub mod acme;
pub mod conntrack;
pub mod control;
pub mod daemon;
pub mod dns;
pub mod files;
pub mod health_probe;
pub mod iptables;
pub mod kube;
pub mod link;
pub mod localapi;
pub mod netns;
pub mod nft;
pub mod node;
pub mod raw_tcp;
pub mod sysctl;
pub mod tls;

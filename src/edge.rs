//! I/O: one module per external system. No decisions; typed errors, whose `reason()` is the label in metrics and the reason of Events.

pub mod acme;
pub mod conntrack;
pub mod control;
pub mod daemon;
pub mod dns;
pub mod dns_server;
pub mod fence;
pub mod files;
pub mod health_probe;
pub mod iptables;
pub mod kernel_tcp;
pub mod kube;
pub mod link;
pub mod localapi;
pub mod netns;
pub mod nft;
pub mod node;
pub mod raw_tcp;
pub mod sysctl;
pub mod tls;

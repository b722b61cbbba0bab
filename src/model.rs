//! PURE: decisions as values. No tokio, no clock, no environment, no files, no sockets, no logging.

pub mod api_server;
pub mod base;
pub mod config;
pub mod controller;
pub mod diagnostics;
pub mod failover;
pub mod firewall;
pub mod flows;
pub mod front_end;
pub mod ingress;
pub mod k8s_proxy;
pub mod kubeconfig;
pub mod nameserver;
pub mod plan;
pub mod settings;
pub mod tailnet;

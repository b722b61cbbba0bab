//! HTTP ingress: virtual hosts and routes, endpoints and load balancing, the PROXY protocol, certificates and their orders.

pub mod cert_orders;
pub mod cert_store;
pub mod certificate;
pub mod endpoints;
pub mod load_balancer;
pub mod proxy_protocol;
pub mod vhosts;

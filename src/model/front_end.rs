//! Decisions of the HTTP front end: virtual hosts and routes, endpoints and load balancing, the PROXY protocol.

pub mod endpoints;
pub mod kernel_tcp;
pub mod load_balancer;
pub mod proxy_protocol;
pub mod vhosts;

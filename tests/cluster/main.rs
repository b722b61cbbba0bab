//! Tests on real tailnets and on real clusters. Need root, cgroup v1 and the programs of `tests/servers/build`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions, fail by panicking and show logs"
)]

mod advertise;
mod api_server;
mod cluster;
mod connector;
mod crossing;
mod dropin;
mod ingress;
mod services;
mod stage;
mod tailnet;
mod upgrade;

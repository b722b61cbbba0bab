//! Tests without root and servers: the code's structure, documents, output formats, and everything that runs on loopback sockets.

#![allow(
    clippy::expect_used,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions, take literals, fail by panicking and show logs"
)]

mod cli;
mod cost;
mod dns;
mod docs;
mod firewall;
mod front_end;
mod kinds;
mod kubeconfig;
mod language;
mod layers;
mod metrics;
mod objects;
mod report;
mod source;
mod supervise;

//! Tests on the real kernel, in network namespaces that they create: rules, replicas, the load generator, the demo. Need root.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions, fail by panicking and show logs"
)]

mod demo;
mod kernel;
mod load;
mod netns;
mod proxy;

//! Tests on a real kube-apiserver and etcd, and on control servers. Needs root and what `tests/servers/build` makes.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions, fail by panicking and show logs"
)]

mod certs;
mod control;
mod kube;
mod reconciler;
mod soak;

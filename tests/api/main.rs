//! Tests with a real kube-apiserver and etcd, and with control servers. Need root and the programs of `tests/servers/build`.

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

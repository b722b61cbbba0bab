//! Tests of what is installed: custom resource definitions, the chart, the images. Need root, Go and the programs of `tests/servers/build`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are outside of test functions, fail by panicking and show logs"
)]

mod chart;
mod crd;
mod image;
mod served;

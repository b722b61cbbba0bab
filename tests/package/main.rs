//! Tests of what is installed: custom resource definitions, the chart, the images. Needs root, Go and what `tests/servers/build` makes.

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

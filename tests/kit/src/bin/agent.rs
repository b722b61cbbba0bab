//! The supervision task alone, in a machine (see [`kit::agent`]).
#![allow(clippy::expect_used, reason = "a program of tests")]

fn main() {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(kit::agent::run());
}

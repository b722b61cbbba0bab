//! The scripted tailscaled (see [`kit::scripted_tailscaled`]).
#![allow(clippy::expect_used, reason = "a program of tests")]

fn main() {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(kit::scripted_tailscaled::run());
}

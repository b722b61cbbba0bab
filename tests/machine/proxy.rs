//! Proxy tests: the compiled `tailyard proxy` in a lab of namespaces, with a static netmap in place of tailscaled.
//!
//! Each fault of docs/failures.md that needs no API server and no tailscaled has its test here. The requirements are those of the kernel
//! tests.

mod endpoints;
mod faults;
mod leaving;
mod modes;
mod replica;
mod swaps;
mod targets;

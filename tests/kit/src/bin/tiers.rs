//! Runs the tests, tier by tier: see `kit::tiers`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kit::tiers::main(&kit::tiers::table::TAILYARD)
}

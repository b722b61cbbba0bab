//! The test runner: builds the test programs once and runs their tiers side by side within a budget of processor slots.
//!
//! A tier is a top-level module of a test program, or a whole program. Each tier is one libtest process in its own process group, so
//! that an abort or a timeout of one tier does not affect the others. The choice of the tiers to start is a pure function
//! (`schedule`), and so is the verdict on a finished process (`verdict`).
//!
//! libtest reports exact times and captured output of each test only as JSON, which is unstable. Hence test programs run with
//! `RUSTC_BOOTSTRAP=1`. Tests and their children inherit it: a test that calls cargo or rustc has to remove that variable, as
//! the runner does for its own calls of cargo.
//!
//! Invariant: every test of a program belongs to exactly one tier, and a run succeeds only if every chosen tier ran at least one test.

mod args;
mod cargo;
mod events;
mod process;
mod report;
mod run;
mod schedule;
mod servers;
pub mod table;
mod verdict;

use std::process::ExitCode;

/// Runs the tiers of `table` that the command line selects. The exit status is 0 only if all their tests passed.
#[must_use]
pub fn main(table: &'static table::Table) -> ExitCode {
    match run::run(table, args::Options::from_command_line()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            report::say(&format!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}

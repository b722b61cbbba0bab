//! Dispatch and settings of the command line. Exit codes: 0 done, 1 failed, 2 usage, 64 settings at fault.

pub mod proxy;

use std::process::ExitCode;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}

//! The binary: calls [`tailyard::cli`] and converts its result to an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tailyard::cli::main()
}

//! The one binary: hands over to [`tailyard::cli`] and turns its answer into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tailyard::cli::main()
}

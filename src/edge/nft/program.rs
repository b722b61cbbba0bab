//! Runs of the nft program: text in, exit status out. Its listings are not parsed.

use std::path::Path;

use super::{NftError, TIMEOUT};
use crate::runtime::command::{self, CommandError, error_output};

/// Runs nft with this standard input; its error output is kept for messages and not parsed.
pub(super) async fn run(program: &Path, arguments: &[&str], what: &'static str, input: String) -> Result<(), NftError> {
    let output = command::run(program, arguments, &input, TIMEOUT).await.map_err(|error| match error {
        CommandError::Run(source) => NftError::Missing { program: program.to_owned(), source },
        CommandError::Timeout(_) => NftError::Timeout { program: program.to_owned() },
    })?;
    if output.status.success() { Ok(()) } else { Err(NftError::Refused { what, status: output.status, stderr: error_output(&output) }) }
}

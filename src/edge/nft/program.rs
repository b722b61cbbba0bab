//! One run of the nft program: text in, an exit status out. Its listings are never read.

use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::{NftError, PATIENCE};

/// Runs nft with this standard input; what it says on failure is kept for people, not read.
pub(super) async fn run(program: &Path, arguments: &[&str], what: &'static str, input: String) -> Result<(), NftError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let missing = |source| NftError::Missing { program: program.to_owned(), source };
    let mut child = command.spawn().map_err(missing)?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // An nft that ends early says why by its status.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ended = async { tokio::join!(feed, child.wait_with_output()).1 };
    let timeout = |_| NftError::Timeout { program: program.to_owned() };
    let output = tokio::time::timeout(PATIENCE, ended).await.map_err(timeout)?.map_err(missing)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim_end().chars().take(2000).collect();
    Err(NftError::Refused { what, status: output.status, stderr })
}

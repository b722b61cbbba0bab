//! Runs a program: text on standard input, with a timeout; returns its output and exit status.
//!
//! Knows no specific program. The caller parses the output; on failure it goes into messages; nothing here parses it.

use std::ffi::OsStr;
use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

/// Maximum length of a failed program's message, in characters.
const WORDS: usize = 2000;

/// The program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started or awaited.
    #[error("cannot run it: {0}")]
    Run(#[source] io::Error),
    /// It did not end in time and was killed.
    #[error("it did not end within {0:?} and was killed")]
    Timeout(Duration),
}

/// Runs a program with this standard input, at most for `limit`; it is killed after a timeout, or when the future is dropped.
pub async fn run(program: impl AsRef<OsStr>, arguments: &[&str], input: &str, limit: Duration) -> Result<Output, CommandError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(CommandError::Run)?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that ends before reading its input reports the reason in its exit status.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ended = async { tokio::join!(feed, child.wait_with_output()).1 };
    timeout(limit, ended).await.map_err(|_| CommandError::Timeout(limit))?.map_err(CommandError::Run)
}

/// Standard error of a program, at most 2000 characters; for messages.
pub fn error_output(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim_end().chars().take(WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    async fn sh(script: &str, input: &str, limit: Duration) -> Result<Output, CommandError> {
        run("sh", &["-c", script], input, limit).await
    }

    #[tokio::test]
    async fn input_may_exceed_the_pipe_buffer() {
        let text = "x".repeat(1 << 20);
        let output = sh("cat", &text, LONG).await.expect("run");
        assert!(output.status.success() && output.stdout == text.as_bytes());
    }

    #[tokio::test]
    async fn failed_command_returns_its_truncated_stderr() {
        let output = sh("echo no >&2; exit 3", &"x".repeat(1 << 20), LONG).await.expect("run");
        assert_eq!((output.status.code(), error_output(&output).as_str()), (Some(3), "no"));
        let output = sh("head -c 5000 /dev/zero | tr '\\0' y >&2; exit 3", "", LONG).await.expect("run");
        assert_eq!(error_output(&output).len(), WORDS);
    }

    #[tokio::test]
    async fn missing_program_differs_from_timeout() {
        assert!(matches!(run("/nowhere/program", &[], "", LONG).await, Err(CommandError::Run(_))));
        assert!(matches!(sh("exec sleep 600", "", Duration::from_millis(50)).await, Err(CommandError::Timeout(_))));
    }
}

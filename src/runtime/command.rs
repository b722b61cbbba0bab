//! One run of a program: text in, within a time; what it wrote and how it ended out.
//!
//! It knows no program. What was written is for whoever asked, and on failure for people; nothing here reads it.

use std::ffi::OsStr;
use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

/// How much of what a failing program said is kept, in characters.
const WORDS: usize = 2000;

/// A program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started, or its end not be awaited.
    #[error("cannot run it: {0}")]
    Run(#[source] io::Error),
    /// It did not end in time and was killed.
    #[error("it did not end within {0:?} and was killed")]
    Timeout(Duration),
}

impl CommandError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Run(_) => "Missing",
            Self::Timeout(_) => "Timeout",
        }
    }
}

/// Runs a program with this standard input, for `limit` at most; a run that is given up, or dropped, is killed.
pub async fn run(program: impl AsRef<OsStr>, arguments: &[&str], input: &str, limit: Duration) -> Result<Output, CommandError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(CommandError::Run)?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that ends early says why by its status.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ended = async { tokio::join!(feed, child.wait_with_output()).1 };
    timeout(limit, ended).await.map_err(|_| CommandError::Timeout(limit))?.map_err(CommandError::Run)
}

/// What a program said on its standard error, at most its first 2000 characters; for people.
pub fn complaint(output: &Output) -> String {
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
        assert_eq!((output.status.code(), complaint(&output).as_str()), (Some(3), "no"));
        let output = sh("head -c 5000 /dev/zero | tr '\\0' y >&2; exit 3", "", LONG).await.expect("run");
        assert_eq!(complaint(&output).len(), WORDS);
    }

    #[tokio::test]
    async fn missing_program_differs_from_timeout() {
        assert_eq!(run("/nowhere/program", &[], "", LONG).await.expect_err("missing").reason(), "Missing");
        let hung = sh("exec sleep 600", "", Duration::from_millis(50)).await.expect_err("hangs");
        assert_eq!(hung.reason(), "Timeout");
    }
}

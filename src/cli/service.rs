//! Long-running commands: settings of the environment and of the command line, the runtime, and the exit code.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

use crate::model::settings::{Faults, Flags};

/// Exit code for invalid settings.
const EX_USAGE: u8 = 64;

/// Settings of the environment and these flags. All invalid ones are listed, and the exit code is 64.
pub(super) fn settings<T>(
    read: impl FnOnce(&BTreeMap<String, String>, &Flags) -> Result<T, Faults>,
    flags: &Flags,
) -> Result<Result<T, ExitCode>> {
    checked(read(&environment(), flags))
}

/// Settings as read. All invalid ones are listed, and the exit code is 64.
pub(super) fn checked<T>(read: Result<T, Faults>) -> Result<Result<T, ExitCode>> {
    Ok(match read {
        Ok(settings) => Ok(settings),
        Err(faults) => {
            writeln!(std::io::stderr(), "{faults}")?;
            Err(ExitCode::from(EX_USAGE))
        }
    })
}

/// Runs a command until it ends; its error is the last line of the log.
pub(super) fn run<E: Display>(command: impl Future<Output = Result<(), E>>) -> Result<ExitCode> {
    let ended = runtime()?.block_on(command);
    if let Err(error) = &ended {
        tracing::error!("{error}");
    }
    Ok(if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().context("the runtime")
}

/// Environment; entries that are not UTF-8 are ignored.
pub(super) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

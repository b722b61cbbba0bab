//! `tailyard reconciler`: the controller with the settings of the environment and of the command line.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::flags::Configured;
use super::proxy::{EX_USAGE, environment};
use crate::model::settings::Flags;
use crate::model::settings::reconciler::Reconciler as Settings;
use crate::runtime::telemetry;

/// The command `tailyard reconciler`.
#[derive(Debug)]
pub struct ReconcilerCommand;

impl Configured for ReconcilerCommand {
    const AFTER_HELP: &'static str = "";

    fn none() -> Flags {
        Flags::reconciler()
    }
}

/// Runs the reconciler with the environment and these flags. All invalid settings are listed, and the exit code is 64.
pub(super) fn run(flags: &Flags) -> Result<ExitCode> {
    let settings = match Settings::read(&environment(), flags) {
        Ok(settings) => settings,
        Err(faults) => {
            writeln!(std::io::stderr(), "{faults}")?;
            return Ok(ExitCode::from(EX_USAGE));
        }
    };
    telemetry::init(settings.log.json, &settings.log.filter).context("logs")?;
    for note in &settings.notes {
        tracing::info!("{note}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().context("the runtime")?;
    let ended = runtime.block_on(crate::reconciler::run(settings));
    if let Err(error) = &ended {
        tracing::error!("{error}");
    }
    Ok(if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! `tailyard reconciler`: the controller with the settings of the environment and of the command line.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::flags::Configured;
use super::service;
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
    let settings = match service::settings(Settings::read, flags)? {
        Ok(settings) => settings,
        Err(code) => return Ok(code),
    };
    telemetry::init(settings.log.json, &settings.log.filter).context("logs")?;
    for note in &settings.notes {
        tracing::info!("{note}");
    }
    service::run(crate::reconciler::run(settings))
}

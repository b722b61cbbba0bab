//! `tailyard nameserver`: the DNS server with the settings of the environment and of the command line.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::flags::Configured;
use super::service;
use crate::model::settings::Flags;
use crate::model::settings::nameserver::NameserverSettings as Settings;
use crate::runtime::telemetry;

/// The command `tailyard nameserver`.
#[derive(Debug)]
pub(super) struct NameserverCommand;

impl Configured for NameserverCommand {
    const AFTER_HELP: &'static str = "";

    fn none() -> Flags {
        Flags::nameserver()
    }
}

/// Runs the nameserver with the environment and these flags. All invalid settings are listed, and the exit code is 64.
pub(super) fn run(flags: &Flags) -> Result<ExitCode> {
    let settings = match service::settings(Settings::read, flags)? {
        Ok(settings) => settings,
        Err(code) => return Ok(code),
    };
    telemetry::init(settings.log.json, &settings.log.filter).context("logs")?;
    service::run(crate::nameserver::run(settings))
}

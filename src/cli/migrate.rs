//! `tailyard migrate`: values of the Tailscale operator's chart as ours, and the check of a cluster before a migration.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value};

use super::cluster::{ClusterArgs, block_on};
use crate::edge::files::read_one;
use crate::inspect::migration::{CheckOptions, run as examine};
use crate::model::diagnostics::migration::values::{convert, parse};

/// Arguments of `tailyard migrate`.
#[derive(Debug, clap::Args)]
pub(super) struct MigrateArgs {
    #[command(subcommand)]
    command: MigrateCommand,
}

#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Convert a values file of the Tailscale operator's chart to one of Tailyard's chart
    ///
    /// Prints the values; comments name the values without effect. Credentials are not copied; other variables of `extraEnv` are. The code
    /// is 1 if a key is unknown or cannot be converted.
    Values(ValuesArgs),
    #[allow(clippy::doc_markdown)]
    /// Check a cluster with the Tailscale operator: what Tailyard takes over, and what it does not
    ///
    /// Only reads. The code is 0 if nothing is lost, 1 if something is, 2 if the cluster or a kind could not be read.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
struct ValuesArgs {
    /// Values file of the Tailscale operator's chart, as `helm get values -o yaml` prints it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Release of the Tailscale operator's chart, which its `nameOverride` follows
    #[arg(long, value_name = "NAME", default_value = "tailscale-operator")]
    release: String,
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Values file of Tailyard's chart to compare with; default: the settings of the Tailscale operator
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,
    /// How to print
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    output: Option<CheckOutput>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CheckOutput {
    /// JSON
    Json,
}

/// Runs a subcommand. Fails if a file cannot be read.
pub(super) fn run(args: &MigrateArgs, out: &mut (dyn Write + Send), err: &mut dyn Write) -> Result<ExitCode> {
    match &args.command {
        MigrateCommand::Values(args) => values(args, out, err),
        MigrateCommand::Check(args) => check(args, out),
    }
}

fn values(args: &ValuesArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode> {
    let converted = convert(&read(&args.file)?, &args.release);
    write!(out, "{}", converted.text().context("the values cannot be written as YAML")?)?;
    out.flush()?;
    for (key, text) in &converted.notes {
        writeln!(err, "warning: {key}: {text}")?;
    }
    for (key, why) in &converted.refused {
        writeln!(err, "error: {key} is not converted: {why}")?;
    }
    Ok(if converted.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(args: &CheckArgs, out: &mut (dyn Write + Send)) -> Result<ExitCode> {
    let options = CheckOptions { values: args.values.as_deref().map(read).transpose()?, json: args.output.is_some() };
    let code = block_on(async { examine(args.cluster.find().await, &options, out).await.context("no answer") })??;
    Ok(ExitCode::from(code))
}

/// Values of a file.
fn read(path: &Path) -> Result<Map<String, Value>> {
    let content = read_one(path)?.with_context(|| format!("{} does not exist", path.display()))?;
    let text = std::str::from_utf8(&content).with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    parse(text).with_context(|| path.display().to_string())
}

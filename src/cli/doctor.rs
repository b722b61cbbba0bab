//! `tailyard doctor`: what is wrong with a cluster or a machine, and how to repair it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::cluster::{ClusterArgs, block_on};
use crate::inspect::doctor::{DoctorOptions, run as examine};

/// Arguments of `tailyard doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Look at the machine or Pod that this is, too: firewall, TUN device, MTU, UDP offloads, table of connections
    #[arg(long)]
    node_checks: bool,
    /// Certificate authorities of control planes to believe besides the public ones, PEM
    #[arg(long, value_name = "FILE", env = "TAILYARD_CONTROL_CA")]
    control_ca: Option<PathBuf>,
    /// How to print
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    output: Option<DoctorOutput>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DoctorOutput {
    /// JSON
    Json,
}

/// Prints every check. The code is 1 if something does not work, 2 if nothing could be read.
pub(super) fn run(args: &DoctorArgs, out: &mut (dyn Write + Send)) -> Result<ExitCode> {
    let options = DoctorOptions { node: args.node_checks, json: args.output.is_some(), control_ca: args.control_ca.clone() };
    let code = block_on(async { examine(args.cluster.find().await, &options, out).await.context("no answer") })??;
    Ok(ExitCode::from(code))
}

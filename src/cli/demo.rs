//! `tailyard demo`: what a group does, to be seen on one machine in half a minute.

use std::fs::Permissions;
use std::io::{IsTerminal, Write, stdout};
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use super::length;
use super::load::FASTEST;
use crate::demo::replicas::{DemoTailnet, Launch};
use crate::demo::screen::Screen;
use crate::demo::{DemoOptions, run as show, services};
use crate::edge::netns::private;

/// How long a leaving replica waits for its flows: shorter than a Pod's usual thirty seconds, to be seen.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(6);

/// How many replicas there are.
const REPLICAS: u8 = 2;
/// What chance decides comes out the same each time.
const SEED: u64 = 7;

/// Arguments of `tailyard demo`.
#[derive(Debug, clap::Args)]
pub(super) struct DemoArgs {
    /// Egress services at the start
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(services::MAX_SERVICES)))]
    services: u16,
    /// Duration of the load
    #[arg(long, default_value = "20s", value_name = "TIME", value_parser = length(Duration::from_secs(1), Duration::from_hours(1)))]
    duration: Duration,
    /// New connections and UDP flows per second
    #[arg(long, default_value_t = 400, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=FASTEST))]
    rate: u32,
    /// Firewall mode of the proxies
    #[arg(long, default_value = "auto", value_parser = ["auto", "nftables", "iptables-nft", "iptables-legacy"])]
    firewall_mode: String,
    /// Print only the summary, as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the demo in namespaces of its own. Fails if these cannot be made; the exit code is 1 if anything was lost.
pub(super) fn run(args: &DemoArgs) -> Result<ExitCode> {
    if !private::is_inside() {
        return Ok(ExitCode::from(private::run_inside(std::env::args_os().skip(1))?));
    }
    // No other user may write to the files that the proxies read.
    let private = Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().prefix("tailyard-demo-").permissions(private).tempdir();
    let directory = directory.context("cannot make a temporary directory")?;
    let launch = Launch {
        executable: std::env::current_exe().context("cannot find this executable")?,
        backend: args.firewall_mode.clone(),
        tailnet: DemoTailnet::File,
        egress: directory.path().join("egress"),
        directory: directory.path().to_owned(),
        grace: DRAIN_TIMEOUT,
        api: None,
    };
    let rate = NonZeroU32::new(args.rate).context("no rate")?;
    let mut screen = Screen::new(stdout(), stdout().is_terminal());
    let options = DemoOptions { replicas: REPLICAS, services: args.services, lasts: args.duration, rate, seed: SEED, launch };
    let summary = show(&options, (!args.json).then_some(&mut screen))?;
    let mut out = screen.into_inner();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &summary)?;
        writeln!(out)?;
    } else {
        writeln!(out, "\n{summary}")?;
    }
    Ok(if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

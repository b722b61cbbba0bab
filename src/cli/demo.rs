//! `tailyard demo`: what a group does, to be seen on one machine in half a minute.

use std::io::{IsTerminal, Write, stdout};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use super::length;
use crate::demo::replicas::{DemoTailnet, Launch};
use crate::demo::screen::{Screen, Title};
use crate::demo::{DemoOptions, run as show, services};
use crate::edge::netns::private;

/// How long a leaving replica waits for its flows: shorter than a Pod's usual thirty seconds, to be seen.
const GRACE: Duration = Duration::from_secs(6);

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
    #[arg(long, default_value = "400", value_name = "R", value_parser = rate)]
    rate: NonZeroU32,
    /// Firewall mode of the proxies
    #[arg(long, default_value = "auto", value_parser = ["auto", "nftables", "iptables-nft", "iptables-legacy"])]
    firewall_mode: String,
    /// Print only the summary, as JSON
    #[arg(long)]
    json: bool,
}

/// A rate that one core of the generator keeps up with.
fn rate(text: &str) -> Result<NonZeroU32, String> {
    let rate: NonZeroU32 = text.parse().map_err(|_| "must be a number from 1 to 5000".to_owned())?;
    if rate.get() <= 5_000 { Ok(rate) } else { Err("must be a number from 1 to 5000".to_owned()) }
}

/// Shows the demo in namespaces of its own. Fails if these cannot be made; the exit code is 1 if anything was lost.
pub(super) fn run(args: &DemoArgs) -> Result<ExitCode> {
    if !private::is_inside() {
        return Ok(ExitCode::from(private::run_inside(std::env::args_os().skip(1))?));
    }
    let directory = Scratch::make()?;
    let launch = Launch {
        executable: std::env::current_exe().context("cannot find this executable")?,
        backend: args.firewall_mode.clone(),
        tailnet: DemoTailnet::File,
        egress: directory.0.join("egress"),
        directory: directory.0.clone(),
        grace: GRACE,
        api: None,
    };
    let lasts = args.duration;
    let title = Title { backend: args.firewall_mode.clone(), rate: args.rate.get(), lasts };
    let mut screen = Screen::new(stdout(), title, stdout().is_terminal());
    let options = DemoOptions { replicas: REPLICAS, services: args.services, lasts, rate: args.rate, seed: SEED, launch };
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

/// A directory of the demo's own, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("tailyard-demo-{:016x}", fastrand::u64(..)));
        create_private(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is a few kilobytes in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// No other user may write to the files that the proxies read.
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

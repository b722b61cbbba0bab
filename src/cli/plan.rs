//! `tailyard plan`: the rules that a config turns into, offline: a support tool and the driver of the golden tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::api::netmap::File;
use crate::model::base::net::{Family, InterfaceName};
use crate::model::base::netmap::NetMap;
use crate::model::config::{EgressConfig, IngressConfig};
use crate::model::firewall::iptables;
use crate::model::firewall::nft;
use crate::model::firewall::ruleset::{Ruleset, diff};
use crate::model::plan::Planned;
use crate::model::plan::world::World;

/// Arguments of `tailyard plan`.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// Egress configs, as under the key `egress-services`; several are several plans
    #[arg(required_unless_present_any = ["diff", "ingress"], value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A netmap to resolve names in: own addresses, peers, services (JSON; see docs/quickstart.md)
    #[arg(long, value_name = "FILE")]
    netmap: Option<PathBuf>,
    /// An L3 ingress config, as under the key `ingress-config.json`
    #[arg(long, value_name = "FILE")]
    ingress: Option<PathBuf>,
    /// The interface behind which the tailnet is
    #[arg(long, default_value = "tailscale0", value_name = "NAME")]
    interface: InterfaceName,
    /// What to print
    #[arg(long, short = 'o', visible_alias = "output", value_enum, default_value_t = PlanFormat::Json)]
    format: PlanFormat,
    /// Print what changes from one egress config to another, and how many operations that is
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "files")]
    diff: Option<Vec<PathBuf>>,
    /// Exit with 1 if any service is rejected, wholly or in part
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PlanFormat {
    /// The plan, as JSON
    Json,
    /// The table, exactly as `nft -f -` loads it
    Nft,
    /// The IPv4 rules, exactly as `iptables-restore` loads them
    Iptables,
    /// The IPv6 rules, exactly as `ip6tables-restore` loads them
    Ip6tables,
}

/// Prints the plans or the delta. Fails if a file cannot be read or is not a config at all.
pub(super) fn run(args: &PlanArgs, out: &mut dyn Write) -> Result<ExitCode> {
    let world = world(args)?;
    if let Some([a, b]) = args.diff.as_deref() {
        let before = Planned::new(&with_egress(&world, a)?);
        let after = before.next(&with_egress(&world, b)?);
        print_delta(args.format, &before.ruleset, &after.ruleset, out)?;
        return Ok(exit_code(args, &after));
    }
    let mut code = ExitCode::SUCCESS;
    let mut print_plan = |world: &World| -> Result<()> {
        let planned = Planned::new(world);
        if exit_code(args, &planned) != ExitCode::SUCCESS {
            code = ExitCode::FAILURE;
        }
        print(args.format, &planned, out)
    };
    if args.files.is_empty() {
        print_plan(&world)?;
    }
    for file in &args.files {
        print_plan(&with_egress(&world, file)?)?;
    }
    Ok(code)
}

fn exit_code(args: &PlanArgs, planned: &Planned) -> ExitCode {
    if args.strict && !planned.plan.rejected.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn world(args: &PlanArgs) -> Result<World> {
    let mut world = World::empty(args.interface.clone(), [].into());
    if let Some(path) = &args.netmap {
        let file: File = serde_json::from_slice(&read(path)?).with_context(|| format!("{} is not a netmap", path.display()))?;
        let (netmap, faults) = NetMap::from_file(&file);
        if let Some(fault) = faults.first() {
            bail!("{}: {fault}", path.display());
        }
        world.netmap = Some(Arc::new(netmap));
    }
    if let Some(path) = &args.ingress {
        world.ingress = Arc::new(IngressConfig::parse(&read(path)?).with_context(|| path.display().to_string())?);
    }
    Ok(world)
}

fn with_egress(world: &World, path: &Path) -> Result<World> {
    let egress = EgressConfig::parse(&read(path)?).with_context(|| path.display().to_string())?;
    Ok(World { egress: Arc::new(egress), ..world.clone() })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn print(format: PlanFormat, planned: &Planned, out: &mut dyn Write) -> Result<()> {
    match format {
        PlanFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &planned.plan)?;
            writeln!(out)?;
        }
        PlanFormat::Nft => write!(out, "{}", nft::table(&planned.ruleset))?,
        PlanFormat::Iptables => write!(out, "{}", iptables::restore(&planned.ruleset, Family::V4))?,
        PlanFormat::Ip6tables => write!(out, "{}", iptables::restore(&planned.ruleset, Family::V6))?,
    }
    Ok(())
}

/// The delta and how many operations it is: in JSON both, in a firewall's own terms what is sent to it.
fn print_delta(format: PlanFormat, before: &Ruleset, after: &Ruleset, out: &mut dyn Write) -> Result<()> {
    let delta = diff(before, after);
    match format {
        PlanFormat::Json => {
            let operations = nft::operations(before, &delta, after);
            serde_json::to_writer_pretty(&mut *out, &serde_json::json!({"operations": operations, "delta": delta}))?;
            writeln!(out)?;
        }
        PlanFormat::Nft => {
            serde_json::to_writer(&mut *out, &nft::delta(before, &delta, after))?;
            writeln!(out)?;
        }
        PlanFormat::Iptables => write!(out, "{}", iptables::delta(before, &delta, after, Family::V4).unwrap_or_default())?,
        PlanFormat::Ip6tables => write!(out, "{}", iptables::delta(before, &delta, after, Family::V6).unwrap_or_default())?,
    }
    Ok(())
}

//! `tailyard uninstall`: has the reconciler release everything, and waits for it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::cluster::{ClusterArgs, block_on};
use super::length;
use crate::api::names::{UNINSTALL_EXCLUDED, UNINSTALL_REMAINING, UNINSTALLED};
use crate::edge::kube::{Cluster, Resource};
use crate::reconciler::LEASE;

/// Interval of reads of the Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which a running reconciler begins to report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Arguments of `tailyard uninstall`.
#[derive(Debug, clap::Args)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Maximum time to wait for the reconciler
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = length(Duration::from_secs(1), Duration::from_hours(24)))]
    timeout: Duration,
}

/// Requests the release, prints what remains at each change, and returns when nothing does.
pub(super) fn run(args: &UninstallArgs, out: &mut (dyn Write + Send)) -> Result<ExitCode> {
    block_on(async { release(&args.cluster.find().await?, args.timeout, out).await })??;
    Ok(ExitCode::SUCCESS)
}

async fn release(cluster: &Cluster, timeout: Duration, out: &mut (dyn Write + Send)) -> Result<()> {
    let lease = async || cluster.look(Resource::LEASE, Some(cluster.namespace()), LEASE).await;
    if lease().await?.is_none() {
        bail!("there is no Lease {LEASE} in namespace {}: install the chart again, or name the namespace by -n", cluster.namespace());
    }
    cluster.request_uninstall(LEASE).await.context("cannot request the uninstall")?;
    let began = Instant::now();
    let mut shown = None;
    loop {
        let now = lease().await?.unwrap_or_default();
        let remaining = now["metadata"]["annotations"][UNINSTALL_REMAINING].as_str();
        if remaining == Some(UNINSTALLED) {
            writeln!(out, "everything is released: uninstall the chart now")?;
            return Ok(());
        }
        if let Some(excluded) = remaining.and_then(|text| text.strip_prefix(UNINSTALL_EXCLUDED)) {
            bail!(
                "not released, as settings of the chart exclude what this reconciler served earlier: {excluded}; change the settings and run \
                 the command again"
            );
        }
        if let Some(text) = remaining.filter(|text| shown.as_deref() != Some(*text)) {
            writeln!(out, "waiting for {text}")?;
            shown = Some(text.to_owned());
        }
        if shown.is_none() && began.elapsed() > REPORT_TIMEOUT {
            bail!("no reconciler reports within {REPORT_TIMEOUT:?}{}: start one of this version, or read its log", holder(&now));
        }
        if began.elapsed() > timeout {
            bail!("not released within {timeout:?}: {}; run the command again to wait longer", shown.unwrap_or_default());
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn holder(lease: &Value) -> String {
    let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
    holder.map(|holder| format!(" (last leader: {holder})")).unwrap_or_default()
}

//! `tailyard doctor`: collects facts of a cluster, and optionally of this machine or Pod, and checks them.

use std::io::Write;
use std::path::PathBuf;

use super::{InspectError, gap};
use crate::edge::kube::{Cluster, KubeError};
use crate::model::diagnostics::doctor::{API_SERVER, Check, PAGE, cluster as cluster_checks, exit_code, node as node_checks, text};
use crate::model::diagnostics::overview::Gap;

mod cluster;
mod node;

/// Action where no API server answers.
const FIX: &str = "check KUBECONFIG, --context and the credentials in it: kubectl version must answer";

#[derive(Debug, Clone)]
pub struct DoctorOptions {
    /// Whether this machine is checked too.
    pub node: bool,
    pub json: bool,
    /// Additional trusted CAs of control planes, PEM.
    pub control_ca: Option<PathBuf>,
}

/// Writes the findings and returns the exit code. An unreachable cluster is a finding, so that a machine without one can be checked.
pub async fn run(cluster: Result<Cluster, KubeError>, options: &DoctorOptions, out: &mut dyn Write) -> Result<u8, InspectError> {
    let mut checks = match cluster {
        Ok(cluster) => match cluster.version().await {
            Ok(version) => cluster_checks::checks(&Box::pin(cluster::facts(&cluster, version, options.control_ca.as_deref())).await),
            Err(error) => vec![unreachable(&error)],
        },
        // A node need not have a kubeconfig.
        Err(error @ KubeError::Config { .. }) if options.node => vec![Check::warn(API_SERVER, error.to_string(), FIX)],
        Err(error) => vec![unreachable(&error)],
    };
    if options.node {
        checks.extend(node_checks::checks(&node::facts().await));
    }
    print(&checks, options.json, PAGE, out)?;
    Ok(exit_code(&checks))
}

/// Writes checks; `page` documents them.
pub(super) fn print(checks: &[Check], is_json: bool, page: &str, out: &mut dyn Write) -> Result<(), InspectError> {
    if is_json {
        serde_json::to_writer_pretty(&mut *out, checks)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(checks, page))?;
    }
    out.flush()?;
    Ok(())
}

pub(super) fn unreachable(error: &KubeError) -> Check {
    let why = match gap(error) {
        Gap::Failed(why) => why,
        Gap::Forbidden | Gap::Unknown => error.to_string(),
    };
    Check::bad(API_SERVER, why, FIX)
}

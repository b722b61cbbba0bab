//! Which cluster a command of a person is about.

use anyhow::{Context, Result};

use crate::edge::kube::{Cluster, KubeError};

/// Where the proxies are unless it is said otherwise.
const NAMESPACE: &str = "tailscale";

/// The flags of every command that looks at a cluster.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Where the reconciler and the proxies are
    #[arg(long, short, env = "OPERATOR_NAMESPACE", default_value = NAMESPACE, value_name = "NAME")]
    pub(super) namespace: String,
    /// The kubeconfig's context; its current one if it is not given
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    /// The cluster of the kubeconfig (KUBECONFIG, ~/.kube/config), or of the Pod that this is.
    pub(super) async fn find(&self) -> Result<Cluster, KubeError> {
        Ok(Cluster::find(self.context.as_deref()).await?.within(&self.namespace))
    }
}

/// Runs a command that sends requests.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    Ok(runtime.block_on(work))
}

//! Inspection commands: overview ([`status`]), diagnosis ([`doctor`]) and the check before a migration ([`migration`]). Read-only towards the cluster; work without a running reconciler.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::time::timeout;

use crate::edge::kube::{CallFault, Cluster, KubeError};
use crate::model::diagnostics::overview::{Gap, LiveStatus, StatusPart};

mod cache;
pub mod doctor;
pub mod migration;
pub mod status;

/// Label selector of the Pods of groups and standalone proxies.
const PROXIES: &str = "tailscale.com/managed=true,tailscale.com/parent-resource-type in (proxygroup,svc,ingress)";
/// Label selector of users' Services: without the label of child Services.
const OF_USERS: &str = "!tailscale.com/managed";

/// Timeout of a replica's status request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent status requests.
const STATUS_REQUESTS: usize = 16;

/// Error of an inspection command.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The cluster is unreachable.
    #[error("{0}")]
    Cluster(#[from] KubeError),
    /// A part that everything depends on is unreadable.
    #[error("{}", .gap.sentence(*.part, .namespace))]
    Unread { part: StatusPart, gap: Gap, namespace: String },
    #[error("there is no ProxyGroup or Connector {0}: kubectl get proxygroups,connectors lists them")]
    NoGroup(String),
    #[error("no Service or Ingress {0} uses Tailscale: kubectl get services,ingresses -A lists all")]
    NoObject(String),
    /// The output could not be written.
    #[error("cannot write the answer: {0}")]
    Write(#[from] std::io::Error),
    /// The output could not be encoded.
    #[error("cannot write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// The gap for an error, without advice meant for Pods.
fn gap(error: &KubeError) -> Gap {
    match error {
        KubeError::Call { fault: CallFault::Refused { code: 403, .. }, .. } => Gap::Forbidden,
        KubeError::Call { fault: CallFault::Refused { code: 401, .. }, .. } => {
            Gap::Failed("the API server does not know who you are: renew the credentials of the kubeconfig".to_owned())
        }
        KubeError::Call { fault, .. } => Gap::Failed(fault.to_string()),
        error => Gap::Failed(error.to_string()),
    }
}

/// Requests the status of these Pods at their ports.
async fn live_status(cluster: &Cluster, pods: impl IntoIterator<Item = (String, u16)>) -> BTreeMap<String, LiveStatus> {
    let replies = stream::iter(pods).map(|(pod, port)| async move {
        let answer = timeout(STATUS_TIMEOUT, cluster.replica_status(&pod, port)).await;
        let live: LiveStatus = match answer {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(error)) => Err(gap(&error)),
            Err(_elapsed) => Err(Gap::Failed(format!("no answer within {STATUS_TIMEOUT:?}"))),
        };
        (pod, live)
    });
    replies.buffer_unordered(STATUS_REQUESTS).collect().await
}

//! What people ask: how everything is ([`status`]), and what is wrong ([`doctor`]). Reads from the cluster; never changes anything in it, and needs no reconciler
//! to answer.

use crate::edge::kube::{CallFault, KubeError};
use crate::model::diagnostics::overview::{Gap, StatusPart};

mod cache;
pub mod doctor;
pub mod status;

/// A question could not be answered at all.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The cluster could not be asked.
    #[error("{0}")]
    Cluster(#[from] KubeError),
    /// What everything else hangs on cannot be read.
    #[error("{}", .gap.sentence(*.part, .namespace))]
    Unread { part: StatusPart, gap: Gap, namespace: String },
    #[error("there is no ProxyGroup {0}: kubectl get proxygroups lists them")]
    NoGroup(String),
    /// The answer could not be written.
    #[error("cannot write the answer: {0}")]
    Write(#[from] std::io::Error),
    /// The answer could not be put into words.
    #[error("cannot write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl InspectError {
    /// A closed set of words.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Cluster(error) => error.reason(),
            Self::Unread { .. } => "Unread",
            Self::NoGroup(_) => "NoGroup",
            Self::Write(_) => "Write",
            Self::Json(_) => "Json",
        }
    }
}

/// Why something could not be read, without advice to whom a Pod belongs.
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

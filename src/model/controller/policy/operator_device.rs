//! The operator's device: a proxy of the Kubernetes API, with the name and the tags of the Tailscale operator's own.
//!
//! The settings of the reconciler describe it completely. The Service that requests it adds nothing: who may write that Service chooses
//! neither mode nor name nor tags.

use crate::api::proxygroup::{ApiServerMode, Impersonation};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorDevice {
    pub mode: ApiServerMode,
    /// Users and groups that its clients may be, in mode `auth`.
    pub impersonation: Impersonation,
    pub hostname: String,
    pub tags: Vec<String>,
    pub is_http: bool,
    /// Secret of its own certificate.
    pub certificate: Option<String>,
}

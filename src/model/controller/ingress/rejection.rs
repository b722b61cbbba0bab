//! Rejection of an object that requests a name, and the reasons and messages that several parts use.

use crate::api::condition::reason;

/// Message to a standalone Ingress without certificate.
pub(crate) const NO_CERTIFICATES: &str = "The control plane issues no certificates: name a certificate of your own for the hosts in \
     spec.tls[].secretName.";

/// Reason of the rejection of an object that finds no room in the config.
pub(crate) const CONFIG_FULL: &str = "ConfigFull";

/// Why an object is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Rejection {
    pub(super) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }

    /// Whether only a change of the object or of its group ends it.
    pub(super) fn is_final(&self) -> bool {
        ![reason::NAME_CONFLICT, reason::PROXY_GROUP_NOT_READY].contains(&self.reason)
    }
}

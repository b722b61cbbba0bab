//! Inputs and outputs of the certificate store: versions of Secrets, failed orders, and notices for the log.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;

use crate::model::ingress::cert_orders::OrderFailure;
use crate::model::ingress::certificate::CertificateError;

/// Content of a Secret, with its version for conditional writes.
#[derive(Clone, PartialEq, Eq)]
pub struct VersionedSecret {
    /// Resource version; differs after every write.
    pub version: String,
    pub annotations: BTreeMap<String, String>,
    pub values: BTreeMap<String, Bytes>,
}

impl std::fmt::Debug for VersionedSecret {
    /// Omits the values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionedSecret").field("version", &self.version).field("annotations", &self.annotations).finish_non_exhaustive()
    }
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertNotice {
    /// The Secret of a user-provided certificate does not exist.
    Absent { name: String, secret: String },
    /// A Secret has no valid certificate of the name.
    Invalid { name: String, secret: String, error: CertificateError },
    /// The certificate is not valid yet, or no longer.
    Untimely { name: String, secret: String, reason: &'static str, from: Timestamp, until: Timestamp },
    /// A certificate that was missing from its Secret is written back.
    Restored { name: String },
    /// A certificate was issued; it is stored next.
    Issued { name: String, until: Timestamp },
    /// An order failed.
    Failed { name: String, failure: OrderFailure, reason: &'static str, message: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedOrder {
    pub failure: OrderFailure,
    /// Kind of failure; closed set.
    pub reason: &'static str,
    pub message: String,
}

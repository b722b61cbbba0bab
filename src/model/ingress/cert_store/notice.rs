//! What the certificate store takes in and reports: versions of Secrets, failed orders, and notices for the log.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;

use crate::model::ingress::cert_orders::OrderFailure;
use crate::model::ingress::certificate::CertificateError;

/// A Secret, as far as a conditional write goes.
#[derive(Clone, PartialEq, Eq)]
pub struct VersionedSecret {
    /// Differs after every write.
    pub version: String,
    pub annotations: BTreeMap<String, String>,
    pub values: BTreeMap<String, Bytes>,
}

impl std::fmt::Debug for VersionedSecret {
    /// Never the values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionedSecret").field("version", &self.version).field("annotations", &self.annotations).finish_non_exhaustive()
    }
}

/// Something that is worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertNotice {
    /// The Secret of a user-provided certificate does not exist.
    Absent { name: String, secret: String },
    /// A Secret holds no valid certificate of the name.
    Invalid { name: String, secret: String, error: CertificateError },
    /// The certificate is not valid yet, or no longer.
    Untimely { name: String, secret: String, reason: &'static str, from: Timestamp, until: Timestamp },
    /// A certificate that was missing from its Secret was written back.
    Restored { name: String },
    /// A certificate was issued and stored.
    Issued { name: String, until: Timestamp },
    /// An order failed.
    Failed { name: String, failure: OrderFailure, reason: &'static str, message: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedOrder {
    pub failure: OrderFailure,
    /// The kind, of a closed set.
    pub reason: &'static str,
    pub message: String,
}

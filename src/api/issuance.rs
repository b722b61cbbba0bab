//! Ours, additive: which Pod orders a certificate, and the last failure. Format: the annotation [`super::names::ISSUANCE`] of the Secret, a
//! JSON object. Replicas write it with the Secret's version as precondition, so that one of them orders. The reconciler reads it.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OrderNote {
    /// The Pod that is ordering; absent if none is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    #[serde(skip_serializing_if = "super::is_default")]
    pub failures: u32,
    /// No replica orders before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

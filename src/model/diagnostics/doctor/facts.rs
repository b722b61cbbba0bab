//! What the doctor reads of a cluster.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ReadResult;
use super::control::CredentialCheck;
use super::rights::Right;

/// What was read of a cluster. Objects are as the API server has them.
#[derive(Debug, Clone)]
pub struct ClusterFacts {
    /// The namespace of the reconciler and the proxies.
    pub namespace: String,
    /// The version of the API server.
    pub server: String,
    /// The definitions of our kinds, by name; none if one is not installed.
    pub definitions: BTreeMap<&'static str, ReadResult<Option<Value>>>,
    /// What an account is not allowed and should be, by whose account it is.
    pub denied: BTreeMap<String, ReadResult<Vec<Right>>>,
    pub deployments: ReadResult<Vec<Value>>,
    pub groups: ReadResult<Vec<Value>>,
    /// Objects that only the Tailscale operator reconciles, by kind.
    pub unreconciled: BTreeMap<&'static str, ReadResult<Vec<Value>>>,
    pub lease: ReadResult<Option<Value>>,
    /// Whether that was renewed while we looked: clocks differ, so its time alone tells nothing.
    pub renewed: bool,
    pub pods: ReadResult<Vec<Value>>,
    pub nodes: ReadResult<Vec<Value>>,
    /// The ranges that Services have their addresses from.
    pub ranges: ReadResult<Vec<Value>>,
    pub dns: ReadResult<Option<Value>>,
    pub kube_proxy: ReadResult<Option<Value>>,
    pub cilium: ReadResult<Option<Value>>,
    /// The credentials of control planes.
    pub credentials: ReadResult<Vec<CredentialCheck>>,
}

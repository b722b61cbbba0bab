//! Facts about a cluster for the doctor.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::ReadResult;
use super::rights::Right;
use crate::model::diagnostics::overview::{Gap, LiveStatus};

/// Result of a test of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialCheck {
    pub user: String,
    pub secret: String,
    pub outcome: CredentialOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialOutcome {
    Works,
    /// The Secret could not be read.
    Unread(Gap),
    /// The Secret is incomplete: the missing part.
    Missing(String),
    /// Rejected by the control plane: its message.
    Refused(String),
    /// Accepted, but not for Tailscale Services: the control plane's message.
    WithoutServices(String),
    /// The control plane is unreachable from here; it may be reachable from the reconciler.
    Unreachable(String),
    /// Present, but only the reconciler itself can test them.
    Untested,
}

/// Facts read from a cluster. Objects are unmodified API objects.
#[derive(Debug, Clone)]
pub struct ClusterFacts {
    /// Namespace of the reconciler and the proxies.
    pub namespace: String,
    /// API server version.
    pub server: String,
    /// Our CRDs by name; `None` if not installed.
    pub definitions: BTreeMap<&'static str, ReadResult<Option<Value>>>,
    /// Missing permissions, by account.
    pub denied: BTreeMap<String, ReadResult<Vec<Right>>>,
    /// `ValidatingAdmissionPolicy` of proxies, and its binding; `None` if not created, or if the cluster has no such kind.
    pub policy: ReadResult<Option<Value>>,
    pub policy_binding: ReadResult<Option<Value>>,
    pub deployments: ReadResult<Vec<Value>>,
    pub groups: ReadResult<Vec<Value>>,
    /// `StatefulSet`s of the proxies.
    pub sets: ReadResult<Vec<Value>>,
    /// Objects that only the Tailscale operator reconciles, by kind.
    pub unreconciled: BTreeMap<&'static str, ReadResult<Vec<Value>>>,
    pub lease: ReadResult<Option<Value>>,
    /// Whether the Lease was renewed during the check: clocks differ, so its time alone proves nothing.
    pub renewed: bool,
    pub pods: ReadResult<Vec<Value>>,
    /// Status of the replicas by Pod.
    pub live: BTreeMap<String, LiveStatus>,
    /// Events about Pods that `StatefulSet`s cannot create.
    pub failures: ReadResult<Vec<Value>>,
    /// Users' Services and Ingresses, of all namespaces.
    pub services: ReadResult<Vec<Value>>,
    pub ingresses: ReadResult<Vec<Value>>,
    pub namespaces: ReadResult<Vec<Value>>,
    pub classes: ReadResult<Vec<Value>>,
    /// Warnings about Ingresses.
    pub ingress_events: ReadResult<Vec<Value>>,
    /// Time since the Unix epoch.
    pub now: Duration,
    pub nodes: ReadResult<Vec<Value>>,
    /// Address ranges of Services.
    pub ranges: ReadResult<Vec<Value>>,
    pub dns: ReadResult<Option<Value>>,
    pub kube_proxy: ReadResult<Option<Value>>,
    pub cilium: ReadResult<Option<Value>>,
    /// Control plane credentials.
    pub credentials: ReadResult<Vec<CredentialCheck>>,
}

impl ClusterFacts {
    /// Facts of a cluster without objects.
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            server: String::new(),
            definitions: BTreeMap::new(),
            denied: BTreeMap::new(),
            policy: Ok(None),
            policy_binding: Ok(None),
            deployments: Ok(Vec::new()),
            groups: Ok(Vec::new()),
            sets: Ok(Vec::new()),
            unreconciled: BTreeMap::new(),
            lease: Ok(None),
            renewed: false,
            pods: Ok(Vec::new()),
            live: BTreeMap::new(),
            failures: Ok(Vec::new()),
            services: Ok(Vec::new()),
            ingresses: Ok(Vec::new()),
            namespaces: Ok(Vec::new()),
            classes: Ok(Vec::new()),
            ingress_events: Ok(Vec::new()),
            now: Duration::ZERO,
            nodes: Ok(Vec::new()),
            ranges: Ok(Vec::new()),
            dns: Ok(None),
            kube_proxy: Ok(None),
            cilium: Ok(None),
            credentials: Ok(Vec::new()),
        }
    }
}

//! State shared by all workers.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use super::apply::Applier;
use super::control_plane::ControlPlanes;
use super::informers::Stores;
use super::metrics::Metrics;
use super::tailnet_tokens::TailnetTokens;
use crate::edge::kube::Cluster;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::group_policy::PolicyRules;
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::workload::pace::Replacements;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::settings::reconciler::DefaultControlPlane;

/// What every reconciled kind may use.
#[derive(Debug)]
pub struct Context {
    pub stores: Stores,
    pub actor: Applier,
    pub controls: Arc<ControlPlanes>,
    pub tokens: TailnetTokens,
    pub control: DefaultControlPlane,
    /// The device that serves the Kubernetes API, if requested.
    pub operator_device: Option<OperatorDevice>,
    /// Secret of the Tailscale operator's own device.
    pub operator_secret: String,
    /// Inputs of the objects that enforce policies.
    pub policy_rules: PolicyRules,
    /// Groups of types that we do not serve and that were logged.
    pub unserved: Mutex<BTreeSet<String>>,
    pub settings: Arc<GroupSettings>,
    /// Memo of the passes over each workload.
    pub memories: Mutex<HashMap<WorkloadKey, Memory>>,
    /// Standalone proxies that are being replaced.
    pub replacements: Mutex<Replacements>,
    pub metrics: Arc<Metrics>,
    /// Client for objects in no watch.
    pub cluster: Cluster,
    pub cluster_id: tokio::sync::OnceCell<String>,
}

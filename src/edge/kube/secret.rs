//! The replica's own Secrets: state, shared with tailscaled and the operator, and config, which it only reads.

use bytes::Bytes;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use super::{Cluster, KubeError, Values, Verb, secret_values, within};
use crate::api::names::POD_FIELD_MANAGER;
use crate::model::tailnet::state::StateChanges;

/// The state Secret. Each key has one writer: do not create two writers for a Secret.
#[derive(Debug, Clone)]
pub struct StateSecret {
    pub cluster: Cluster,
    pub name: String,
}

impl StateSecret {
    pub fn new(cluster: Cluster, name: impl Into<String>) -> Self {
        Self { cluster, name: name.into() }
    }

    /// Returns its values; `None` if it does not exist.
    pub async fn get(&self) -> Result<Option<Values>, KubeError> {
        self.cluster.secret(&self.name).await
    }

    /// Changes only these keys, in one call.
    pub async fn patch(&self, changes: &StateChanges) -> Result<(), KubeError> {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(Value::Null, |bytes| json!(ByteString(bytes.to_vec())));
        let data: Map<String, Value> = changes.iter().map(|(key, wanted)| (key.clone(), value(wanted))).collect();
        let patch = Patch::Strategic(json!({"metadata": {"name": self.name, "namespace": self.cluster.namespace}, "data": data}));
        let parameters = PatchParams { field_manager: Some(POD_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let call = || self.cluster.call(Verb::Patch, "Secret", &self.name);
        within(call, self.cluster.secrets().patch(&self.name, &parameters, &patch)).await.map(drop)
    }
}

impl Cluster {
    /// Returns the values of a Secret in the client's namespace; `None` if it does not exist.
    pub async fn secret(&self, name: &str) -> Result<Option<Values>, KubeError> {
        let found = within(|| self.call(Verb::Get, "Secret", name), self.secrets().get_opt(name)).await?;
        Ok(found.map(secret_values))
    }
}

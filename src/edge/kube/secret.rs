//! The replica's own Secrets: state, which it shares with tailscaled and the operator, and config, which it only reads.

use bytes::Bytes;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use super::{Cluster, Keyed, KubeError, Values, Verb, within};
use crate::api::names::FIELD_MANAGER;
use crate::model::tailnet::state::StateChanges;

/// The state Secret. There is one writer of a key: never give this to two.
#[derive(Debug, Clone)]
pub struct StateSecret {
    cluster: Cluster,
    name: String,
}

impl StateSecret {
    /// The Secret of this name in the cluster's namespace.
    pub fn new(cluster: Cluster, name: impl Into<String>) -> Self {
        Self { cluster, name: name.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Its values; nothing if it does not exist.
    pub async fn get(&self) -> Result<Option<Values>, KubeError> {
        self.cluster.secret(&self.name).await
    }

    /// What tells it from another one that had its name before or will have it; nothing if it does not exist.
    pub async fn uid(&self) -> Result<Option<String>, KubeError> {
        let call = || self.cluster.call(Verb::Get, "Secret", &self.name);
        let found = within(call, self.cluster.secrets().get_metadata_opt(&self.name)).await?;
        Ok(found.and_then(|secret| secret.metadata.uid))
    }

    /// Changes these keys and no others, in one call.
    pub async fn patch(&self, changes: &StateChanges) -> Result<(), KubeError> {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(Value::Null, |bytes| json!(ByteString(bytes.to_vec())));
        let data: Map<String, Value> = changes.iter().map(|(key, wanted)| (key.clone(), value(wanted))).collect();
        let patch = Patch::Strategic(json!({"metadata": {"name": self.name, "namespace": self.cluster.namespace}, "data": data}));
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let call = || self.cluster.call(Verb::Patch, "Secret", &self.name);
        within(call, self.cluster.secrets().patch(&self.name, &parameters, &patch)).await.map(drop)
    }
}

impl Cluster {
    /// The values of a Secret of the own namespace; nothing if it does not exist.
    pub async fn secret(&self, name: &str) -> Result<Option<Values>, KubeError> {
        let found = within(|| self.call(Verb::Get, "Secret", name), self.secrets().get_opt(name)).await?;
        Ok(found.map(Keyed::values))
    }
}

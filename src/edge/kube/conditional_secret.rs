//! Secrets with several writers: each write is conditional on the resource version, so one of two concurrent writes is refused.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Cluster, KubeError, Values, Verb, secret_values, within};
use crate::api::names::POD_FIELD_MANAGER;

pub use crate::model::ingress::cert_store::VersionedSecret;

pub(super) fn versioned(mut secret: Secret) -> VersionedSecret {
    let version = secret.metadata.resource_version.take().unwrap_or_default();
    let annotations = std::mem::take(secret.annotations_mut());
    VersionedSecret { version, annotations, values: secret_values(secret) }
}

impl Cluster {
    /// Returns a Secret of the client's namespace; `None` if it does not exist.
    pub async fn noted(&self, name: &str) -> Result<Option<VersionedSecret>, KubeError> {
        let found = within(|| self.call(Verb::Get, "Secret", name), self.secrets().get_opt(name)).await?;
        Ok(found.map(versioned))
    }

    /// Sets values of a Secret, and sets or removes annotations, if its resource version still matches; otherwise the error's reason is
    /// `Conflict`. Keys not given are unchanged. Returns the new Secret.
    pub async fn note(
        &self,
        name: &str,
        version: &str,
        annotations: &BTreeMap<&str, Option<String>>,
        values: &Values,
    ) -> Result<VersionedSecret, KubeError> {
        let bytes = |value: &Bytes| json!(ByteString(value.to_vec()));
        let data: serde_json::Map<String, Value> = values.iter().map(|(key, value)| (key.clone(), bytes(value))).collect();
        let mut patch = json!({"metadata": {"resourceVersion": version}});
        if !annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(annotations);
        }
        if !data.is_empty() {
            patch["data"] = data.into();
        }
        let parameters = PatchParams { field_manager: Some(POD_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let call = || self.call(Verb::Patch, "Secret", name);
        within(call, self.secrets().patch(name, &parameters, &Patch::Merge(patch))).await.map(versioned)
    }
}

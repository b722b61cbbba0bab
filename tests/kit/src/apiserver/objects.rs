//! What tests read and write as the administrator, and rights of the Pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{Cluster, NAMESPACE, named};

impl Cluster {
    /// All `ConfigMap`s, as the administrator.
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.admin(), NAMESPACE)
    }

    /// All Secrets, as the administrator.
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.admin(), NAMESPACE)
    }

    /// Makes a `ConfigMap` with these values as the operator does, in `binaryData`, or replaces those of one that exists.
    pub async fn write_config(&self, name: &str, values: &[(&str, &str)]) {
        let binary: BTreeMap<_, _> = values.iter().map(|(key, value)| (*key, k8s_openapi::ByteString(value.as_bytes().to_vec()))).collect();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": binary});
        let parameters = PatchParams::apply("test").force();
        self.config_maps().patch(name, &parameters, &Patch::Apply(object)).await.expect("written");
    }

    /// Deletes a `ConfigMap`.
    pub async fn delete_config(&self, name: &str) {
        self.config_maps().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// Makes a Secret with these values.
    pub async fn make_secret(&self, name: &str, values: &[(&str, &str)]) {
        let data = values.iter().map(|(key, value)| ((*key).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec())));
        let secret = Secret { metadata: named(name), data: Some(data.collect()), ..Secret::default() };
        self.secrets().create(&PostParams::default(), &secret).await.expect("a Secret");
    }

    /// Changes these values of a Secret.
    pub async fn patch_secret(&self, name: &str, values: &[(&str, &str)]) {
        let text: BTreeMap<_, _> = values.iter().copied().collect();
        let patch = Patch::Merge(json!({"stringData": text}));
        self.secrets().patch(name, &PatchParams::default(), &patch).await.expect("patched");
    }

    /// Replaces all data of a Secret by these values, as tailscaled does with a Secret that had none.
    pub async fn replace_data(&self, name: &str, values: &[(&str, &str)]) {
        let mut secret = self.secrets().get(name).await.expect("a Secret");
        secret.data = None;
        secret.string_data = Some(values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
        self.secrets().replace(name, &PostParams::default(), &secret).await.expect("replaced");
    }

    /// Deletes a Secret.
    pub async fn delete_secret(&self, name: &str) {
        self.secrets().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// The field managers of a Secret.
    pub async fn managers(&self, name: &str) -> Vec<String> {
        let metadata = self.secrets().get(name).await.expect("a Secret").metadata;
        metadata.managed_fields.unwrap_or_default().into_iter().filter_map(|entry| entry.manager).collect()
    }

    /// The values of a Secret as text, and its version.
    pub async fn secret(&self, name: &str) -> (BTreeMap<String, String>, String) {
        let secret = self.secrets().get(name).await.expect("a Secret");
        let text = |value: Vec<u8>| String::from_utf8(value).expect("text");
        let values = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value.0))).collect();
        (values, secret.metadata.resource_version.expect("a version"))
    }

    /// Grants the Pod these verbs on the named objects of a resource, and waits until the API server applies the rule.
    pub async fn allow(&self, resource: &str, names: &[&str], verbs: &[&str]) {
        self.allow_in("", resource, names, verbs).await;
    }

    /// The same for an API group; an empty list of names means all objects.
    pub async fn allow_in(&self, group: &str, resource: &str, names: &[&str], verbs: &[&str]) {
        let role = format!("{resource}-{}", verbs.join("-"));
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let granted = PolicyRule {
            api_groups: Some(owned(&[group])),
            resources: Some(owned(&[resource])),
            resource_names: Some(owned(names)).filter(|names| !names.is_empty()),
            verbs: owned(verbs),
            ..PolicyRule::default()
        };
        let made = Role { metadata: named(&role), rules: Some(vec![granted]) };
        Api::<Role>::namespaced(self.admin(), NAMESPACE).create(&PostParams::default(), &made).await.expect("a Role");
        let reference = RoleRef { api_group: Some("rbac.authorization.k8s.io".into()), kind: "Role".into(), name: role.clone() };
        let subject = Subject { kind: "User".into(), name: "pod".into(), ..Subject::default() };
        let binding = RoleBinding { metadata: named(&role), role_ref: reference, subjects: Some(vec![subject]) };
        Api::<RoleBinding>::namespaced(self.admin(), NAMESPACE).create(&PostParams::default(), &binding).await.expect("a RoleBinding");
    }
}

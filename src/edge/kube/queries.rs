//! Questions of people: how a replica is, asked by the API server's way to its Pod, and objects that are looked at once.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::{ApiCall, CallFault, Cluster, KubeError, Resource, Verb, leader_client, within};
use crate::api::replica;

/// Objects in one answer; who looks once has no use for more than a cluster of usual size.
const MAX_ITEMS: u32 = 5_000;

impl Cluster {
    /// What a replica says of itself at this port; needs `get` on `pods/proxy` in the own namespace.
    pub async fn replica_status(&self, pod: &str, port: u16) -> Result<replica::ReplicaStatus, KubeError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let call = || ApiCall { verb: Verb::Get, kind: "Pod", namespace: self.namespace.clone(), name: format!("{pod}/proxy") };
        let path = format!("proxy{}", replica::PATH);
        let request = kube::core::Request::new(pods.resource_url()).get_subresource(&path, &format!("{pod}:{port}"));
        let request = request
            .map_err(|source| KubeError::Call { call: call(), fault: CallFault::Malformed(Box::new(kube::Error::BuildRequest(source))) })?;
        within(call, self.client.request(request)).await
    }

    /// The version of the API server; needs no right.
    pub async fn version(&self) -> Result<String, KubeError> {
        let call = || ApiCall { verb: Verb::Get, kind: "version", namespace: String::new(), name: "of the API server".to_owned() };
        within(call, self.client.apiserver_version()).await.map(|info| info.git_version)
    }

    /// All objects of a kind, of one namespace or of all, by this selector; needs `list`.
    pub async fn list(&self, resource: Resource, namespace: Option<&str>, labels: Option<&str>) -> Result<Vec<Value>, KubeError> {
        let call =
            || ApiCall { verb: Verb::List, kind: resource.kind, namespace: namespace.unwrap_or_default().to_owned(), name: String::new() };
        let mut parameters = ListParams::default().limit(MAX_ITEMS);
        parameters.label_selector = labels.map(str::to_owned);
        let list = within(call, self.dynamic(resource, namespace).list(&parameters)).await?;
        Ok(list.items.into_iter().map(leader_client::plain).collect())
    }

    /// One object; nothing if it or its kind does not exist. Needs `get`.
    pub async fn look(&self, resource: Resource, namespace: Option<&str>, name: &str) -> Result<Option<Value>, KubeError> {
        let call =
            || ApiCall { verb: Verb::Get, kind: resource.kind, namespace: namespace.unwrap_or_default().to_owned(), name: name.to_owned() };
        let found = within(call, self.dynamic(resource, namespace).get_opt(name)).await?;
        Ok(found.map(leader_client::plain))
    }
}

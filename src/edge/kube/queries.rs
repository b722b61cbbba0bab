//! Queries: the status of a replica through the API server's Pod proxy, single reads of objects, version and time of the API server.

use http::header::DATE;
use http::{Request, Uri};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::client::Body;
use serde_json::{Value, json};

use super::item::WatchedItem;
use super::pages::Pages;
use super::{ApiCall, CallFault, Cluster, Follow, KubeError, Resource, Verb, within};
use crate::api::names::{RECONCILER_FIELD_MANAGER, UNINSTALL, UNINSTALL_REMAINING};
use crate::api::replica;

/// Maximum objects of a list; enough for a single read of a cluster of usual size.
pub const MAX_ITEMS: usize = 5_000;

impl Cluster {
    /// Reads the status that a replica serves at this port; needs `get` on `pods/proxy` in the client's namespace.
    pub async fn replica_status(&self, pod: &str, port: u16) -> Result<replica::ReplicaStatus, KubeError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let call = || ApiCall { verb: Verb::Get, kind: "Pod", namespace: self.namespace.clone(), name: format!("{pod}/proxy") };
        let path = format!("proxy{}", replica::PATH);
        let request = kube::core::Request::new(pods.resource_url()).get_subresource(&path, &format!("{pod}:{port}"));
        let request = request
            .map_err(|source| KubeError::Call { call: call(), fault: CallFault::Malformed(Box::new(kube::Error::BuildRequest(source))) })?;
        within(call, self.client.request(request)).await
    }

    /// Version of the API server; needs no permission.
    pub async fn version(&self) -> Result<String, KubeError> {
        let call = || ApiCall { verb: Verb::Get, kind: "version", namespace: String::new(), name: "of the API server".to_owned() };
        within(call, self.client.apiserver_version()).await.map(|info| info.git_version)
    }

    /// Time of the API server, to the second, if its responses have it (RFC 9110, 6.6.1); needs no permission.
    pub async fn time(&self) -> Result<Option<Timestamp>, KubeError> {
        let call = || ApiCall { verb: Verb::Get, kind: "version", namespace: String::new(), name: "of the API server".to_owned() };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = Uri::from_static("/version");
        let response = within(call, self.client.send(request)).await?;
        let date = response.headers().get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        Ok(date.and_then(|date| date.try_into().ok()))
    }

    /// Lists objects; needs `list`.
    pub async fn list(&self, Follow { resource, namespace, labels, fields }: &Follow) -> Result<Vec<Value>, KubeError> {
        let call = ApiCall { verb: Verb::List, kind: resource.kind, namespace: namespace.clone().unwrap_or_default(), name: String::new() };
        let [label_selector, field_selector] = [labels, fields].map(|selector| selector.map(str::to_owned));
        let api: Api<WatchedItem<DynamicObject>> = self.dynamic(*resource, namespace.as_deref());
        let parameters = ListParams { label_selector, field_selector, ..ListParams::default() };
        let (mut pages, mut found) = (Pages::new(&self.client, &api, &call, parameters), Vec::new());
        while !pages.is_complete() && found.len() < MAX_ITEMS {
            for object in pages.next().await?.items {
                found.push(pages.decode(&object)?.into_json().into_value());
            }
        }
        found.truncate(MAX_ITEMS);
        Ok(found)
    }

    /// Requests an uninstall by an annotation of the reconcilers' Lease, with the current time; needs `patch`.
    pub async fn request_uninstall(&self, lease: &str) -> Result<(), KubeError> {
        let annotations = json!({UNINSTALL: Timestamp::now(), UNINSTALL_REMAINING: null});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let parameters = PatchParams { field_manager: Some(RECONCILER_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let api: Api<DynamicObject> = self.dynamic(Resource::LEASE, Some(&self.namespace));
        within(|| self.call(Verb::Patch, Resource::LEASE.kind, lease), api.patch(lease, &parameters, &patch)).await.map(drop)
    }

    /// Reads one object; `None` if it or its kind does not exist. Needs `get`.
    pub async fn look(&self, resource: Resource, namespace: Option<&str>, name: &str) -> Result<Option<Value>, KubeError> {
        let call =
            || ApiCall { verb: Verb::Get, kind: resource.kind, namespace: namespace.unwrap_or_default().to_owned(), name: name.to_owned() };
        let found: Option<WatchedItem<DynamicObject>> = within(call, self.dynamic(resource, namespace).get_opt(name)).await?;
        Ok(found.map(|object| object.into_json().into_value()))
    }
}

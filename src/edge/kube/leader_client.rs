//! API client of the leader, the only path by which the reconciler changes the cluster.
//!
//! Only the leader writes, and each write ends before its leadership can: without the Lease, or close to its expiry, nothing is sent.
//! Objects are applied server-side with one field manager. A write is attempted once and returns its result; the caller decides what to
//! write and how to handle failures.

use std::future::Future;
use std::sync::Arc;

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicResourceScope;
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::item::plain;
use super::{ApiCall, ApiRefusal, CALL_TIMEOUT, Cluster, KubeError, Leading, Resource, Verb, limited};
use crate::api::names::RECONCILER_FIELD_MANAGER;
use crate::model::controller::workload::actions::Delete;
use crate::model::controller::workload::objects::adopt::adopted;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef};
use crate::model::controller::workload::secret_name::SecretName;

/// A version that no stored object has: an apply with it creates the object or is a conflict. (A POST would make us the manager of an
/// update, and a later apply would not remove fields.)
const NO_VERSION: &str = "1";

/// Callback for each call: verb, kind, and the reason of its error, if any.
pub type Observer = Arc<dyn Fn(Verb, &'static str, Option<&'static str>) + Send + Sync>;

/// Writes to the cluster while this process leads. Cheap to clone.
#[derive(Clone)]
pub struct LeaderClient {
    cluster: Cluster,
    leading: watch::Receiver<Option<Leading>>,
    observer: Observer,
}

impl std::fmt::Debug for LeaderClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writes").field("cluster", &self.cluster).field("leading", &*self.leading.borrow()).finish_non_exhaustive()
    }
}

impl LeaderClient {
    /// Creates a client that writes while `leading` has a value.
    pub fn new(cluster: Cluster, leading: watch::Receiver<Option<Leading>>, observer: Observer) -> Self {
        Self { cluster, leading, observer }
    }

    /// Whether a write is possible now.
    pub fn open(&self) -> bool {
        self.leading.borrow().is_some_and(|leading| Instant::now() < leading.until)
    }

    /// Whether a term of leadership has not ended. If it is not open either, the renewal is late: it opens again, or the term ends.
    pub fn in_term(&self) -> bool {
        self.leading.borrow().is_some()
    }

    /// Runs work that changes systems other than the API server, and cancels it at the end of leadership; then `None`. Renewals of
    /// leadership extend its time.
    pub async fn while_leading<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        while_leading(self.leading.clone(), work).await
    }

    /// Applies a manifest (server-side apply). Returns the resulting object.
    pub async fn apply(&self, manifest: &Manifest) -> Result<Value, KubeError> {
        if manifest.adopt {
            self.adopt(&manifest.object).await?;
        }
        self.send(manifest, &manifest.value).await
    }

    /// Applies a manifest of an object that does not exist; an existing object is a conflict and stays unchanged.
    pub async fn create(&self, manifest: &Manifest) -> Result<Value, KubeError> {
        let mut value = manifest.value.clone();
        value["metadata"]["resourceVersion"] = NO_VERSION.into();
        self.send(manifest, &value).await
    }

    async fn send(&self, manifest: &Manifest, value: &Value) -> Result<Value, KubeError> {
        let object = &manifest.object;
        let call = ApiCall { verb: Verb::Patch, kind: object.kind.name(), namespace: object.namespace.clone(), name: object.name.clone() };
        let api = self.api(object.kind.into(), &object.namespace);
        let parameters = PatchParams { force: !manifest.yields, ..PatchParams::apply(RECONCILER_FIELD_MANAGER) };
        let patch = Patch::Apply(value);
        self.write(call, api.patch(&object.name, &parameters, &patch)).await.map(plain)
    }

    /// Reads an object as the API server has it now, not as an informer cache; `None` if it does not exist.
    pub async fn look(&self, resource: Resource, namespace: &str, name: &str) -> Result<Option<Value>, KubeError> {
        let call = ApiCall { verb: Verb::Get, kind: resource.kind, namespace: namespace.to_owned(), name: name.to_owned() };
        self.write(call, self.api(resource, namespace).get_opt(name)).await.map(|found| found.map(plain))
    }

    /// Lists objects with these labels as the API server has them now, not as an informer cache.
    pub async fn list(&self, resource: Resource, namespace: &str, labels: &str) -> Result<Vec<Value>, KubeError> {
        let call = ApiCall { verb: Verb::List, kind: resource.kind, namespace: namespace.to_owned(), name: String::new() };
        let parameters = ListParams::default().labels(labels);
        let list = self.write(call, self.api(resource, namespace).list(&parameters)).await?;
        Ok(list.items.into_iter().map(plain).collect())
    }

    /// Deletes an object if its UID matches. A missing object is no error. Finalizers of a Secret that Pods may write do not hold it: none
    /// can be added any more.
    pub async fn delete(&self, delete: &Delete) -> Result<(), KubeError> {
        let object = &delete.object;
        let call = ApiCall { verb: Verb::Delete, kind: object.kind.name(), namespace: object.namespace.clone(), name: object.name.clone() };
        let preconditions = Preconditions { uid: delete.uid.clone(), resource_version: None };
        let parameters = DeleteParams::background().preconditions(preconditions);
        let api = self.api(object.kind.into(), &object.namespace);
        let remaining = match self.write(call, api.delete(&object.name, &parameters)).await {
            Err(error) if error.refusal() == Some(ApiRefusal::NotFound) => return Ok(()),
            done => done?.either(Some, |_status| None),
        };
        let is_written_by_pods = object.kind == Kind::Secret && SecretName::parse(&object.name).is_written_by_pods();
        let Some(remaining) =
            remaining.filter(|object| is_written_by_pods && !object.metadata.finalizers.as_deref().unwrap_or_default().is_empty())
        else {
            return Ok(());
        };
        let patch = json!({"metadata": {"uid": remaining.metadata.uid, "finalizers": null}});
        match self.merge(object.kind.into(), &object.namespace, &object.name, ObjectPart::Object, &patch).await {
            Err(error) if error.refusal() == Some(ApiRefusal::NotFound) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Changes an object or its status by a JSON merge patch. Returns the resulting object.
    pub async fn merge(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: ObjectPart,
        patch: &Value,
    ) -> Result<Value, KubeError> {
        let kind = if part == ObjectPart::Status { status(resource) } else { resource.kind };
        let call = ApiCall { verb: Verb::Patch, kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let api = self.api(resource, namespace);
        let parameters = PatchParams { field_manager: Some(RECONCILER_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let changed = match part {
            ObjectPart::Object => self.write(call, api.patch(name, &parameters, &patch)).await,
            ObjectPart::Status => self.write(call, api.patch_status(name, &parameters, &patch)).await,
        };
        changed.map(plain)
    }

    /// Takes over the fields that another manager set by plain updates, as an apply removes only fields of its own manager.
    async fn adopt(&self, object: &ObjectRef) -> Result<(), KubeError> {
        let call = ApiCall { verb: Verb::Get, kind: object.kind.name(), namespace: object.namespace.clone(), name: object.name.clone() };
        let api = self.api(object.kind.into(), &object.namespace);
        let Some(existing) = self.write(call, api.get_opt(&object.name)).await? else { return Ok(()) };
        let fields = json!(existing.metadata.managed_fields);
        let Some(fields) = adopted(&fields, object.kind.api_version()) else { return Ok(()) };
        let patch = json!({"metadata": {"resourceVersion": existing.metadata.resource_version, "managedFields": fields}});
        self.merge(object.kind.into(), &object.namespace, &object.name, ObjectPart::Object, &patch).await.map(drop)
    }

    fn api(&self, resource: Resource, namespace: &str) -> Api<DynamicObject> {
        self.cluster.dynamic(resource, Some(namespace).filter(|namespace| !namespace.is_empty()))
    }

    /// Runs a call within the time of leadership.
    pub(super) async fn write<T>(&self, call: ApiCall, work: impl Future<Output = kube::Result<T>>) -> Result<T, KubeError> {
        let now = Instant::now();
        let Some(until) = self.leading.borrow().map(|leading| leading.until).filter(|until| now < *until) else {
            return Err(KubeError::NotLeading { call });
        };
        let done = limited(CALL_TIMEOUT.min(until - now), work).await;
        let (verb, kind) = (call.verb, call.kind.split('/').next().unwrap_or(call.kind));
        let done = done.map_err(|fault| KubeError::Call { call, fault });
        (self.observer)(verb, kind, done.as_ref().err().map(KubeError::reason));
        done
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

async fn while_leading<T>(mut leading: watch::Receiver<Option<Leading>>, work: impl Future<Output = T>) -> Option<T> {
    let ended = async move {
        loop {
            let until = leading.borrow_and_update().map(|leading| leading.until);
            let Some(until) = until.filter(|until| Instant::now() < *until) else { return };
            if let Ok(Err(_gone)) = timeout_at(until, leading.changed()).await {
                sleep_until(until).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = ended => None,
        done = work => Some(done),
    }
}

/// Part of an object to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectPart {
    /// All except the status.
    Object,
    Status,
}

impl Cluster {
    /// API for objects of any kind, in one namespace or all.
    pub(super) fn dynamic<K>(&self, resource: Resource, namespace: Option<&str>) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        let kind = ApiResource::from(resource);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }
}

/// Kind with its status subresource, as in permissions.
fn status(resource: Resource) -> &'static str {
    match resource.kind {
        "ProxyGroup" => "ProxyGroup/status",
        "ProxyClass" => "ProxyClass/status",
        "ProxyGroupPolicy" => "ProxyGroupPolicy/status",
        "DNSConfig" => "DNSConfig/status",
        "Tailnet" => "Tailnet/status",
        "Service" => "Service/status",
        "Ingress" => "Ingress/status",
        "Pod" => "Pod/status",
        whole => whole,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    fn leading(seconds: u64) -> Leading {
        Leading { since: Instant::now(), until: Instant::now() + Duration::from_secs(seconds) }
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_cancelled_when_leadership_ends() {
        let work = |seconds| async move {
            sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        let (sender, receiver) = watch::channel(Some(leading(8)));
        assert_eq!(while_leading(receiver.clone(), work(7)).await, Some(7));
        assert_eq!(while_leading(receiver.clone(), work(2)).await, None, "a second is left");
        assert_eq!(while_leading(receiver.clone(), work(0)).await, None, "none is left");

        sender.send_replace(Some(leading(8)));
        let prolonged = tokio::spawn(while_leading(receiver.clone(), work(20)));
        for _ in 0..3 {
            sleep(Duration::from_secs(6)).await;
            sender.send_replace(Some(leading(8)));
        }
        assert_eq!(prolonged.await.expect("no panic"), Some(20));

        let lost = tokio::spawn(while_leading(receiver, work(6)));
        sleep(Duration::from_secs(1)).await;
        sender.send_replace(None);
        assert_eq!(lost.await.expect("no panic"), None);
    }
}

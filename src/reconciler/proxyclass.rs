//! `ProxyClass` reconciliation: finalizer and condition. A change of these enqueues the groups that use the class.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::apply::{ActError, whole};
use super::cache::WatchRole;
use super::worker::Worker;
use crate::edge::kube::{ApiRefusal, KubeError, ObjectPart, Resource};
use crate::model::controller::objects::Kind;
use crate::model::controller::proxyclass::validate;
use crate::model::controller::proxygroup::{Notice, Subject};
use crate::runtime::queue::WorkOutcome;

pub async fn reconcile(worker: &Worker, name: &str) -> Result<WorkOutcome, ActError> {
    let (class, validation) = {
        let cache = worker.stores.cache();
        let Some(class) = cache.class(name) else { return Ok(WorkOutcome::Done) };
        let monitors = cache.has(WatchRole::Owned(Kind::ServiceMonitor));
        let validation = validate(&class, &cache.other_classes(name), &cache.users_of_class(name), monitors, Timestamp::now());
        (class, validation)
    };
    if let Some(status) = validation.status {
        write(worker, Resource::PROXY_CLASS, WatchRole::Class, name, ObjectPart::Status, &json!({ "status": whole(&status) })).await?;
    }
    if let Some(finalizers) = validation.finalizers {
        // With the version as precondition, so that no foreign finalizer is lost.
        finalize(worker, Resource::PROXY_CLASS, WatchRole::Class, name, &finalizers).await?;
    }
    for (reason, message) in validation.warnings {
        let notice = Notice { subject: Subject::Group, warning: true, reason, message };
        worker.actor.notice(&Resource::PROXY_CLASS.reference("", name, class.metadata.uid.clone()), &notice).await;
    }
    Ok(WorkOutcome::Done)
}

/// Replaces the finalizers of a cluster-scoped object that is unchanged since it was observed or written by us.
pub(super) async fn finalize(
    worker: &Worker,
    resource: Resource,
    role: WatchRole,
    name: &str,
    finalizers: &[String],
) -> Result<(), KubeError> {
    let version = worker.stores.cache().text_version(role, name);
    let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
    write(worker, resource, role, name, ObjectPart::Object, &patch).await
}

/// Patches a cluster-scoped object. A deleted one needs no change.
pub(super) async fn write(
    worker: &Worker,
    resource: Resource,
    role: WatchRole,
    name: &str,
    part: ObjectPart,
    patch: &Value,
) -> Result<(), KubeError> {
    match worker.actor.writes().merge(resource, "", name, part, patch).await {
        Ok(value) => worker.stores.assume(role, value),
        Err(error) if error.refusal() == Some(ApiRefusal::NotFound) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

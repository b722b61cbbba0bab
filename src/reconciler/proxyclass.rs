//! `ProxyClass` reconciliation: finalizer and condition. A change of these enqueues the groups that use the class.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::apply::{ActError, whole};
use super::cache::WatchRole;
use super::context::Context;
use crate::edge::kube::{KubeError, ObjectPart, Resource};
use crate::model::controller::kinds::proxyclass::validate;
use crate::model::controller::workload::finalizers::Validation;
use crate::runtime::queue::WorkOutcome;

pub async fn reconcile(context: &Context, name: &str) -> Result<WorkOutcome, ActError> {
    let (class, validation) = {
        let cache = context.stores.cache();
        let Some(class) = cache.class(name) else { return Ok(WorkOutcome::Done) };
        let validation = if cache.is_uninstalled() {
            Validation::released(&class.metadata)
        } else {
            validate(&class, &cache.other_classes(name), &cache.users_of_class(name), cache.class_rules(), Timestamp::now())
        };
        (class, validation)
    };
    apply(context, (Resource::PROXY_CLASS, WatchRole::Class), &class.metadata, validation).await?;
    Ok(WorkOutcome::Done)
}

/// Writes the changes of a cluster-scoped object.
pub(super) async fn apply<Status: Serialize>(
    context: &Context,
    of: (Resource, WatchRole),
    metadata: &ObjectMeta,
    validation: Validation<Status>,
) -> Result<(), KubeError> {
    let name = metadata.name.as_deref().unwrap_or_default();
    if let Some(status) = validation.status {
        context.actor.patch(of, ("", name), ObjectPart::Status, &json!({ "status": whole(&status) })).await?;
    }
    if let Some(finalizers) = validation.finalizers {
        // With the version as precondition, so that no foreign finalizer is lost.
        let version = context.stores.cache().text_version(of.1, name);
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        context.actor.patch(of, ("", name), ObjectPart::Object, &patch).await?;
    }
    for (reason, message) in validation.warnings {
        context.actor.notice(&of.0.reference("", name, metadata.uid.clone()), true, reason, &message).await;
    }
    Ok(())
}

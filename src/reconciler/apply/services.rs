//! Updates of users' Services and Ingresses: finalizers, `externalName` and conditions, each at its safe point of a pass.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use serde_json::{Map, Value, json};

use super::setbacks::PartialErrors;
use super::{Applier, at_once, change_log};
use crate::api::names;
use crate::edge::kube::{KubeError, ObjectPart, Resource};
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::workload::actions::{ExternalNameUpdate, ObjectUpdate};
use crate::reconciler::cache::WatchRole;

/// Point of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Before objects are created.
    Before,
    /// After objects are created.
    Between,
    /// After objects are deleted.
    After,
}

/// Versions of users' Services, updated by each of our writes.
pub(super) type Versions = Mutex<BTreeMap<(PublishSource, String, String), String>>;

impl Applier {
    /// Applies the updates of this point to all Services.
    pub(super) async fn services(
        &self,
        all: &[ObjectUpdate],
        versions: &Versions,
        when: When,
        setbacks: &PartialErrors,
    ) -> Result<(), KubeError> {
        let one = async |update: &ObjectUpdate| {
            let subject = WorkloadKey::of_object(update.source, &update.namespace, &update.name);
            setbacks.record(subject, self.service(update, versions, when).await)
        };
        at_once(all.iter().map(|update| one(update).boxed()).collect()).await
    }

    /// Applies the update of one Service at this point: the finalizer before objects exist, unless it comes with `externalName`;
    /// `externalName` and conditions after their targets exist; removal of the finalizer after everything is deleted.
    async fn service(&self, update: &ObjectUpdate, versions: &Versions, when: When) -> Result<(), KubeError> {
        let external_name = update.external_name.as_ref();
        let finalizers = update.finalizers.as_ref().filter(|_| match when {
            When::Before => update.adds_finalizer && external_name.is_none(),
            When::Between => update.adds_finalizer && external_name.is_some(),
            When::After => !update.adds_finalizer,
        });
        let mut patch = json!({});
        if let Some(finalizers) = finalizers {
            patch["metadata"]["finalizers"] = json!(finalizers);
        }
        if let Some(ExternalNameUpdate { name, former }) = external_name.filter(|_| when == When::Between) {
            patch["metadata"]["annotations"] = json!({names::FORMER_EXTERNAL_NAME: former});
            if let Some(name) = name {
                patch["spec"]["externalName"] = json!(name);
            }
        }
        if patch != json!({}) {
            self.change_service(update, versions, ObjectPart::Object, patch).await?;
        }
        if when != When::Between {
            return Ok(());
        }
        let mut status = Map::new();
        status.extend(update.conditions.as_ref().map(|conditions| ("conditions".to_owned(), json!(conditions))));
        // A merge patch keeps absent fields: name the list even if it is removed.
        let addresses = update.load_balancer.as_ref().map(|balancer| balancer.get("ingress").cloned().unwrap_or_default());
        status.extend(addresses.map(|ingress| ("loadBalancer".to_owned(), json!({"ingress": ingress}))));
        if !status.is_empty() {
            self.change_service(update, versions, ObjectPart::Status, json!({"status": status})).await?;
        }
        Ok(())
    }

    /// Changes a Service with its version as precondition. A deleted one needs no change.
    async fn change_service(
        &self,
        update: &ObjectUpdate,
        versions: &Versions,
        part: ObjectPart,
        mut patch: Value,
    ) -> Result<(), KubeError> {
        let id = (update.source, update.namespace.clone(), update.name.clone());
        let kind = match update.source {
            PublishSource::Ingress => (Resource::INGRESS, WatchRole::Ingress),
            PublishSource::Service => (Resource::SERVICE, WatchRole::Service),
        };
        let before = self.stores.cache().service_conditions(&update.namespace, &update.name);
        let own = versions.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        let version = own.or_else(|| update.resource_version.clone());
        patch["metadata"]["resourceVersion"] = json!(version);
        patch["metadata"]["uid"] = json!(update.uid);
        if let Some(version) = self.patch(kind, (&update.namespace, &update.name), part, &patch).await? {
            versions.lock().unwrap_or_else(PoisonError::into_inner).insert(id, version);
            let subject = WorkloadKey::of_object(update.source, &update.namespace, &update.name);
            change_log::log(&subject, change_log::of_patch(&patch, &before, update.adds_finalizer));
        }
        Ok(())
    }
}

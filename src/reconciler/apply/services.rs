//! Updates of users' Services and Ingresses: finalizers, `externalName` and conditions, each at its safe point of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::setbacks::PartialErrors;
use super::{Applier, at_once, change_log};
use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::edge::kube::{ApiRefusal, KubeError, ObjectPart, Resource, WatchedItem, WatchedObject};
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::workload::actions::{ExternalNameUpdate, ObjectUpdate};
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::patch;
use crate::reconciler::cache::WatchRole;

/// Maximum attempts to patch an object that others write.
const ATTEMPTS: usize = 4;

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

/// Users' objects during a pass.
pub(super) struct UsersObjects<'a> {
    observed: &'a Observed,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Objects as our last write returned them.
    written: BTreeMap<WorkloadKey, Value>,
    /// Objects that this pass changes no more: a write failed, or others have changed the object since it was observed.
    ended: BTreeSet<WorkloadKey>,
    /// Whether writes remain for the next pass, which sees what others have changed.
    remains: bool,
}

impl<'a> UsersObjects<'a> {
    /// Those that a plan was made from.
    pub(super) fn new(observed: &'a Observed) -> Self {
        Self { observed, state: Mutex::default() }
    }

    /// Whether every object has all of its writes.
    pub(super) fn are_complete(&self) -> bool {
        self.state().ended.is_empty()
    }

    /// Whether writes remain for the next pass.
    pub(super) fn remain(&self) -> bool {
        self.state().remains
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Version of an update's object: of our last write, or else as observed.
    fn version(&self, update: &ObjectUpdate) -> Option<String> {
        let state = self.state();
        let own = state.written.get(&subject(update)).and_then(|value| value["metadata"]["resourceVersion"].as_str().map(str::to_owned));
        own.or_else(|| update.resource_version.clone())
    }

    /// A patch that was planned from an object, for the object as it is now; `None` if it is not right for that.
    fn repeated(&self, update: &ObjectUpdate, patch: &Value, now: Value) -> Option<Value> {
        let metadata = serde_json::from_value(now["metadata"].clone()).ok()?;
        let id = (update.namespace.clone(), update.name.clone());
        let own = self.state().written.get(&subject(update)).cloned();
        let planned = match (own, update.source) {
            (Some(own), source) => typed(source, own),
            (None, PublishSource::Service) => self.observed.services.get(&id).and_then(|service| serde_json::to_value(&**service).ok()),
            (None, PublishSource::Ingress) => {
                self.observed.publish.ingresses.get(&id).and_then(|object| serde_json::to_value(&**object).ok())
            }
            (None, PublishSource::ProxyGroup) => None,
        };
        let (planned, now) = planned.zip(typed(update.source, now))?;
        patch::repeated(patch, (update.finalizer, update.adds_finalizer), (&planned, &now), &metadata)
    }
}

/// An object with the fields of its type, cut as observed ones are.
fn typed(source: PublishSource, object: Value) -> Option<Value> {
    fn cut<K: WatchedObject + Serialize>(object: Value) -> Option<Value> {
        let object = WatchedItem::of(serde_json::from_value::<K>(object).ok()?).decoded().ok()?;
        serde_json::to_value(object).ok()
    }
    match source {
        PublishSource::Service => cut::<Service>(object),
        PublishSource::Ingress => cut::<Ingress>(object),
        PublishSource::ProxyGroup => cut::<ProxyGroup>(object),
    }
}

fn subject(update: &ObjectUpdate) -> WorkloadKey {
    WorkloadKey::of_object(update.source, &update.namespace, &update.name)
}

impl Applier {
    /// Applies the updates of this point to all Services.
    pub(super) async fn services(
        &self,
        all: &[ObjectUpdate],
        objects: &UsersObjects<'_>,
        when: When,
        setbacks: &PartialErrors,
    ) -> Result<(), KubeError> {
        let one = async |update: &ObjectUpdate| {
            if objects.state().ended.contains(&subject(update)) {
                return Ok(());
            }
            let done = self.service(update, objects, when).await;
            if done.is_err() {
                objects.state().ended.insert(subject(update));
            }
            setbacks.record(subject(update), done)
        };
        at_once(all.iter().map(|update| one(update).boxed()).collect()).await
    }

    /// Applies the update of one Service at this point: the finalizer before objects exist, unless it comes with `externalName`;
    /// `externalName` and conditions after their targets exist; removal of the finalizer, and then of conditions, after everything is
    /// deleted.
    async fn service(&self, update: &ObjectUpdate, objects: &UsersObjects<'_>, when: When) -> Result<(), KubeError> {
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
            self.change_service(update, objects, ObjectPart::Object, patch).await?;
        }
        // The conditions record that an object with our finalizer is ours: they end after it.
        let reported = if update.finalizers.is_some() && !update.adds_finalizer { When::After } else { When::Between };
        if when != reported || objects.state().ended.contains(&subject(update)) {
            return Ok(());
        }
        let mut status = Map::new();
        status.extend(update.conditions.as_ref().map(|conditions| ("conditions".to_owned(), json!(conditions))));
        // A merge patch keeps absent fields: name the list even if it is removed.
        let addresses = update.load_balancer.as_ref().map(|balancer| balancer.get("ingress").cloned().unwrap_or_default());
        status.extend(addresses.map(|ingress| ("loadBalancer".to_owned(), json!({"ingress": ingress}))));
        if !status.is_empty() {
            self.change_service(update, objects, ObjectPart::Status, json!({"status": status})).await?;
        }
        Ok(())
    }

    /// Changes a Service with its version as precondition. A deleted one needs no change.
    async fn change_service(
        &self,
        update: &ObjectUpdate,
        objects: &UsersObjects<'_>,
        part: ObjectPart,
        mut patch: Value,
    ) -> Result<(), KubeError> {
        let before = self.stores.cache().service_conditions(&update.namespace, &update.name);
        patch["metadata"]["resourceVersion"] = json!(objects.version(update));
        patch["metadata"]["uid"] = json!(update.uid);
        let (resource, role) = match update.source {
            PublishSource::Ingress => (Resource::INGRESS, WatchRole::Ingress),
            PublishSource::Service => (Resource::SERVICE, WatchRole::Service),
            PublishSource::ProxyGroup => (Resource::PROXY_GROUP, WatchRole::Group),
        };
        if let Some(written) = self.patch_current(update, objects, (resource, part), &mut patch).await? {
            self.stores.assume(role, written.clone()).await;
            objects.state().written.insert(subject(update), written);
            change_log::log(&subject(update), change_log::of_patch(&patch, &before, update.adds_finalizer));
        }
        Ok(())
    }

    /// Patches an object. One that others write often is newer than the cache each time: while they change only their finalizers and what the
    /// patch was not planned from, it is repeated for the version of now. The object's further writes are those of the next pass, which are planned from
    /// all changes.
    async fn patch_current(
        &self,
        update: &ObjectUpdate,
        objects: &UsersObjects<'_>,
        (resource, part): (Resource, ObjectPart),
        patch: &mut Value,
    ) -> Result<Option<Value>, KubeError> {
        let (namespace, name) = (update.namespace.as_str(), update.name.as_str());
        let is_conflict = |done: &Result<_, KubeError>| done.as_ref().err().and_then(KubeError::refusal) == Some(ApiRefusal::Conflict);
        let mut done = self.merge(resource, (namespace, name), part, patch).await;
        for _ in 1..ATTEMPTS {
            if !is_conflict(&done) {
                break;
            }
            let Some(now) = self.writes.look(resource, namespace, name).await? else { return Ok(None) };
            let Some(repeated) = objects.repeated(update, patch, now) else { break };
            *patch = repeated;
            done = self.merge(resource, (namespace, name), part, patch).await;
            if done.is_ok() {
                let mut state = objects.state();
                (_, state.remains) = (state.ended.insert(subject(update)), true);
            }
        }
        done
    }
}

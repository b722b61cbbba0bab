//! The operator's device: writes the Service that requests it, and takes the state of the Tailscale operator's device over.

use serde_json::{Value, json};

use super::apply::ActError;
use super::cache::{WatchRole, own_request};
use super::context::Context;
use crate::api::names;
use crate::api::state::DEVICE_ID;
use crate::edge::kube::{ApiRefusal, LeaderClient, ObjectPart, Resource};
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::standalone::takeover::{device_state, fault, is_due};
use crate::model::controller::workload::actions::Delete;
use crate::model::controller::workload::objects::operator_service::{RequestChange, change, service_ref};
use crate::model::controller::workload::objects::secrets::state;
use crate::model::controller::workload::objects::{Kind, ObjectRef, applied};
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::pass::owner;

/// Creates, changes or deletes the Service by the settings; an uninstall deletes it.
pub async fn request(context: &Context) -> Result<(), ActError> {
    let (writes, namespace) = (context.actor.writes(), &context.settings.namespace);
    let device = context.operator_device.as_ref().filter(|_| !context.stores.cache().is_uninstall_requested());
    if device.is_none_or(|device| !device.mode.impersonates()) {
        // First: whatever the Service has become, the right ends.
        revoke(writes, &own_request(namespace)).await?;
    }
    let object = service_ref(namespace);
    let existing = writes.look(Resource::SERVICE, namespace, &object.name).await?;
    match change(device, namespace, existing.as_ref()) {
        RequestChange::None => {}
        RequestChange::Apply(service) => {
            let service = writes.apply(&service).await?;
            context.stores.assume(WatchRole::Service, service).await;
        }
        RequestChange::Delete => {
            let uid = existing.and_then(|existing| existing["metadata"]["uid"].as_str().map(str::to_owned));
            writes.delete(&Delete { object, uid }).await?;
        }
        RequestChange::Foreign => {
            tracing::warn!(namespace, name = object.name, "cannot request the API server proxy: a Service of this name exists; delete it");
        }
    }
    Ok(())
}

/// Deletes the right to impersonate of a device that had another mode. No pass may do so: a reconciler that grants none watches no roles.
async fn revoke(writes: &LeaderClient, device: &WorkloadKey) -> Result<(), ActError> {
    for kind in [Kind::ClusterRoleBinding, Kind::ClusterRole] {
        let found = match writes.look(kind.into(), "", names::API_SERVER_ROLE).await {
            Err(error) if error.refusal() == Some(ApiRefusal::Forbidden) => {
                tracing::warn!(name = names::API_SERVER_ROLE, "cannot revoke the right to impersonate: {error}");
                return Ok(());
            }
            found => found?,
        };
        let is_own = |found: &Value| WorkloadKey::of_labels(|key| found["metadata"]["labels"][key].as_str()).as_ref() == Some(device);
        let Some(found) = found.filter(is_own) else { continue };
        let uid = found["metadata"]["uid"].as_str().map(str::to_owned);
        writes.delete(&Delete { object: ObjectRef::new(kind, "", names::API_SERVER_ROLE), uid }).await?;
    }
    Ok(())
}

/// Result of an attempt to take a device over.
#[derive(Debug)]
pub enum TakeOver {
    /// There is none.
    None,
    /// The state of the device is in the cache.
    Done,
    /// Why it is not possible yet.
    Blocked(String),
}

/// Gives a new device the state of the Tailscale operator's, if there is one.
pub async fn take_over(context: &Context, observed: &Observed) -> Result<TakeOver, ActError> {
    if !is_due(observed) {
        return Ok(TakeOver::None);
    }
    let (writes, namespace, secret) = (context.actor.writes(), &context.settings.namespace, &context.operator_secret);
    let found = writes.look(Resource::SECRET, namespace, secret).await?;
    let Some(data) = found.as_ref().and_then(device_state) else { return Ok(TakeOver::None) };
    let own = observed.replicas.get(&0).and_then(|replica| replica.state.as_ref()?.device_id.as_ref());
    if own.is_some_and(|own| data.get(DEVICE_ID).is_none_or(|id| id.0 != own.as_str().as_bytes())) {
        return Ok(TakeOver::None);
    }
    match writes.list(Resource::DEPLOYMENT, namespace, "").await {
        Ok(deployments) => {
            if let Some(fault) = fault(&deployments, secret) {
                return Ok(TakeOver::Blocked(fault));
            }
        }
        Err(error) if error.refusal() == Some(ApiRefusal::Forbidden) => return Ok(TakeOver::Blocked(error.to_string())),
        Err(error) => return Err(error.into()),
    }
    if own.is_some() {
        return Ok(TakeOver::None);
    }
    let manifest = state(&owner(observed), 0);
    let hash = applied(&manifest.value).unwrap_or_default().to_owned();
    match writes.create(&manifest).await {
        Ok(created) => context.stores.applied(Kind::Secret, created, hash).await,
        Err(error) if error.refusal() == Some(ApiRefusal::Conflict) => {}
        Err(error) => return Err(error.into()),
    }
    // No apply: a later one of the manifest would remove these keys.
    let name = &manifest.object.name;
    let filled = writes.merge(Resource::SECRET, namespace, name, ObjectPart::Object, &json!({ "data": data })).await?;
    context.stores.assume(WatchRole::Owned(Kind::Secret), filled).await;
    tracing::info!(namespace, name, from = secret, "took over the device of the Tailscale operator");
    Ok(TakeOver::Done)
}

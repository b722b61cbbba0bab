//! `ProxyGroupPolicy` reconciliation: the admission objects of a namespace follow its policies, and are restored after changes by others.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::apply::{ActError, whole};
use super::cache::WatchRole;
use super::context::Context;
use super::owned_objects;
use crate::edge::kube::{ObjectPart, Resource};
use crate::model::controller::kinds::group_policy;
use crate::model::controller::workload::objects::Manifest;
use crate::runtime::queue::WorkOutcome;

pub async fn reconcile(context: &Context, namespace: &str) -> Result<WorkOutcome, ActError> {
    let (policies, existing) = {
        let cache = context.stores.cache();
        (cache.group_policies(namespace), cache.admission_objects(namespace))
    };
    let wanted = group_policy::manifests(namespace, &policies, &context.policy_rules);
    let is_current =
        |manifest: &Manifest| existing.get(&manifest.object).is_some_and(|observed| group_policy::is_current(manifest, observed));
    // A binding is applied after its policy, and deleted before it.
    let unwanted = existing.iter().rev().filter(|(object, _)| wanted.iter().all(|manifest| manifest.object != **object));
    let leftovers = unwanted.map(|(object, value)| (object, value["metadata"]["uid"].as_str().map(str::to_owned))).collect();
    let written = owned_objects::write(context, "admission object", &wanted, is_current, leftovers).await;
    // The API server would reject a retry as well: report it.
    let failure = written.as_ref().err().filter(|error| error.refused()).map(ToString::to_string);
    if written.is_ok() || failure.is_some() {
        let of = (Resource::PROXY_GROUP_POLICY, WatchRole::GroupPolicy);
        for (name, status) in group_policy::statuses(&policies, failure.as_deref(), Timestamp::now()) {
            context.actor.patch(of, (namespace, &name), ObjectPart::Status, &json!({ "status": whole(&status) })).await?;
        }
    }
    written?;
    Ok(WorkOutcome::Done)
}

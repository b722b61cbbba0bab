//! `DNSConfig` reconciliation: the objects of the nameserver, its records, and the conditions of all `DNSConfigs`.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::apply::{ActError, whole};
use super::cache::WatchRole;
use super::context::Context;
use super::owned_objects;
use crate::api::names::FINALIZER;
use crate::edge::kube::{ObjectPart, Resource};
use crate::model::controller::kinds::nameserver;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::Manifest;
use crate::runtime::queue::WorkOutcome;

const OF: (Resource, WatchRole) = (Resource::DNS_CONFIG, WatchRole::DnsConfig);

pub async fn reconcile(context: &Context) -> Result<WorkOutcome, ActError> {
    let (configs, inputs, proxies, is_uninstall) = {
        let cache = context.stores.cache();
        let (configs, inputs) = cache.nameserver_inputs(&context.settings);
        (configs, inputs, cache.serving_proxies(), cache.is_uninstall_requested())
    };
    let inputs = if is_uninstall || configs.is_empty() { inputs } else { inputs.serving(&proxies) };
    let effective = nameserver::effective(&configs).filter(|_| !is_uninstall);
    let wanted = effective.map(|config| nameserver::manifests(config, &inputs)).unwrap_or_default();
    let is_current = |manifest: &Manifest| inputs.existing.get(&manifest.object).is_some_and(|observed| manifest.holds(observed));
    // The Pods are deleted first.
    let leftovers = nameserver::leftovers(&inputs, &wanted);
    let written = owned_objects::write(context, "object of the nameserver", &wanted, is_current, leftovers).await;
    if effective.is_some() {
        // The API server would reject a retry as well: report it.
        let failure = written.as_ref().err().filter(|error| error.refused()).map(ToString::to_string);
        if written.is_ok() || failure.is_some() {
            for (name, status) in nameserver::statuses(&configs, &inputs, failure.as_deref(), Timestamp::now()) {
                context.actor.patch(OF, ("", &name), ObjectPart::Status, &json!({ "status": whole(&status) })).await?;
            }
        }
    }
    written?;
    // The Tailscale operator sets a finalizer; Kubernetes deletes the objects with their owner.
    for config in configs.iter().filter(|config| is_uninstall || config.metadata.deletion_timestamp.is_some()) {
        let name = config.metadata.name.as_deref().unwrap_or_default();
        if let Some(finalizers) = finalizers::change(&config.metadata, FINALIZER, false) {
            let version = context.stores.cache().text_version(WatchRole::DnsConfig, name);
            let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
            context.actor.patch(OF, ("", name), ObjectPart::Object, &patch).await?;
        }
    }
    Ok(WorkOutcome::Done)
}

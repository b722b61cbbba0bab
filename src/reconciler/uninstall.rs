//! Uninstall: releases every workload, what they use, and what they share.
//!
//! `tailyard uninstall` requests it by an annotation of the reconcilers' Lease, which every candidate reads. Workloads are released by the
//! order of their deletion; the objects of users stay, without finalizers. The Lease reports the progress.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::LEASE;
use super::cache::WorkKey;
use super::context::Context;
use crate::api::names;
use crate::edge::kube::{KubeError, ObjectPart, Resource};
use crate::model::controller::kinds::ExcludingSetting;
use crate::model::controller::policy::assignment::uninstall_time;
use crate::model::controller::workload::actions::Delete;
use crate::model::controller::workload::objects::certificate::accounts_ref;

/// Interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum objects that a report names.
const MAX_NAMED: usize = 5;

/// Follows the value of the annotation: a time; any other value counts from its first read.
pub async fn follow(context: Arc<Context>, mut requested: watch::Receiver<Option<String>>) {
    let (mut current, mut reported) = (None, None);
    loop {
        let request = requested.borrow_and_update().clone();
        if request != current {
            let time = request.as_deref().map(|text| uninstall_time(text, Timestamp::now()));
            tracing::warn!(
                lease = LEASE,
                "{}",
                if time.is_some() { "uninstall requested: releasing everything" } else { "uninstall cancelled" }
            );
            let keys = {
                let mut cache = context.stores.cache();
                cache.set_uninstall(time);
                cache.all()
            };
            for key in keys {
                context.stores.queue().add(key);
            }
            (current, reported) = (request, None);
        }
        if current.is_some() && context.actor.writes().open() && context.stores.is_synced() {
            match progress(&context, reported.as_deref()).await {
                Ok(text) => reported = Some(text),
                Err(KubeError::NotLeading { .. }) => {}
                Err(error) => tracing::warn!(reason = error.reason(), "cannot finish the uninstall, retrying: {error}"),
            }
        }
        let changed = requested.changed();
        let ended = if current.is_some() {
            timeout(REPORT_INTERVAL, changed).await.is_ok_and(|ended| ended.is_err())
        } else {
            changed.await.is_err()
        };
        if ended {
            return;
        }
    }
}

/// Releases what workloads use and share, once they are released, and reports what remains, unless reported already.
async fn progress(context: &Context, reported: Option<&str>) -> Result<String, KubeError> {
    let (remaining, text) = {
        let cache = context.stores.cache();
        let remaining = cache.remaining();
        let text = describe(&remaining, |key| cache.excluded_by(key));
        (remaining, text)
    };
    for key in remaining.iter().filter(|key| !matches!(key, WorkKey::Workload(_))) {
        context.stores.queue().add(key.clone());
    }
    if remaining.is_empty() && reported != Some(names::UNINSTALLED) {
        release_shared(context).await?;
    }
    if reported != Some(&text) {
        tracing::info!(remaining = text, "uninstall");
        let patch = json!({"metadata": {"annotations": {names::UNINSTALL_REMAINING: text}}});
        let namespace = &context.settings.namespace;
        context.actor.writes().merge(Resource::LEASE, namespace, LEASE, ObjectPart::Object, &patch).await?;
    }
    Ok(text)
}

/// Deletes the Secret of shared ACME accounts, and the Leases of groups: their owners stay.
async fn release_shared(context: &Context) -> Result<(), KubeError> {
    let (writes, namespace) = (context.actor.writes(), &context.settings.namespace);
    let (has_accounts, groups) = {
        let cache = context.stores.cache();
        (cache.has_unused_accounts(namespace), cache.group_names())
    };
    if has_accounts {
        let patch = json!({"metadata": {"finalizers": null}});
        writes.merge(Resource::SECRET, namespace, names::ACCOUNTS, ObjectPart::Object, &patch).await?;
        writes.delete(&Delete { object: accounts_ref(namespace), uid: None }).await?;
    }
    for group in groups {
        writes.delete_lease(&names::issuer(&group)).await?;
    }
    Ok(())
}

/// What remains; those that a setting excludes last. If it excludes all, waiting is in vain.
fn describe(remaining: &[WorkKey], excluded_by: impl Fn(&WorkKey) -> Option<ExcludingSetting>) -> String {
    if remaining.is_empty() {
        return names::UNINSTALLED.to_owned();
    }
    let (excluded, waiting): (Vec<_>, Vec<_>) = remaining.iter().map(|key| (key, excluded_by(key))).partition(|(_, by)| by.is_some());
    let prefix = if waiting.is_empty() { names::UNINSTALL_EXCLUDED } else { "" };
    let named = waiting.iter().chain(&excluded).take(MAX_NAMED).map(|(key, by)| {
        let by = by.map_or_else(String::new, |by| format!(" ({})", by.text()));
        format!("{} {}{by}", key.kind(), key.name())
    });
    let others = remaining.len().saturating_sub(MAX_NAMED);
    let others = (others > 0).then(|| format!("{others} more"));
    format!("{prefix}{}", named.chain(others).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::key::WorkloadKey;

    #[test]
    fn report_names_some_objects_and_counts_the_others() {
        let classes: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].map(|name| WorkKey::Class(name.to_owned())).into();
        let describe = |remaining: &[WorkKey]| describe(remaining, |_| None);
        assert_eq!(describe(&classes[..1]), "ProxyClass a");
        let text = "ProxyClass a, ProxyClass b, ProxyClass c, ProxyClass d, ProxyClass e, 2 more";
        assert_eq!((describe(&classes).as_str(), describe(&[]).as_str()), (text, "nothing"));
    }

    #[test]
    fn report_names_the_setting_that_excludes_an_object() {
        let keys = ["a", "b"].map(|name| WorkKey::Workload(WorkloadKey::of_group(name)));
        let describe = |remaining: &[WorkKey]| describe(remaining, |key| (key.name() == "a").then_some(ExcludingSetting::Standalone));
        assert_eq!(describe(&keys), "ProxyGroup b, ProxyGroup a (standalone.enabled is false)", "b may still be released");
        assert_eq!(describe(&keys[..1]), "cannot release ProxyGroup a (standalone.enabled is false)");
    }
}

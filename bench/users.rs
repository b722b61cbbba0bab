//! Users of egress Services: they make them, and see when they are ready.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, iter};
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::stage::Stage;

/// Services that are made at a time.
const AT_ONCE: usize = 16;

/// The users of a cluster.
pub(crate) struct Users {
    services: Api<Service>,
    news: BoxStream<'static, watcher::Result<Service>>,
    ready: BTreeSet<String>,
}

impl Users {
    /// Users who see their Services.
    pub(crate) fn watch(stage: &Stage) -> Self {
        let services = stage.users();
        let news = watcher(services.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
        Self { services, news, ready: BTreeSet::new() }
    }

    /// Makes the Services of these numbers.
    pub(crate) async fn make(&self, group: &str, numbers: Range<usize>) -> Result<()> {
        let one = async |number: usize| {
            let service = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("service-{number}"), "annotations": {
                    "tailscale.com/proxy-group": group, "tailscale.com/tailnet-ip": format!("100.64.{}.{}", number / 250 % 64, number % 250)}},
                "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
            self.services.create(&PostParams::default(), &serde_json::from_value(service)?).await.context("a Service is made")?;
            anyhow::Ok(())
        };
        iter(numbers).map(one).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// Waits until so many of them are ready and stand for a child.
    pub(crate) async fn ready(&mut self, count: usize, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.ready.len() < count {
            let wait = patience.saturating_sub(begun.elapsed());
            let news = tokio::time::timeout(wait, self.news.next()).await;
            let service = news.with_context(|| format!("{} of {count} are ready", self.ready.len()))?.context("the watch ended")??;
            if is_ready(&service) {
                self.ready.insert(service.name_any());
            } else {
                self.ready.remove(&service.name_any());
            }
        }
        Ok(())
    }
}

fn is_ready(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready =
        conditions.into_iter().flatten().any(|held| held.type_ == "TailscaleEgressSvcReady" && held.reason == "ReadyToRouteTraffic");
    let name = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref());
    ready && name.is_some_and(|name| name.ends_with(".svc.cluster.local"))
}

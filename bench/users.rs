//! Users of Services, of a group or standalone: they make them, and see when they are ready.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, iter};
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Services that are made at a time.
const AT_ONCE: usize = 16;

/// Annotations, labels and spec of a Service of a group, or of a class, by its number.
type Content = Box<dyn Fn(&str, usize) -> [Value; 3]>;

/// The users of a cluster.
pub(crate) struct Users {
    services: Api<Service>,
    content: Content,
    is_ready: fn(&Service) -> bool,
    changes: BoxStream<'static, watcher::Result<Service>>,
    ready: BTreeSet<String>,
}

impl Users {
    /// Users with a watch on their Services. Each Service has port 80 of the address that `target` returns for its number.
    pub(crate) fn watch(services: Api<Service>, target: impl Fn(usize) -> String + 'static) -> Self {
        let content = move |group: &str, number| {
            let annotations = json!({"tailscale.com/proxy-group": group, "tailscale.com/tailnet-ip": target(number)});
            let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
            [annotations, json!({}), json!({"type": "ExternalName", "externalName": "placeholder.invalid", "ports": ports})]
        };
        Self::with(services, Box::new(content), is_ready)
    }

    /// Users of Services with a proxy each, which are ready when their status has its addresses.
    pub(crate) fn standalone(services: Api<Service>) -> Self {
        let content = |class: &str, _| {
            let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
            let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "allocateLoadBalancerNodePorts": false,
                "selector": {"app": "none"}, "ports": ports});
            [json!({}), json!({"tailscale.com/proxy-class": class}), spec]
        };
        Self::with(services, Box::new(content), has_address)
    }

    fn with(services: Api<Service>, content: Content, is_ready: fn(&Service) -> bool) -> Self {
        let changes = watcher(services.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
        Self { services, content, is_ready, changes, ready: BTreeSet::new() }
    }

    /// Makes the Services of these numbers, of a group; standalone ones are of a class.
    pub(crate) async fn make(&self, group: &str, numbers: Range<usize>) -> Result<()> {
        let one = async |number: usize| {
            let [annotations, labels, spec] = (self.content)(group, number);
            let service = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("service-{number}"), "annotations": annotations, "labels": labels}, "spec": spec});
            self.services.create(&PostParams::default(), &serde_json::from_value(service)?).await.context("a Service is made")?;
            anyhow::Ok(())
        };
        iter(numbers).map(one).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// Waits until this number of Services is ready and has a child.
    pub(crate) async fn ready(&mut self, count: usize, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.ready.len() < count {
            let wait = patience.saturating_sub(begun.elapsed());
            self.hear(wait).await.with_context(|| format!("{} of {count} are ready", self.ready.len()))?;
        }
        Ok(())
    }

    /// Waits until the external name of a Service is that of its child; returns it in full.
    pub(crate) async fn child(&mut self, number: usize, patience: Duration) -> Result<String> {
        let (begun, name) = (Instant::now(), format!("service-{number}"));
        loop {
            let service = self.hear(patience.saturating_sub(begun.elapsed())).await?;
            if let Some(child) = child(&service).filter(|_| service.name_any() == name) {
                return Ok(child.to_owned());
            }
        }
    }

    /// The next change of a Service.
    async fn hear(&mut self, patience: Duration) -> Result<Service> {
        let service = tokio::time::timeout(patience, self.changes.next()).await.context("no news")?.context("the watch ended")??;
        if (self.is_ready)(&service) {
            self.ready.insert(service.name_any());
        } else {
            self.ready.remove(&service.name_any());
        }
        Ok(service)
    }
}

fn is_ready(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "TailscaleEgressSvcReady" && condition.reason == "ReadyToRouteTraffic");
    ready && child(service).is_some()
}

/// Whether the status of a Service has an address.
fn has_address(service: &Service) -> bool {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_ref()).is_some_and(|ingress| ingress.iter().any(|entry| entry.ip.is_some()))
}

/// The child in the external name of a Service.
fn child(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.external_name.as_deref().filter(|name| name.ends_with(".svc.cluster.local"))
}

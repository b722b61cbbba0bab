//! Metrics of the reconciler: events are counted, state is sampled at each scrape.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::edge::kube::{DropObserver, Verb};
use crate::runtime::metrics::{Counter, Histogram, Kind, MetricsError, Registry, Sampled, number};
use crate::runtime::queue::Depth;

use controller_runtime::ControllerRuntimeMetrics;
use failover::FailoverMetrics;
use ingress::IngressMetrics;

mod controller_runtime;
mod failover;
mod ingress;

/// From a cache hit to a slow control plane, in seconds.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// All metric families of the reconciler.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconciles: Counter<2>,
    seconds: Histogram<1>,
    errors: Counter<2>,
    requests: Counter<3>,
    writes: Counter<2>,
    watch_faults: Counter<2>,
    dropped_events: Counter<0>,
    failover: FailoverMetrics,
    controller_runtime: ControllerRuntimeMetrics,
    leader: Sampled<0>,
    synced: Sampled<0>,
    depth: Sampled<1>,
    oldest: Sampled<0>,
    groups: Sampled<0>,
    services: Sampled<0>,
    objects: Sampled<1>,
    unserved: Sampled<0>,
    planes: Sampled<1>,
    /// Names, certificates and faults of Ingresses.
    pub ingress: IngressMetrics,
}

/// Sampled values of a scrape.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub leader: bool,
    /// Whether every watch has had its first complete list.
    pub synced: bool,
    pub depth: Depth,
    /// Age of the oldest ready key.
    pub oldest: Option<Duration>,
    pub groups: usize,
    /// Of these, groups of types that we do not serve.
    pub unserved: usize,
    /// Users' Services of groups.
    pub services: usize,
    /// Lost replicas by group.
    pub lost: BTreeMap<String, usize>,
    /// Cached objects by kind.
    pub objects: Vec<(&'static str, usize)>,
    /// Tested control planes by Tailnet name, and whether they are usable.
    pub planes: Vec<(String, bool)>,
}

impl Metrics {
    /// Creates every family. Fails on duplicate or malformed names: a bug.
    pub fn new() -> Result<Self, MetricsError> {
        let mut registry = Registry::default();
        let r = &mut registry;
        let build = r.gauge("tailyard_reconciler_build_info", "The version that runs; always 1", ["version"])?;
        build.set([env!("CARGO_PKG_VERSION")], 1.0);
        Ok(Self {
            reconciles: r.counter("tailyard_reconcile_total", "Reconciliations of an object, by outcome", ["kind", "outcome"])?,
            seconds: r.histogram(
                "tailyard_reconcile_duration_seconds",
                "Duration of a reconciliation, including writes",
                ["kind"],
                &SECONDS,
            )?,
            errors: r.counter("tailyard_reconcile_errors_total", "Failed reconciliations, which are retried", ["kind", "reason"])?,
            requests: r.counter(
                "tailyard_api_requests_total",
                "Requests to the API server, without watches and the Lease",
                ["verb", "kind", "outcome"],
            )?,
            writes: r.counter("tailyard_api_writes_total", "Requests that changed an object", ["verb", "kind"])?,
            watch_faults: r.counter("tailyard_watch_errors_total", "Watches of the API server that failed", ["kind", "reason"])?,
            dropped_events: r.counter(
                "tailyard_events_dropped_total",
                "Events that were not written because their namespace or all together had more than their rate",
                [],
            )?,
            failover: FailoverMetrics::new(r)?,
            leader: r.sampled("tailyard_leader", Kind::Gauge, "1 if this process is the leader, which writes", []),
            synced: r.sampled("tailyard_caches_synced", Kind::Gauge, "1 once every cache is complete; nothing is written before", []),
            depth: r.sampled(
                "tailyard_workqueue_depth",
                Kind::Gauge,
                "Keys of the work queue by state: ready, waiting, running, failing",
                ["state"],
            ),
            oldest: r.sampled("tailyard_workqueue_oldest_item_age_seconds", Kind::Gauge, "How long the oldest ready key has waited", []),
            groups: r.sampled("tailyard_proxygroups", Kind::Gauge, "ProxyGroups", []),
            services: r.sampled("tailyard_proxygroup_services", Kind::Gauge, "Services of users that request a ProxyGroup or have one", []),
            unserved: r.sampled(
                "tailyard_unmanaged_proxygroups",
                Kind::Gauge,
                "ProxyGroups of a type that this reconciler does not manage",
                [],
            ),
            planes: r.sampled(
                "tailyard_control_plane_ready",
                Kind::Gauge,
                "1 if the control plane accepts the credentials, by Tailnet; `_default` is the reconciler's default",
                ["tailnet"],
            ),
            ingress: IngressMetrics::new(r),
            objects: r.sampled("tailyard_cache_objects", Kind::Gauge, "Objects in the caches", ["kind"]),
            controller_runtime: ControllerRuntimeMetrics::new(r)?,
            registry,
        })
    }

    /// Counts a reconciliation.
    pub fn reconciled(&self, kind: &str, took: Duration, error: Option<&str>) {
        self.reconciles.inc([kind, if error.is_some() { "error" } else { "ok" }]);
        self.seconds.observe([kind], took.as_secs_f64());
        self.controller_runtime.reconciled(kind, took, error.is_some());
        if let Some(error) = error {
            self.errors.inc([kind, error]);
        }
    }

    /// Counts an API request.
    pub fn requested(&self, verb: Verb, kind: &str, fault: Option<&str>) {
        self.requests.inc([verb.name(), kind, fault.unwrap_or("ok")]);
        let changes = matches!(verb, Verb::Patch | Verb::Create | Verb::Update | Verb::Delete);
        if changes && fault.is_none() {
            self.writes.inc([verb.name(), kind]);
        }
    }

    pub fn watch_lost(&self, kind: &str, error: &str) {
        self.watch_faults.inc([kind, error]);
    }

    /// Counts Events that are not written.
    pub fn drop_observer(self: &Arc<Self>) -> DropObserver {
        let metrics = Arc::clone(self);
        Arc::new(move || metrics.dropped_events.inc([]))
    }

    /// Counts a health probe of a replica.
    pub fn probed(&self, answered: bool) {
        self.failover.probes.inc([if answered { "answered" } else { "missed" }]);
    }

    /// Counts a lost replica whose Pod was made unready.
    pub fn made_unready(&self, group: &str) {
        self.failover.marks.inc([group]);
    }

    /// Counts a replica that another reconciler reaches and this one does not.
    pub fn disputed(&self, group: &str) {
        self.failover.disputes.inc([group]);
    }

    /// Page of a scrape.
    pub fn page(&self, now: &Snapshot) -> String {
        let flag = |on: bool| if on { 1.0 } else { 0.0 };
        let mut page = self.registry.page();
        page.write(&self.leader, [([], flag(now.leader))]);
        page.write(&self.synced, [([], flag(now.synced))]);
        self.controller_runtime.write(now.depth, &mut page);
        let Depth { ready, waiting, running, failing } = now.depth;
        let depth = [("ready", ready), ("waiting", waiting), ("running", running), ("failing", failing)];
        page.write(&self.depth, depth.map(|(state, count)| ([state], size(count))));
        page.write(&self.oldest, [([], now.oldest.unwrap_or_default().as_secs_f64())]);
        page.write(&self.groups, [([], size(now.groups))]);
        page.write(&self.unserved, [([], size(now.unserved))]);
        page.write(&self.planes, now.planes.iter().map(|(tailnet, works)| ([tailnet.as_str()], flag(*works))));
        page.write(&self.failover.lost, now.lost.iter().map(|(group, count)| ([group.as_str()], size(*count))));
        page.write(&self.services, [([], size(now.services))]);
        page.write(&self.objects, now.objects.iter().map(|(kind, count)| ([*kind], size(*count))));
        // Only the leader reconciles groups; summaries of an earlier leadership are outdated.
        if now.leader {
            self.ingress.write(&mut page);
        }
        page.finish()
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

fn size(count: usize) -> f64 {
    number(count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::key::WorkloadKey;
    use crate::model::controller::workload::actions::Notice;
    use crate::model::controller::workload::proxy_state::ProxyState;

    #[test]
    fn page_has_exactly_the_reconciler_series() {
        let metrics = Metrics::new().expect("families");
        metrics.reconciled("ProxyGroup", Duration::from_millis(3), Some("Conflict"));
        metrics.requested(Verb::Patch, "Service", None);
        metrics.requested(Verb::Patch, "Service", Some("Conflict"));
        metrics.requested(Verb::Get, "Secret", None);
        let (objects, planes) = (vec![("Pod", 4)], vec![("t".into(), true)]);
        let page = metrics.page(&Snapshot { leader: true, groups: 2, objects, planes, ..Snapshot::default() });
        let expected = [
            r#"controller_runtime_reconcile_errors_total{controller="proxygroup-reconciler"} 1"#,
            r#"controller_runtime_reconcile_time_seconds_count{controller="proxygroup-reconciler"} 1"#,
            r#"controller_runtime_reconcile_time_seconds_sum{controller="proxygroup-reconciler"} 0.003"#,
            r#"controller_runtime_reconcile_total{controller="proxygroup-reconciler",result="error"} 1"#,
            r#"tailyard_api_requests_total{kind="Secret",outcome="ok",verb="get"} 1"#,
            r#"tailyard_api_requests_total{kind="Service",outcome="Conflict",verb="patch"} 1"#,
            r#"tailyard_api_requests_total{kind="Service",outcome="ok",verb="patch"} 1"#,
            r#"tailyard_api_writes_total{kind="Service",verb="patch"} 1"#,
            r#"tailyard_cache_objects{kind="Pod"} 4"#,
            "tailyard_caches_synced 0",
            r#"tailyard_connectors{state="failed"} 0"#,
            r#"tailyard_connectors{state="pending"} 0"#,
            r#"tailyard_connectors{state="ready"} 0"#,
            r#"tailyard_connectors{state="rejected"} 0"#,
            r#"tailyard_control_plane_ready{tailnet="t"} 1"#,
            "tailyard_leader 1",
            "tailyard_proxygroup_services 0",
            "tailyard_proxygroups 2",
            r#"tailyard_reconcile_duration_seconds_count{kind="ProxyGroup"} 1"#,
            r#"tailyard_reconcile_duration_seconds_sum{kind="ProxyGroup"} 0.003"#,
            r#"tailyard_reconcile_errors_total{kind="ProxyGroup",reason="Conflict"} 1"#,
            r#"tailyard_reconcile_total{kind="ProxyGroup",outcome="error"} 1"#,
            r#"tailyard_standalone_proxies{kind="Ingress",state="failed"} 0"#,
            r#"tailyard_standalone_proxies{kind="Ingress",state="pending"} 0"#,
            r#"tailyard_standalone_proxies{kind="Ingress",state="ready"} 0"#,
            r#"tailyard_standalone_proxies{kind="Ingress",state="rejected"} 0"#,
            r#"tailyard_standalone_proxies{kind="Service",state="failed"} 0"#,
            r#"tailyard_standalone_proxies{kind="Service",state="pending"} 0"#,
            r#"tailyard_standalone_proxies{kind="Service",state="ready"} 0"#,
            r#"tailyard_standalone_proxies{kind="Service",state="rejected"} 0"#,
            "tailyard_unmanaged_proxygroups 0",
            r#"tailyard_workqueue_depth{state="failing"} 0"#,
            r#"tailyard_workqueue_depth{state="ready"} 0"#,
            r#"tailyard_workqueue_depth{state="running"} 0"#,
            r#"tailyard_workqueue_depth{state="waiting"} 0"#,
            "tailyard_workqueue_oldest_item_age_seconds 0",
            r#"workqueue_depth{controller="tailyard-reconciler",name="tailyard-reconciler"} 0"#,
        ];
        let mut shown: Vec<&str> =
            page.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{") && !line.contains("_build_info{")).collect();
        shown.sort_unstable();
        assert_eq!(shown, expected, "in {page}");
    }

    #[test]
    fn standalone_proxies_are_counted_by_kind_and_state_until_they_end() {
        let metrics = Metrics::new().expect("families");
        let page = || {
            let page = metrics.page(&Snapshot { leader: true, ..Snapshot::default() });
            let counted = page.lines().filter(|line| line.starts_with("tailyard_standalone_proxies{") && !line.ends_with(" 0"));
            counted.map(str::to_owned).collect::<Vec<_>>()
        };
        let service = |name: &str| WorkloadKey::Service("a".into(), name.into());
        let ingress = WorkloadKey::Ingress("a".into(), "x".into());
        for name in ["x", "y"] {
            metrics.ingress.proxy(&service(name), Some(ProxyState::Pending));
        }
        metrics.ingress.proxy(&ingress, Some(ProxyState::Rejected));
        let rejected = r#"tailyard_standalone_proxies{kind="Ingress",state="rejected"} 1"#;
        assert_eq!(page(), [rejected, r#"tailyard_standalone_proxies{kind="Service",state="pending"} 2"#]);
        metrics.ingress.proxy(&service("x"), Some(ProxyState::Ready));
        metrics.ingress.proxy(&service("y"), None);
        assert_eq!(page(), [rejected, r#"tailyard_standalone_proxies{kind="Service",state="ready"} 1"#]);
        metrics.ingress.retain(&[service("x")].into());
        assert_eq!(page().len(), 1, "the Ingress was deleted during the term of another process");
    }

    #[test]
    fn faults_of_ingresses_are_counted_by_reason_until_they_end() {
        let metrics = Metrics::new().expect("families");
        let page = |leader| {
            let page = metrics.page(&Snapshot { leader, ..Snapshot::default() });
            page.lines().filter(|line| line.starts_with("tailyard_ingress_faults{")).map(str::to_owned).collect::<Vec<_>>()
        };
        let fault = |name: usize, reason, message: &str| {
            let subject = WorkloadKey::Ingress("a".into(), name.to_string());
            Notice { subject, warning: true, reason, message: message.into() }
        };
        let (group, own) = (WorkloadKey::ProxyGroup("g".into()), WorkloadKey::Ingress("a".into(), "x".into()));
        let many: Vec<_> = (0..300).flat_map(|name| [fault(name, "R", "one"), fault(name, "R", "two")]).collect();
        metrics.ingress.faults(&group, &many);
        metrics.ingress.faults(&own, &[fault(1, "R", "x"), fault(1, "S", "x"), Notice { warning: false, ..fault(1, "Moving", "x") }]);
        let (r, s) = (r#"tailyard_ingress_faults{reason="R"}"#, r#"tailyard_ingress_faults{reason="S"}"#);
        assert_eq!(page(true), [format!("{r} 301"), format!("{s} 1")], "one series for each reason");
        assert_eq!(page(false), [""; 0], "only the leader knows");
        metrics.ingress.faults(&group, &many[..2]);
        assert_eq!(page(true), [format!("{r} 2"), format!("{s} 1")]);
        metrics.ingress.retain(&[group.clone()].into());
        assert_eq!(page(true), [format!("{r} 1")], "its Ingress was deleted during the term of another process");
        metrics.ingress.faults(&group, &[]);
        assert_eq!(page(true), [""; 0]);
    }
}

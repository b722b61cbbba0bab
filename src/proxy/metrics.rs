//! Metric families of the data plane, and the page of a scrape.
//!
//! State is sampled at each scrape ([`Snapshot`]); only events between scrapes are counted ([`follow`]). Labels are names of services, DNS
//! names, and closed sets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::edge::conntrack::Pressure;
use crate::model::firewall::Traffic;
use crate::model::plan::Planned;
use crate::model::tailnet::health::Blocker;
use crate::model::tailnet::serve_config::FunnelError;
use crate::runtime::metrics::{MetricsError, Page, Registry, number};

use crate::proxy::api_server::stats::ApiServerSample;
use crate::proxy::forwarding::flow_cleanup::TerminatedFlows;
use crate::proxy::forwarding::resolve::ResolveReport;
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::front_end;
use crate::proxy::state_secret::writer::WriterHealth;
use crate::proxy::tailnet::daemon::DaemonState;

use api_server::ApiServerMetrics;
use certs::CertMetrics;
use errors::LastErrors;
use inputs::Inputs;
use kernel::KernelMetrics;
use services::Services;
use sites::SiteMetrics;

/// Declares a struct of sampled families: for each its kind, name, labels and help, in the order of docs/metrics.md.
macro_rules! families {
    ($group:ident { $($field:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal,)+ }) => {
        #[derive(Debug)]
        pub(super) struct $group {
            $($field: crate::runtime::metrics::Sampled<{ const LABELS: &[&str] = &[$($label),*]; LABELS.len() }>,)+
        }

        impl $group {
            pub(super) fn new(registry: &mut crate::runtime::metrics::Registry) -> Self {
                use crate::runtime::metrics::Kind;
                Self { $($field: registry.sampled($name, Kind::$kind, $help, [$($label),*]),)+ }
            }
        }
    };
}

mod api_server;
mod certs;
mod errors;
mod inputs;
mod kernel;
mod services;
mod sites;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    services: Services,
    kernel: KernelMetrics,
    inputs: Inputs,
    sites: SiteMetrics,
    api_server: ApiServerMetrics,
    certs: CertMetrics,
    last_errors: Mutex<LastErrors>,
}

#[derive(Debug, Clone)]
pub struct Snapshot {
    pub now: Instant,
    /// The same time since 1970.
    pub unix_time: Duration,
    /// Ruleset lag; `None` if unknown.
    pub behind: Option<Duration>,
    /// Reasons against readiness.
    pub blockers: Vec<Blocker>,
    /// Tasks without recent progress.
    pub stalled: Vec<&'static str>,
    pub planned: Option<Arc<Planned>>,
    pub programmed: Programmed,
    /// Traffic counters by match port; `None` if unreadable.
    pub traffic: Option<Traffic>,
    /// Usage of the conntrack table; `None` if unreadable.
    pub pressure: Option<Pressure>,
    pub ended: TerminatedFlows,
    /// Configs by name.
    pub configs: BTreeMap<&'static str, ConfigState>,
    pub names: Arc<ResolveReport>,
    /// tailscaled, if supervised.
    pub daemon: Option<DaemonState>,
    /// Number of restarts after crashes.
    pub crashes: u64,
    /// State Secret writer, if any.
    pub report: Option<WriterHealth>,
    /// HTTP front end, if any.
    pub sites: Option<front_end::FrontEndSample>,
    /// Requests to the API server.
    pub api_server: ApiServerSample,
    pub funnel_errors: BTreeMap<String, FunnelError>,
    /// Certificates, if used.
    pub certs: Option<CertState>,
}

#[derive(Debug, Clone, Default)]
pub struct ConfigState {
    /// Source of the document in force; `None` before the first.
    pub source: Option<&'static str>,
    /// Time in force.
    pub age: Duration,
    /// Reason of a rejected newer copy.
    pub fault: Option<&'static str>,
}

#[derive(Debug, Clone, Default)]
pub struct CertState {
    pub state: Arc<crate::model::ingress::cert_store::CertStoreState>,
    /// Whether this replica is the cert leader.
    pub leads: bool,
}

impl Metrics {
    /// Creates all families. Fails on duplicate or malformed names: a bug.
    pub fn new() -> Result<Self, MetricsError> {
        let mut registry = Registry::default();
        let build = registry.gauge("tailyard_build_info", "The version that runs; always 1", ["version"])?;
        build.set([env!("CARGO_PKG_VERSION")], 1.0);
        let services = Services::new(&mut registry);
        let kernel = KernelMetrics::new(&mut registry)?;
        let inputs = Inputs::new(&mut registry);
        let sites = SiteMetrics::new(&mut registry);
        let api_server = ApiServerMetrics::new(&mut registry);
        let certs = CertMetrics::new(&mut registry);
        Ok(Self { registry, services, kernel, inputs, sites, api_server, certs, last_errors: Mutex::default() })
    }

    /// The page of a scrape, followed by tailscaled's own metrics, unchanged.
    pub fn page(&self, snapshot: &Snapshot, usermetrics: Option<&str>) -> String {
        let mut page = self.registry.page();
        self.services.write(&mut page, snapshot, &self.last_errors.lock().unwrap_or_else(PoisonError::into_inner));
        self.kernel.write(&mut page, snapshot);
        self.inputs.write(&mut page, snapshot);
        self.sites.write(&mut page, snapshot);
        self.api_server.write(&mut page, &snapshot.api_server);
        self.certs.write(&mut page, snapshot);
        if let Some(text) = usermetrics {
            page.append(text);
        }
        page.finish()
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    fn planned(&self, planned: &Planned, now: Instant) {
        self.last_errors.lock().unwrap_or_else(PoisonError::into_inner).planned(&planned.plan, now);
    }
}

/// Counts events between scrapes; ends when the senders are dropped.
pub async fn follow(
    metrics: Arc<Metrics>,
    mut planned: watch::Receiver<Option<Arc<Planned>>>,
    mut programmed: watch::Receiver<Programmed>,
) {
    let mut before = Programmed::default();
    loop {
        let newest = planned.borrow_and_update().clone();
        if let Some(newest) = newest {
            metrics.planned(&newest, Instant::now());
        }
        let after = programmed.borrow_and_update().clone();
        metrics.kernel.programmed(&before, &after);
        before = after;
        let changed = tokio::select! {
            changed = planned.changed() => changed,
            changed = programmed.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

impl Snapshot {
    /// Timestamp of an age: seconds since 1970, rounded to milliseconds, so that an unchanged value is equal in each scrape.
    fn at(&self, age: Duration) -> f64 {
        Duration::from_millis(u64::try_from(self.unix_time.saturating_sub(age).as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
    }

    /// Timestamp of an earlier time.
    fn of(&self, time: Instant) -> f64 {
        self.at(self.now.saturating_duration_since(time))
    }
}

fn size(count: usize) -> f64 {
    number(count as u64)
}

/// Counts equal words.
fn tally<'a>(words: impl IntoIterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

fn flag(on: bool) -> f64 {
    if on { 1.0 } else { 0.0 }
}

/// Writes one value without labels.
fn one(page: &mut Page, family: &crate::runtime::metrics::Sampled<0>, value: f64) {
    page.write(family, [([], value)]);
}

#[cfg(test)]
mod tests;

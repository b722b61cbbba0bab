//! Every metric of the data plane: its families, and the page of a scrape.
//!
//! What can be read off the state of things is sampled at each scrape ([`Snapshot`]); only what would be lost between two
//! scrapes is counted as it happens ([`follow`]). Labels are few: names of services, of DNS names, and closed sets of words.

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

use crate::proxy::forwarding::flow_cleanup::TerminatedFlows;
use crate::proxy::forwarding::resolve::ResolveReport;
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::ingress::l7;

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
    certs: CertMetrics,
    last_errors: Mutex<LastErrors>,
}

#[derive(Debug, Clone)]
pub struct Snapshot {
    pub now: Instant,
    /// The same moment, since 1970.
    pub unix_time: Duration,
    /// For how long the kernel has been behind the newest plan; nothing where that cannot be said.
    pub behind: Option<Duration>,
    /// What is in the way of readiness.
    pub blockers: Vec<Blocker>,
    /// The tasks that have not run for a while.
    pub stalled: Vec<&'static str>,
    pub planned: Option<Arc<Planned>>,
    pub programmed: Programmed,
    /// What the kernel has counted by match port; nothing if it could not be read.
    pub traffic: Option<Traffic>,
    /// How full the connection table is; nothing if it could not be read.
    pub pressure: Option<Pressure>,
    pub ended: TerminatedFlows,
    /// The configs that were asked for, by name.
    pub configs: BTreeMap<&'static str, ConfigState>,
    pub names: Arc<ResolveReport>,
    /// tailscaled, if it is supervised here.
    pub daemon: Option<DaemonSample>,
    /// How often this program crashed and was started again.
    pub crashes: u64,
    /// The writing of the state Secret, if there is one.
    pub report: Option<ReportState>,
    /// The sites, if this replica serves any over HTTP.
    pub sites: Option<l7::L7Sample>,
    /// The sites that are to be reached from the internet and are not.
    pub funnel_errors: BTreeMap<String, FunnelError>,
    /// The certificates, if names are served with them.
    pub certs: Option<CertState>,
}

#[derive(Debug, Clone, Default)]
pub struct ConfigState {
    /// Where the document in force came from; nothing before the first.
    pub source: Option<&'static str>,
    /// How long it has been in force.
    pub age: Duration,
    /// The kind of what is wrong with the copy that should be in force instead.
    pub fault: Option<&'static str>,
}

#[derive(Debug, Clone, Default)]
pub struct CertState {
    pub state: Arc<crate::model::ingress::cert_store::CertStoreState>,
    /// This replica is the one that orders.
    pub leads: bool,
}

#[derive(Debug, Clone, Default)]
pub struct DaemonSample {
    /// Its state, in one word of a closed set.
    pub state: String,
    /// How long it has been in that state.
    pub age: Duration,
    /// How often it was started again.
    pub restarts: u64,
    pub fault: Option<&'static str>,
}

#[derive(Debug, Clone, Default)]
pub struct ReportState {
    pub writes: u64,
    /// The kind of what keeps the state from being written, and for how long.
    pub fault: Option<(&'static str, Duration)>,
}

impl Metrics {
    /// Creates every family. Fails if two have one name or a name is malformed; that is a fault of this program.
    pub fn new() -> Result<Self, MetricsError> {
        let mut registry = Registry::new();
        let build = registry.gauge("tailyard_build_info", "The version that runs; always 1", ["version"])?;
        build.set([env!("CARGO_PKG_VERSION")], 1.0);
        let services = Services::new(&mut registry);
        let kernel = KernelMetrics::new(&mut registry)?;
        let inputs = Inputs::new(&mut registry);
        let sites = SiteMetrics::new(&mut registry);
        let certs = CertMetrics::new(&mut registry);
        Ok(Self { registry, services, kernel, inputs, sites, certs, last_errors: Mutex::default() })
    }

    /// The page of a scrape; tailscaled's own metrics follow it as they came.
    pub fn page(&self, snapshot: &Snapshot, usermetrics: Option<&str>) -> String {
        let mut page = self.registry.page();
        self.services.write(&mut page, snapshot, &self.last_errors.lock().unwrap_or_else(PoisonError::into_inner));
        self.kernel.write(&mut page, snapshot);
        self.inputs.write(&mut page, snapshot);
        self.sites.write(&mut page, snapshot);
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

/// Counts what happens between scrapes; ends when the senders are gone.
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
    /// When something was that is this old: seconds since 1970, to the millisecond, so that a value that does not change is the same
    /// in each scrape.
    fn at(&self, age: Duration) -> f64 {
        Duration::from_millis(u64::try_from(self.unix_time.saturating_sub(age).as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
    }
}

fn size(count: usize) -> f64 {
    number(count as u64)
}

/// Adds one to the named count.
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

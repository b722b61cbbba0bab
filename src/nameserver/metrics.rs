//! Metrics of the nameserver.

use crate::runtime::metrics::{Counter, Gauge, MetricsError, Registry};

/// All metric families of the nameserver.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub queries: Counter<2>,
    pub records: Gauge<0>,
    pub skipped: Gauge<0>,
    pub loads: Counter<1>,
    pub watch_faults: Counter<1>,
}

impl Metrics {
    /// Creates every family. Fails on duplicate or malformed names: a bug.
    pub fn new() -> Result<Self, MetricsError> {
        let mut registry = Registry::default();
        let r = &mut registry;
        let build = r.gauge("tailyard_nameserver_build_info", "The version that runs; always 1", ["version"])?;
        build.set([env!("CARGO_PKG_VERSION")], 1.0);
        Ok(Self {
            queries: r.counter("tailyard_nameserver_queries_total", "Answers by transport and response code", ["transport", "code"])?,
            records: r.gauge("tailyard_nameserver_records", "Names with addresses", [])?,
            skipped: r.gauge("tailyard_nameserver_records_skipped", "Invalid names and addresses of the document", [])?,
            loads: r.counter(
                "tailyard_nameserver_loads_total",
                "Documents with records by outcome: loaded, rejected or missing; after the latter two the last records stay in force",
                ["outcome"],
            )?,
            watch_faults: r.counter("tailyard_nameserver_watch_errors_total", "Watches of the ConfigMap that failed", ["reason"])?,
            registry,
        })
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

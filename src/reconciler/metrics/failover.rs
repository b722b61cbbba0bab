//! Metrics of failover.

use crate::runtime::metrics::{Counter, Kind, MetricsError, Registry, Sampled};

#[derive(Debug)]
pub(super) struct FailoverMetrics {
    pub(super) probes: Counter<1>,
    pub(super) marks: Counter<1>,
    pub(super) disputes: Counter<1>,
    pub(super) lost: Sampled<1>,
}

impl FailoverMetrics {
    pub(super) fn new(r: &mut Registry) -> Result<Self, MetricsError> {
        Ok(Self {
            probes: r.counter("tailyard_failover_probes_total", "Health probes of replicas by outcome: answered, missed", ["outcome"])?,
            marks: r.counter("tailyard_failover_unready_total", "Pods of lost replicas that this process made unready", ["proxygroup"])?,
            disputes: r.counter(
                "tailyard_failover_disputed_total",
                "Replicas that did not answer this process and stayed ready because another reconciler reached them",
                ["proxygroup"],
            )?,
            lost: r.sampled(
                "tailyard_lost_replicas",
                Kind::Gauge,
                "Replicas whose Pods are unready because they do not answer health probes",
                ["proxygroup"],
            ),
        })
    }
}

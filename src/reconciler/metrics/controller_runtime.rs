//! Families of the Tailscale operator's metrics page, which its library controller-runtime writes: dashboards and alerts on them stay useful.

use std::time::Duration;

use super::SECONDS;
use crate::runtime::metrics::{Counter, Histogram, Kind, MetricsError, Page, Registry, Sampled, number};
use crate::runtime::queue::Depth;

/// Name of the one queue of all kinds.
const QUEUE: &str = "tailyard-reconciler";

#[derive(Debug)]
pub(super) struct ControllerRuntimeMetrics {
    results: Counter<2>,
    errors: Counter<1>,
    seconds: Histogram<1>,
    depth: Sampled<2>,
}

impl ControllerRuntimeMetrics {
    pub(super) fn new(r: &mut Registry) -> Result<Self, MetricsError> {
        Ok(Self {
            results: r.counter(
                "controller_runtime_reconcile_total",
                "As tailyard_reconcile_total, by the controller's name in the Tailscale operator",
                ["controller", "result"],
            )?,
            errors: r.counter(
                "controller_runtime_reconcile_errors_total",
                "As tailyard_reconcile_errors_total, by the controller's name in the Tailscale operator",
                ["controller"],
            )?,
            seconds: r.histogram(
                "controller_runtime_reconcile_time_seconds",
                "As tailyard_reconcile_duration_seconds, by the controller's name in the Tailscale operator",
                ["controller"],
                &SECONDS,
            )?,
            depth: r.sampled(
                "workqueue_depth",
                Kind::Gauge,
                "Ready keys of the work queue, which is one for all kinds; the Tailscale operator has one for each controller",
                ["controller", "name"],
            ),
        })
    }

    /// Counts a reconciliation. The Tailscale operator's controllers have the names of their kinds.
    pub(super) fn reconciled(&self, kind: &str, took: Duration, is_error: bool) {
        let controller = format!("{}-reconciler", kind.to_ascii_lowercase());
        self.results.inc([&controller, if is_error { "error" } else { "success" }]);
        self.seconds.observe([&controller], took.as_secs_f64());
        if is_error {
            self.errors.inc([&controller]);
        }
    }

    pub(super) fn write(&self, depth: Depth, page: &mut Page) {
        page.write(&self.depth, [([QUEUE, QUEUE], number(depth.ready as u64))]);
    }
}

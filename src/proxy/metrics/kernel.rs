//! The ruleset in the kernel, the conntrack table and terminated flows.

use super::{Snapshot, flag, number, one};
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::runtime::metrics::{Counter, Histogram, MetricsError, Page, Registry};

/// From a small difference to a complete rewrite of many services.
const BOUNDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

#[derive(Debug)]
pub(super) struct KernelMetrics {
    seconds: Histogram<0>,
    errors: Counter<1>,
    sampled: SampledKernel,
}

families! {
    SampledKernel {
        elements: Counter "tailyard_ruleset_elements_changed_total" [] "Map elements of the ruleset that were changed",
        current: Gauge "tailyard_ruleset_up_to_date" [] "1 while the ruleset of the newest plan is applied",
        lag: Gauge "tailyard_ruleset_lag_seconds" []
            "For how long the applied ruleset has been older than the newest plan; 0 while it is the newest",
        applied: Gauge "tailyard_ruleset_last_apply_timestamp_seconds" [] "When the ruleset was last applied",
        repairs: Counter "tailyard_ruleset_drift_repairs_total" []
            "Changes to our rules by other programs that were detected and reverted",
        entries: Gauge "tailyard_conntrack_entries" [] "Entries of the conntrack table",
        limit: Gauge "tailyard_conntrack_limit" [] "Limit of the conntrack table; new flows are dropped when it is reached",
        dropped: Counter "tailyard_conntrack_dropped_total" [] "Packets dropped because the conntrack table was full",
        failed: Gauge "tailyard_ruleset_apply_last_error_timestamp_seconds" ["reason"]
            "When the last apply of the ruleset failed; absent once one succeeds",
        ended: Counter "tailyard_conntrack_flows_terminated_total" ["action"] "Flows terminated because their target changed",
        ended_error: Gauge "tailyard_conntrack_cleanup_error" ["reason"] "1 while the last conntrack cleanup failed",
    }
}

impl KernelMetrics {
    pub(super) fn new(registry: &mut Registry) -> Result<Self, MetricsError> {
        let help = "Time from a new plan until its ruleset is applied";
        let seconds = registry.histogram("tailyard_ruleset_apply_duration_seconds", help, [], &BOUNDS)?;
        let errors = registry.counter("tailyard_ruleset_apply_errors_total", "Failed applies of the ruleset", ["reason"])?;
        Ok(Self { seconds, errors, sampled: SampledKernel::new(registry) })
    }

    /// Counts writes between two states of the writer.
    pub(super) fn programmed(&self, before: &Programmed, after: &Programmed) {
        for _ in before.writes..after.writes {
            self.seconds.observe([], after.took.as_secs_f64());
        }
        if let Some((fault, _)) = &after.fault {
            self.errors.add([fault.reason], after.failures.saturating_sub(before.failures));
        }
    }

    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        let sampled = &self.sampled;
        let Snapshot { programmed, ended, .. } = snapshot;
        one(page, &sampled.elements, number(programmed.keys));
        one(page, &sampled.current, flag(programmed.current));
        page.write(&sampled.lag, snapshot.behind.map(|lag| ([], lag.as_secs_f64())));
        page.write(&sampled.applied, programmed.at.map(|at| ([], snapshot.of(at))));
        one(page, &sampled.repairs, number(programmed.repairs));
        if let Some(pressure) = snapshot.pressure {
            one(page, &sampled.entries, f64::from(pressure.entries));
            one(page, &sampled.limit, f64::from(pressure.limit));
            one(page, &sampled.dropped, number(pressure.dropped));
        }
        let fault = programmed.fault.as_ref();
        page.write(&sampled.failed, fault.map(|(fault, at)| ([fault.reason], snapshot.of(*at))));
        let actions = [("deleted", ended.deleted), ("reset", ended.reset), ("unanswered", ended.unanswered)];
        page.write(&sampled.ended, actions.map(|(action, count)| ([action], number(count))));
        page.write(&sampled.ended_error, ended.fault.as_ref().map(|fault| ([fault.reason], 1.0)));
    }
}

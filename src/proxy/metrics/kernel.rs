//! The ruleset in the kernel, the conntrack table and terminated flows.

use super::{Snapshot, flag, number, one};
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::runtime::metrics::{Counter, Histogram, Kind, MetricsError, Page, Registry, Sampled};

/// From a small difference to a complete rewrite of many services.
const BOUNDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

#[derive(Debug)]
pub(super) struct KernelMetrics {
    seconds: Histogram<0>,
    errors: Counter<1>,
    elements: Sampled<0>,
    current: Sampled<0>,
    lag: Sampled<0>,
    applied: Sampled<0>,
    failed: Sampled<1>,
    repairs: Sampled<0>,
    entries: Sampled<0>,
    limit: Sampled<0>,
    dropped: Sampled<0>,
    ended: Sampled<1>,
    ended_error: Sampled<1>,
}

impl KernelMetrics {
    pub(super) fn new(registry: &mut Registry) -> Result<Self, MetricsError> {
        let seconds = registry.histogram(
            "tailyard_ruleset_apply_duration_seconds",
            "Time from a new plan until its ruleset is applied",
            [],
            &BOUNDS,
        )?;
        let errors = registry.counter("tailyard_ruleset_apply_errors_total", "Failed applies of the ruleset", ["reason"])?;
        let mut plain = |name, kind, help| registry.sampled(name, kind, help, []);
        Ok(Self {
            seconds,
            errors,
            elements: plain("tailyard_ruleset_elements_changed_total", Kind::Counter, "Map elements of the ruleset that were changed"),
            current: plain("tailyard_ruleset_up_to_date", Kind::Gauge, "1 while the ruleset of the newest plan is applied"),
            lag: plain(
                "tailyard_ruleset_lag_seconds",
                Kind::Gauge,
                "For how long the applied ruleset has been older than the newest plan; 0 while it is the newest",
            ),
            applied: plain("tailyard_ruleset_last_apply_timestamp_seconds", Kind::Gauge, "When the ruleset was last applied"),
            repairs: plain(
                "tailyard_ruleset_drift_repairs_total",
                Kind::Counter,
                "Changes to our rules by other programs that were detected and reverted",
            ),
            entries: plain("tailyard_conntrack_entries", Kind::Gauge, "Entries of the conntrack table"),
            limit: plain("tailyard_conntrack_limit", Kind::Gauge, "Limit of the conntrack table; new flows are dropped when it is reached"),
            dropped: plain("tailyard_conntrack_dropped_total", Kind::Counter, "Packets dropped because the conntrack table was full"),
            failed: registry.sampled(
                "tailyard_ruleset_apply_last_error_timestamp_seconds",
                Kind::Gauge,
                "When the last apply of the ruleset failed; absent once one succeeds",
                ["reason"],
            ),
            ended: registry.sampled(
                "tailyard_conntrack_flows_terminated_total",
                Kind::Counter,
                "Flows terminated because their target changed",
                ["action"],
            ),
            ended_error: registry.sampled(
                "tailyard_conntrack_cleanup_error",
                Kind::Gauge,
                "1 while the last conntrack cleanup failed",
                ["reason"],
            ),
        })
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
        let Snapshot { now, programmed, ended, .. } = snapshot;
        one(page, &self.elements, number(programmed.keys));
        one(page, &self.current, flag(programmed.current));
        page.write(&self.lag, snapshot.behind.map(|lag| ([], lag.as_secs_f64())));
        page.write(&self.applied, programmed.at.map(|at| ([], snapshot.at(now.saturating_duration_since(at)))));
        one(page, &self.repairs, number(programmed.repairs));
        if let Some(pressure) = snapshot.pressure {
            one(page, &self.entries, f64::from(pressure.entries));
            one(page, &self.limit, f64::from(pressure.limit));
            one(page, &self.dropped, number(pressure.dropped));
        }
        let fault = programmed.fault.as_ref();
        page.write(&self.failed, fault.map(|(fault, at)| ([fault.reason], snapshot.at(now.saturating_duration_since(*at)))));
        let actions = [("deleted", ended.deleted), ("reset", ended.reset), ("unanswered", ended.unanswered)];
        page.write(&self.ended, actions.map(|(action, count)| ([action], number(count))));
        page.write(&self.ended_error, ended.fault.as_ref().map(|fault| ([fault.reason], 1.0)));
    }
}

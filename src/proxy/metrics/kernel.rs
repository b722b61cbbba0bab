//! What the kernel holds: writes of the rules, the connection table, flows that were ended.

use super::{Snapshot, flag, number, one};
use crate::proxy::program::Programmed;
use crate::runtime::metrics::{Counter, Histogram, Kind, MetricsError, Page, Registry, Sampled};

/// From a delta among few services to a whole rewrite of many.
const BOUNDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

#[derive(Debug)]
pub(super) struct Kernel {
    seconds: Histogram<0>,
    errors: Counter<1>,
    keys: Sampled<0>,
    current: Sampled<0>,
    behind: Sampled<0>,
    age: Sampled<0>,
    error_age: Sampled<1>,
    repairs: Sampled<0>,
    entries: Sampled<0>,
    limit: Sampled<0>,
    dropped: Sampled<0>,
    ended: Sampled<1>,
    ended_error: Sampled<1>,
}

impl Kernel {
    pub(super) fn new(registry: &mut Registry) -> Result<Self, MetricsError> {
        let seconds =
            registry.histogram("tailyard_sync_seconds", "Time from a plan to its rules in the kernel, for each write", [], &BOUNDS)?;
        let errors = registry.counter("tailyard_sync_errors_total", "Writes that the kernel or its tool refused", ["kind"])?;
        let mut plain = |name, kind, help| registry.sampled(name, kind, help, []);
        Ok(Self {
            seconds,
            errors,
            keys: plain("tailyard_sync_keys_total", Kind::Counter, "Keys of the kernel's maps that were changed"),
            current: plain("tailyard_sync_current", Kind::Gauge, "1 while the kernel holds the newest plan"),
            behind: plain(
                "tailyard_sync_behind_seconds",
                Kind::Gauge,
                "Time for which the kernel has held an older plan than the newest; 0 while it holds the newest",
            ),
            age: plain("tailyard_sync_age_seconds", Kind::Gauge, "Time since the rules in force were written"),
            repairs: plain("tailyard_repairs_total", Kind::Counter, "Changes by others to our rules that were found and undone"),
            entries: plain("tailyard_conntrack_entries", Kind::Gauge, "Tracked flows of the network namespace"),
            limit: plain("tailyard_conntrack_limit", Kind::Gauge, "Tracked flows at most; new ones are dropped when it is reached"),
            dropped: plain("tailyard_conntrack_dropped_total", Kind::Counter, "Packets dropped because the flow table was full"),
            error_age: registry.sampled(
                "tailyard_sync_error_age_seconds",
                Kind::Gauge,
                "Time since the last write failed, until one succeeds",
                ["kind"],
            ),
            ended: registry.sampled("tailyard_flows_ended_total", Kind::Counter, "Flows ended because their way changed, by how", ["how"]),
            ended_error: registry.sampled(
                "tailyard_flows_ended_error",
                Kind::Gauge,
                "1 while the last attempt to end flows failed",
                ["kind"],
            ),
        })
    }

    /// Counts what happened between two states of the writer.
    pub(super) fn programmed(&self, before: &Programmed, after: &Programmed) {
        for _ in before.writes..after.writes {
            self.seconds.observe([], after.took.as_secs_f64());
        }
        if let Some((fault, _)) = &after.fault {
            self.errors.add([fault.kind], after.failures.saturating_sub(before.failures));
        }
    }

    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        let Snapshot { now, programmed, ended, .. } = snapshot;
        one(page, &self.keys, number(programmed.keys));
        one(page, &self.current, flag(programmed.current));
        page.write(&self.behind, snapshot.behind.map(|behind| ([], behind.as_secs_f64())));
        page.write(&self.age, programmed.at.map(|at| ([], now.saturating_duration_since(at).as_secs_f64())));
        one(page, &self.repairs, number(programmed.repairs));
        if let Some(pressure) = snapshot.pressure {
            one(page, &self.entries, f64::from(pressure.entries));
            one(page, &self.limit, f64::from(pressure.limit));
            one(page, &self.dropped, number(pressure.dropped));
        }
        let fault = programmed.fault.as_ref();
        page.write(&self.error_age, fault.map(|(fault, at)| ([fault.kind], now.saturating_duration_since(*at).as_secs_f64())));
        let how = [("deleted", ended.deleted), ("reset", ended.reset), ("unanswered", ended.unanswered)];
        page.write(&self.ended, how.map(|(how, count)| ([how], number(count))));
        page.write(&self.ended_error, ended.fault.as_ref().map(|fault| ([fault.kind], 1.0)));
    }
}

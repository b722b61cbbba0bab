//! Where the plan comes from and where it is told: readiness, configs, DNS, tailscaled, the state Secret.

use super::{ConfigState, DaemonState, ReportState, Snapshot, flag, number, one, size};
use crate::model::health::Blocker;
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

#[derive(Debug)]
pub(super) struct Inputs {
    ready: Sampled<0>,
    blocked: Sampled<1>,
    stalled: Sampled<1>,
    config_source: Sampled<2>,
    config_age: Sampled<1>,
    config_error: Sampled<2>,
    dns_names: Sampled<0>,
    dns_age: Sampled<1>,
    dns_failing: Sampled<2>,
    dns_failures: Sampled<1>,
    daemon_state: Sampled<1>,
    daemon_age: Sampled<0>,
    daemon_restarts: Sampled<0>,
    daemon_error: Sampled<1>,
    crashes: Sampled<0>,
    report_writes: Sampled<0>,
    report_error: Sampled<1>,
}

impl Inputs {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let (gauge, counter) = (Kind::Gauge, Kind::Counter);
        Self {
            ready: registry.sampled("tailyard_ready", gauge, "1 while /readyz says that new connections may come", []),
            blocked: registry.sampled("tailyard_ready_blocked", gauge, "1 for each blocker that is in the way of readiness", ["blocker"]),
            stalled: registry.sampled("tailyard_task_stalled", gauge, "1 for each task that has not run for 30 s", ["task"]),
            config_source: registry.sampled(
                "tailyard_config_source",
                gauge,
                "1 for where the config in force came from",
                ["config", "source"],
            ),
            config_age: registry.sampled("tailyard_config_age_seconds", gauge, "Time since the config in force came", ["config"]),
            config_error: registry.sampled(
                "tailyard_config_error",
                gauge,
                "1 while the newest copy of the config cannot be used and an older one stays in force",
                ["config", "kind"],
            ),
            dns_names: registry.sampled("tailyard_dns_names", gauge, "DNS names that services lead to", []),
            dns_age: registry.sampled("tailyard_dns_answer_age_seconds", gauge, "Time since the last good answer", ["name"]),
            dns_failing: registry.sampled(
                "tailyard_dns_failing",
                gauge,
                "1 while the last lookup of the name has failed",
                ["name", "kind"],
            ),
            dns_failures: registry.sampled("tailyard_dns_failures_total", counter, "Lookups that failed", ["kind"]),
            daemon_state: registry.sampled("tailyard_tailscaled_state", gauge, "1 for the state that tailscaled is in", ["state"]),
            daemon_age: registry.sampled("tailyard_tailscaled_state_age_seconds", gauge, "Time since tailscaled came into its state", []),
            daemon_restarts: registry.sampled("tailyard_tailscaled_restarts_total", counter, "Times that tailscaled was started again", []),
            daemon_error: registry.sampled("tailyard_tailscaled_error", gauge, "1 for the kind of tailscaled's newest fault", ["kind"]),
            crashes: registry.sampled(
                "tailyard_crashes_total",
                counter,
                "Times that this program crashed and was started again in the same container, while tailscaled went on",
                [],
            ),
            report_writes: registry.sampled("tailyard_state_writes_total", counter, "Times that this replica's state was written", []),
            report_error: registry.sampled(
                "tailyard_state_error_age_seconds",
                gauge,
                "Time for which this replica's state could not be written, until it can",
                ["kind"],
            ),
        }
    }

    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        one(page, &self.ready, flag(snapshot.blockers.is_empty()));
        let blocked = |name: &str| snapshot.blockers.iter().any(|blocker| blocker.name() == name);
        page.write(&self.blocked, Blocker::NAMES.map(|name| ([name], flag(blocked(name)))));
        page.write(&self.stalled, snapshot.stalled.iter().map(|task| ([*task], 1.0)));
        self.write_configs(page, snapshot);
        self.write_dns(page, snapshot);
        if let Some(daemon) = &snapshot.daemon {
            self.write_daemon(page, daemon);
        }
        one(page, &self.crashes, number(snapshot.crashes));
        if let Some(report) = &snapshot.report {
            self.write_report(page, report);
        }
    }

    fn write_configs(&self, page: &mut Page, snapshot: &Snapshot) {
        let known = || snapshot.configs.iter().filter_map(|(name, config)| config.source.map(|source| (*name, source, config)));
        page.write(&self.config_source, known().map(|(name, source, _)| ([name, source], 1.0)));
        page.write(&self.config_age, known().map(|(name, _, config)| ([name], config.age.as_secs_f64())));
        let faulty = |(name, config): (&&'static str, &ConfigState)| config.fault.map(|kind| ([*name, kind], 1.0));
        page.write(&self.config_error, snapshot.configs.iter().filter_map(faulty));
    }

    fn write_dns(&self, page: &mut Page, snapshot: &Snapshot) {
        let (names, now) = (&snapshot.names.names, snapshot.now.into_std());
        one(page, &self.dns_names, size(names.len()));
        let ages = names.iter().filter_map(|(name, status)| {
            let age = now.saturating_duration_since(status.answered?);
            Some(([&**name], age.as_secs_f64()))
        });
        page.write(&self.dns_age, ages);
        let failing = names.iter().filter_map(|(name, status)| Some(([&**name, status.failure?.kind()], 1.0)));
        page.write(&self.dns_failing, failing);
        page.write(&self.dns_failures, snapshot.names.failures.iter().map(|(failure, count)| ([failure.kind()], number(*count))));
    }

    fn write_daemon(&self, page: &mut Page, daemon: &DaemonState) {
        page.write(&self.daemon_state, [([daemon.state.as_str()], 1.0)]);
        one(page, &self.daemon_age, daemon.age.as_secs_f64());
        one(page, &self.daemon_restarts, number(daemon.restarts));
        page.write(&self.daemon_error, daemon.fault.map(|kind| ([kind], 1.0)));
    }

    fn write_report(&self, page: &mut Page, report: &ReportState) {
        one(page, &self.report_writes, number(report.writes));
        page.write(&self.report_error, report.fault.map(|(kind, age)| ([kind], age.as_secs_f64())));
    }
}

//! Readiness, configs, DNS, tailscaled and the state Secret.

use super::{ConfigState, DaemonSample, ReportState, Snapshot, flag, number, one, size};
use crate::model::tailnet::health::Blocker;
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

#[derive(Debug)]
pub(super) struct Inputs {
    ready: Sampled<0>,
    blocked: Sampled<1>,
    stalled: Sampled<1>,
    config_source: Sampled<2>,
    config_loaded: Sampled<1>,
    config_error: Sampled<2>,
    dns_names: Sampled<0>,
    dns_answered: Sampled<1>,
    dns_failing: Sampled<2>,
    dns_failures: Sampled<1>,
    daemon_state: Sampled<1>,
    daemon_since: Sampled<0>,
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
            ready: registry.sampled("tailyard_ready", gauge, "1 while /readyz answers 200", []),
            blocked: registry.sampled("tailyard_readiness_blocked", gauge, "1 for each unmet condition of readiness", ["reason"]),
            stalled: registry.sampled("tailyard_task_stalled", gauge, "1 for each task that has not run for 30 s", ["task"]),
            config_source: registry.sampled(
                "tailyard_config_source",
                gauge,
                "1 for the source of the config in force",
                ["config", "source"],
            ),
            config_loaded: registry.sampled(
                "tailyard_config_last_change_timestamp_seconds",
                gauge,
                "When the config in force was loaded",
                ["config"],
            ),
            config_error: registry.sampled(
                "tailyard_config_error",
                gauge,
                "1 while the newest copy of the config is invalid and an older one stays in force",
                ["config", "reason"],
            ),
            dns_names: registry.sampled("tailyard_dns_names", gauge, "DNS names that are targets of services", []),
            dns_answered: registry.sampled(
                "tailyard_dns_last_success_timestamp_seconds",
                gauge,
                "When the name was last resolved",
                ["name"],
            ),
            dns_failing: registry.sampled("tailyard_dns_failing", gauge, "1 while the last lookup of the name failed", ["name", "reason"]),
            dns_failures: registry.sampled("tailyard_dns_failures_total", counter, "Failed DNS lookups", ["reason"]),
            daemon_state: registry.sampled("tailyard_tailscaled_state", gauge, "1 for the current state of tailscaled", ["state"]),
            daemon_since: registry.sampled(
                "tailyard_tailscaled_state_timestamp_seconds",
                gauge,
                "When tailscaled entered its current state",
                [],
            ),
            daemon_restarts: registry.sampled("tailyard_tailscaled_restarts_total", counter, "Restarts of tailscaled", []),
            daemon_error: registry.sampled("tailyard_tailscaled_error", gauge, "1 for the last error of tailscaled", ["reason"]),
            crashes: registry.sampled(
                "tailyard_supervisor_restarts_total",
                counter,
                "Restarts of the supervisor after a crash, within the container; tailscaled keeps running",
                [],
            ),
            report_writes: registry.sampled("tailyard_state_secret_writes_total", counter, "Writes of the state Secret", []),
            report_error: registry.sampled(
                "tailyard_state_secret_error_timestamp_seconds",
                gauge,
                "Since when writes of the state Secret have failed; absent while they succeed",
                ["reason"],
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
            self.write_daemon(page, daemon, snapshot);
        }
        one(page, &self.crashes, number(snapshot.crashes));
        if let Some(report) = &snapshot.report {
            self.write_report(page, report, snapshot);
        }
    }

    fn write_configs(&self, page: &mut Page, snapshot: &Snapshot) {
        let sources = || snapshot.configs.iter().filter_map(|(name, config)| config.source.map(|source| (*name, source, config)));
        page.write(&self.config_source, sources().map(|(name, source, _)| ([name, source], 1.0)));
        page.write(&self.config_loaded, sources().map(|(name, _, config)| ([name], snapshot.at(config.age))));
        let faulty = |(name, config): (&&'static str, &ConfigState)| config.fault.map(|reason| ([*name, reason], 1.0));
        page.write(&self.config_error, snapshot.configs.iter().filter_map(faulty));
    }

    fn write_dns(&self, page: &mut Page, snapshot: &Snapshot) {
        let (names, now) = (&snapshot.names.names, snapshot.now.into_std());
        one(page, &self.dns_names, size(names.len()));
        let times = names.iter().filter_map(|(name, status)| {
            let age = now.saturating_duration_since(status.answered?);
            Some(([&**name], snapshot.at(age)))
        });
        page.write(&self.dns_answered, times);
        let failing = names.iter().filter_map(|(name, status)| Some(([&**name, status.failure?.reason()], 1.0)));
        page.write(&self.dns_failing, failing);
        page.write(&self.dns_failures, snapshot.names.failures.iter().map(|(failure, count)| ([failure.reason()], number(*count))));
    }

    fn write_daemon(&self, page: &mut Page, daemon: &DaemonSample, snapshot: &Snapshot) {
        page.write(&self.daemon_state, [([daemon.state.as_str()], 1.0)]);
        one(page, &self.daemon_since, snapshot.at(daemon.age));
        one(page, &self.daemon_restarts, number(daemon.restarts));
        page.write(&self.daemon_error, daemon.fault.map(|reason| ([reason], 1.0)));
    }

    fn write_report(&self, page: &mut Page, report: &ReportState, snapshot: &Snapshot) {
        one(page, &self.report_writes, number(report.writes));
        page.write(&self.report_error, report.fault.map(|(reason, age)| ([reason], snapshot.at(age))));
    }
}

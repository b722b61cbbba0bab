//! Readiness, configs, DNS, tailscaled and the state Secret.

use super::{ConfigState, Snapshot, flag, number, one, size};
use crate::model::tailnet::health::Blocker;
use crate::runtime::metrics::Page;

families! {
    Inputs {
        ready: Gauge "tailyard_ready" [] "1 while /readyz answers 200",
        blocked: Gauge "tailyard_readiness_blocked" ["reason"] "1 for each unmet condition of readiness",
        stalled: Gauge "tailyard_task_stalled" ["task"] "1 for each task that has not run for 30 s",
        config_source: Gauge "tailyard_config_source" ["config", "source"] "1 for the source of the config in force",
        config_loaded: Gauge "tailyard_config_last_change_timestamp_seconds" ["config"] "When the config in force was loaded",
        config_error: Gauge "tailyard_config_error" ["config", "reason"]
            "1 while the newest copy of the config is invalid and an older one stays in force",
        dns_names: Gauge "tailyard_dns_names" [] "DNS names that are targets of services",
        dns_answered: Gauge "tailyard_dns_last_success_timestamp_seconds" ["name"] "When the name was last resolved",
        dns_failing: Gauge "tailyard_dns_failing" ["name", "reason"] "1 while the last lookup of the name failed",
        dns_failures: Counter "tailyard_dns_failures_total" ["reason"] "Failed DNS lookups",
        daemon_state: Gauge "tailyard_tailscaled_state" ["state"] "1 for the current state of tailscaled",
        daemon_since: Gauge "tailyard_tailscaled_state_timestamp_seconds" [] "When tailscaled entered its current state",
        daemon_restarts: Counter "tailyard_tailscaled_restarts_total" [] "Restarts of tailscaled",
        daemon_error: Gauge "tailyard_tailscaled_error" ["reason"] "1 for the last error of tailscaled",
        crashes: Counter "tailyard_supervisor_restarts_total" []
            "Restarts of the supervisor after a crash, within the container; tailscaled keeps running",
        report_writes: Counter "tailyard_state_secret_writes_total" [] "Writes of the state Secret",
        report_error: Gauge "tailyard_state_secret_error_timestamp_seconds" ["reason"]
            "Since when writes of the state Secret have failed; absent while they succeed",
    }
}

impl Inputs {
    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        one(page, &self.ready, flag(snapshot.blockers.is_empty()));
        let blocked = |name: &str| snapshot.blockers.iter().any(|blocker| blocker.name() == name);
        page.write(&self.blocked, Blocker::NAMES.map(|name| ([name], flag(blocked(name)))));
        page.write(&self.stalled, snapshot.stalled.iter().map(|task| ([*task], 1.0)));
        self.write_configs(page, snapshot);
        self.write_dns(page, snapshot);
        if let Some(daemon) = &snapshot.daemon {
            page.write(&self.daemon_state, [([daemon.phase.to_string().as_str()], 1.0)]);
            one(page, &self.daemon_since, snapshot.of(daemon.since.unwrap_or(snapshot.now)));
            one(page, &self.daemon_restarts, number(daemon.restarts));
            page.write(&self.daemon_error, daemon.last_error.as_ref().map(|(reason, _)| ([*reason], 1.0)));
        }
        one(page, &self.crashes, number(snapshot.crashes));
        if let Some(report) = &snapshot.report {
            one(page, &self.report_writes, number(report.writes));
            page.write(&self.report_error, report.fault.as_ref().map(|fault| ([fault.reason], snapshot.of(fault.since))));
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
}

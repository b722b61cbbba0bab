//! Responses of `/readyz`, `/healthz` and `/livez`: the unmet conditions of a replica's readiness, by name.
//!
//! `/livez`: whether every task runs. A task that ends terminates the process; a blocked one misses its heartbeat. `/readyz`: whether this
//! replica should get new connections, [`readiness`]. `/healthz`: whether this Pod can forward at all, [`forwards`]. The Tailscale operator
//! requests it through every service before it counts the Pod, and a draining replica requests it through its services to detect whether
//! they still reach this Pod. So it stays true during a drain.
//!
//! Two failures do not block readiness. First, failed writes of the state Secret: a replica that starts while the API server is down
//! serves. Second, a newer plan that the kernel rejects: the previous rules stay in force, and the cause (a program missing in the image, a
//! config that the kernel rejects) probably affects every replica, so that blocking would cause an outage. It is a warning: [`warnings`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::api::failover::UnreachableNote;
use crate::model::tailnet::peer_warmup::MAX_READINESS_DELAY;

/// Ruleset lag that causes a warning. A change is written within milliseconds.
pub const MAX_RULESET_LAG: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthInputs {
    pub leaving: bool,
    /// Note of a reconciler that does not reach this replica.
    pub unreachable: Option<UnreachableNote>,
    /// Configs that were never read (`egress`, `ingress`).
    pub missing_configs: Vec<&'static str>,
    pub daemon: DaemonHealth,
    pub netmap: bool,
    pub addressed: bool,
    /// Fault of the tailnet interface, if any.
    pub interface: Option<String>,
    /// Connectivity to the targets' peers.
    pub paths: Paths,
    /// Services that were not advertised and approved since tailscaled's start, with reasons; empty once they were, or after a timeout.
    pub services: BTreeMap<String, String>,
    /// Why the Kubernetes API server is unreachable, if it is the upstream of a virtual host.
    pub api_server: Option<String>,
    /// Funnel errors by host.
    pub funnel_errors: BTreeMap<String, String>,
    pub rules: Rules,
    /// Commands for the forwarding sysctls that are required and off.
    pub switches: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DaemonHealth {
    /// Not supervised by this process.
    #[default]
    Foreign,
    /// Connected; or all paths to the targets work although no relay was selected yet.
    Running,
    /// Another state, in tailscaled's notation.
    Away(String),
}

/// Connectivity to the targets' peers since tailscaled's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Paths {
    /// Probed, or not required.
    #[default]
    Tried,
    /// These targets have not responded so far.
    Untried { waiting: BTreeSet<IpAddr> },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rules {
    /// The kernel forwards nothing.
    #[default]
    Unneeded,
    /// Not written yet.
    Missing { fault: Option<(&'static str, String)> },
    /// Of the newest plan.
    Current,
    /// Of an older plan, for this time without progress. `first`: it is the first written ruleset, outdated already, as the first write
    /// takes longer than a change.
    Behind { first: bool, since: Duration, fault: Option<(&'static str, String)> },
    /// Changed by another program and not repairable.
    Damaged { fault: (&'static str, String) },
}

/// State of the ruleset writer. Times are relative to any fixed moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesetWrites {
    /// Time of the last successful write; `None` before the first.
    pub written_at: Option<Duration>,
    /// Number of successful writes.
    pub count: u64,
    /// The ruleset is of the newest plan.
    pub newest: bool,
    /// Changed by another program and not repaired yet.
    pub damaged: bool,
    /// Error of the last write, if it failed: kind and message.
    pub fault: Option<(&'static str, String)>,
}

/// Ruleset lag: since when the kernel's ruleset is older than the newest plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RulesetLag {
    since: Option<Duration>,
    /// The kernel had the newest plan at least once.
    caught_up: bool,
}

impl RulesetLag {
    /// State of the ruleset; records the start of a lag.
    pub fn observe(&mut self, writes: RulesetWrites, now: Duration) -> Rules {
        let RulesetWrites { written_at, count, newest, damaged, fault } = writes;
        let Some(written_at) = written_at else { return Rules::Missing { fault } };
        match fault {
            Some(fault) if damaged => Rules::Damaged { fault },
            _ if newest => {
                *self = Self { since: None, caught_up: true };
                Rules::Current
            }
            fault => {
                // Continuous successful writes are no lag, however fast changes come.
                let since = (*self.since.get_or_insert(now)).max(written_at);
                Rules::Behind { first: !self.caught_up && count < 2, since: now.saturating_sub(since), fault }
            }
        }
    }
}

/// Ruleset states that block readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelContent {
    Nothing,
    /// The first ruleset, already outdated.
    Beginning,
    /// A ruleset changed by another program.
    Damage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    Leaving,
    /// The reconciler does not reach this replica: the reconciler's name, and since when.
    Unreachable(String, String),
    Config(&'static str),
    /// tailscaled is not connected.
    Tailscaled(String),
    Netmap,
    Address,
    /// The tailnet interface is unusable.
    Interface(String),
    /// Paths to the targets are being probed, for [`crate::model::tailnet::peer_warmup::MAX_READINESS_DELAY`] at most.
    Paths(BTreeSet<IpAddr>),
    /// Services that are not advertised yet, for a limited time.
    Services(BTreeMap<String, String>),
    /// The API server, the upstream of a virtual host, is unreachable.
    ApiServer(String),
    /// The kernel lacks the required ruleset.
    Rules {
        content: KernelContent,
        fault: Option<(&'static str, String)>,
    },
    Forwarding {
        command: String,
    },
}

/// A fault that does not affect readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadinessWarning {
    /// The kernel has an older plan than the newest.
    Behind { since: Duration, fault: Option<(&'static str, String)> },
    /// Funnel does not work for a virtual host that requests it: that of a Tailscale Service, or `node`.
    FunnelBlocked { service: String, why: String },
}

impl fmt::Display for ReadinessWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind { since, fault } => {
                write!(f, "ruleset-lag: the ruleset has been older than the newest plan for {} s", since.as_secs())?;
                fault.as_ref().map_or(Ok(()), |(kind, message)| write!(f, ": {kind}: {message}"))
            }
            Self::FunnelBlocked { service, why } => write!(f, "funnel: {service} is not reachable from the internet: {why}"),
        }
    }
}

impl Blocker {
    /// All values of [`Self::name`], in the order of [`readiness`].
    pub const NAMES: [&'static str; 12] = [
        "draining",
        "unreachable",
        "config",
        "tailscaled",
        "netmap",
        "tailnet-ip",
        "interface",
        "peer-connectivity",
        "services",
        "api-server",
        "ruleset",
        "forwarding",
    ];

    /// Label value of metrics and first word of a line; closed set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leaving => "draining",
            Self::Unreachable(..) => "unreachable",
            Self::Config(_) => "config",
            Self::Tailscaled(_) => "tailscaled",
            Self::Netmap => "netmap",
            Self::Address => "tailnet-ip",
            Self::Interface(_) => "interface",
            Self::Paths(_) => "peer-connectivity",
            Self::Services(_) => "services",
            Self::ApiServer(_) => "api-server",
            Self::Rules { .. } => "ruleset",
            Self::Forwarding { .. } => "forwarding",
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::Leaving => f.write_str("this replica is shutting down"),
            Self::Unreachable(process, since) => {
                write!(
                    f,
                    "no health probe of {process} arrives since {since}, and another replica is ready; check the Pod network of the node"
                )
            }
            Self::Config(which) => write!(f, "the {which} config is not loaded yet; check its mount and the log"),
            Self::Tailscaled(state) => write!(f, "tailscaled is not connected: {state}"),
            Self::Netmap => f.write_str("no network map received yet"),
            Self::Address => f.write_str("this node has no tailnet IP address"),
            Self::Interface(what) => f.write_str(what),
            Self::Paths(waiting) if waiting.is_empty() => f.write_str("connectivity to the targets is not tested yet"),
            Self::Paths(waiting) => {
                let waiting: Vec<_> = waiting.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "no answer through the tailnet yet from {}; ready after {MAX_READINESS_DELAY:?} at the latest",
                    waiting.join(", ")
                )
            }
            Self::Services(waiting) => {
                let waiting: Vec<_> = waiting.iter().map(|(name, why)| format!("{name} ({why})")).collect();
                write!(f, "not advertised and approved yet: {}", waiting.join(", "))
            }
            Self::ApiServer(why) => write!(f, "the Kubernetes API server is unreachable: {why}"),
            Self::Rules { content, fault } => {
                let what = match content {
                    KernelContent::Nothing => "has no ruleset yet",
                    KernelContent::Beginning => "has not applied the newest ruleset of the start yet",
                    KernelContent::Damage => "has a ruleset that another program changed and that cannot be repaired",
                };
                write!(f, "the kernel {what}")?;
                fault.as_ref().map_or(Ok(()), |(kind, message)| write!(f, ": {kind}: {message}"))
            }
            Self::Forwarding { command } => write!(f, "IP forwarding is disabled in the kernel; enable it: {command}"),
        }
    }
}

/// All readiness blockers; empty if the replica is ready.
pub fn readiness(facts: &HealthInputs) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    blockers.extend(facts.leaving.then_some(Blocker::Leaving));
    blockers.extend(facts.unreachable.as_ref().map(|note| Blocker::Unreachable(note.process.clone(), note.since.clone())));
    blockers.extend(facts.missing_configs.iter().map(|which| Blocker::Config(which)));
    if let DaemonHealth::Away(state) = &facts.daemon {
        blockers.push(Blocker::Tailscaled(state.clone()));
    }
    blockers.extend((!facts.netmap).then_some(Blocker::Netmap));
    blockers.extend((facts.netmap && !facts.addressed).then_some(Blocker::Address));
    blockers.extend(facts.interface.clone().map(Blocker::Interface));
    // While tailscaled is away, paths cannot be probed.
    if let (DaemonHealth::Running, Paths::Untried { waiting }) = (&facts.daemon, &facts.paths) {
        blockers.push(Blocker::Paths(waiting.clone()));
    }
    if facts.daemon == DaemonHealth::Running && !facts.services.is_empty() {
        blockers.push(Blocker::Services(facts.services.clone()));
    }
    blockers.extend(facts.api_server.clone().map(Blocker::ApiServer));
    match &facts.rules {
        Rules::Missing { fault } => blockers.push(Blocker::Rules { content: KernelContent::Nothing, fault: fault.clone() }),
        // A start includes the changes during its first write; a later lag is only a warning.
        Rules::Behind { first: true, fault, .. } => {
            blockers.push(Blocker::Rules { content: KernelContent::Beginning, fault: fault.clone() });
        }
        Rules::Damaged { fault } => blockers.push(Blocker::Rules { content: KernelContent::Damage, fault: Some(fault.clone()) }),
        Rules::Behind { .. } | Rules::Current | Rules::Unneeded => {}
    }
    blockers.extend(facts.switches.iter().map(|command| Blocker::Forwarding { command: command.clone() }));
    blockers
}

/// Faults that do not block readiness.
pub fn warnings(facts: &HealthInputs) -> Vec<ReadinessWarning> {
    let behind = match &facts.rules {
        Rules::Behind { since, fault, .. } if *since > MAX_RULESET_LAG => {
            Some(ReadinessWarning::Behind { since: *since, fault: fault.clone() })
        }
        _ => None,
    };
    let funnel_errors =
        facts.funnel_errors.iter().map(|(service, why)| ReadinessWarning::FunnelBlocked { service: service.clone(), why: why.clone() });
    behind.into_iter().chain(funnel_errors).collect()
}

/// Whether the Pod can forward: it is a node of the tailnet, and the kernel has the required ruleset, if only an older plan's.
pub fn forwards(facts: &HealthInputs) -> bool {
    facts.addressed && !matches!(facts.rules, Rules::Missing { .. } | Rules::Damaged { .. })
}

#[cfg(test)]
mod tests;

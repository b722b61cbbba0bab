//! What `/readyz`, `/healthz` and `/livez` answer: the unmet conditions of a replica's readiness, by name.
//!
//! `/livez`: does every task run? A task that ends ends the process; one that blocks stops its heartbeat. `/readyz`: should this replica
//! get new connections? [`readiness`]. `/healthz`: can this Pod forward at all? [`forwards`]; the Tailscale operator asks it through every
//! service before it counts the Pod in, and a leaving replica asks it through its services to learn whether they still lead to this
//! Pod, so it stays true while the replica leaves.
//!
//! Two failures do not block readiness. A state Secret that cannot be written: a replica that starts while the API server is down serves.
//! A newer plan that the kernel does not take: the rules before it keep serving, and the cause (a program that the image lacks, a
//! config that the kernel refuses) is likely the same in every replica, so that blocking would make an outage of it. It is a warning:
//! [`warnings`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::tailnet::peer_warmup::LIMIT;

/// How long the kernel may be behind the newest plan before it is worth a word. A change is written within milliseconds; one
/// that takes longer than this is not being written.
pub const BEHIND: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthInputs {
    pub leaving: bool,
    /// Configs that were asked for and never heard, by name (`egress`, `ingress`).
    pub missing_configs: Vec<&'static str>,
    pub daemon: DaemonHealth,
    pub netmap: bool,
    pub addressed: bool,
    /// What is wrong with the interface behind which the tailnet is, if anything is.
    pub interface: Option<String>,
    /// How the ways to the targets stand.
    pub paths: Paths,
    /// The services that this replica should serve and that were not advertised and approved yet since tailscaled was started,
    /// and why; empty once they were, or were waited for long enough.
    pub services: BTreeMap<String, String>,
    /// The sites that are to be reached from the internet and are not, and why.
    pub funnel_errors: BTreeMap<String, String>,
    pub rules: Rules,
    /// For each forwarding switch of the kernel that is needed and off: the command that turns it on.
    pub switches: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DaemonHealth {
    /// Something that is not supervised here.
    #[default]
    Foreign,
    /// tailscaled, and the node is connected; or all its ways to the targets stand, though it still looks for a relay.
    Running,
    /// tailscaled, in another state: its word for it.
    Away(String),
}

/// How the ways to the targets stand, since tailscaled was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Paths {
    /// They were tried, or nobody has to try them.
    #[default]
    Tried,
    Untried {
        /// The targets that are being tried and have not answered yet.
        waiting: BTreeSet<IpAddr>,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rules {
    /// Nothing is to be forwarded by the kernel.
    #[default]
    Unneeded,
    Missing {
        fault: Option<(&'static str, String)>,
    },
    Current,
    /// An older plan than the newest.
    Behind {
        /// It still holds what was written first, and that was never the newest: the first write takes longer than a change does.
        first: bool,
        /// For how long it has been behind without taking anything newer.
        since: Duration,
        fault: Option<(&'static str, String)>,
    },
    /// Not what was written: somebody else changed it, and it could not be written again.
    Damaged {
        fault: (&'static str, String),
    },
}

/// How the ruleset writer stands. Times are durations since any fixed moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesetWrites {
    /// When the rules in force were written; nothing before the first write.
    pub written_at: Option<Duration>,
    /// How many writes the kernel took.
    pub count: u64,
    /// The rules in force are of the newest plan.
    pub newest: bool,
    /// Another program has changed them, and they have not been written again yet.
    pub damaged: bool,
    /// Why the last write failed, if it did: kind and message.
    pub fault: Option<(&'static str, String)>,
}

/// Since when the kernel has been behind the newest plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RulesetLag {
    since: Option<Duration>,
    /// The kernel has held the newest plan at some time.
    caught_up: bool,
}

impl RulesetLag {
    /// The state of the kernel's rules; remembers since when they have been behind.
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
                // While one change after another is written, however fast they come, the kernel is behind by one write at most.
                let since = (*self.since.get_or_insert(now)).max(written_at);
                Rules::Behind { first: !self.caught_up && count < 2, since: now.saturating_sub(since), fault }
            }
        }
    }
}

/// What a kernel holds that keeps a replica from serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelContent {
    Nothing,
    /// What was asked for when it started; more has been asked for since.
    Beginning,
    /// What somebody else made of it.
    Damage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    Leaving,
    Config(&'static str),
    /// tailscaled does not have the node connected.
    Tailscaled(String),
    Netmap,
    Address,
    /// The interface behind which the tailnet is cannot carry anything.
    Interface(String),
    /// The ways to the targets have not been tried, which takes [`crate::model::tailnet::peer_warmup::LIMIT`] at most.
    Paths(BTreeSet<IpAddr>),
    /// Services that are to lead here do not yet, which is waited for only so long.
    Services(BTreeMap<String, String>),
    /// The kernel does not hold what a replica must hold to serve.
    Rules {
        content: KernelContent,
        fault: Option<(&'static str, String)>,
    },
    Forwarding {
        command: String,
    },
}

/// Something that is wrong and does not keep connections away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadinessWarning {
    /// The kernel holds an older plan than the newest.
    Behind { since: Duration, fault: Option<(&'static str, String)> },
    /// A site is not reached from the internet, as it is to be.
    FunnelBlocked {
        /// The Tailscale Service, or `node`.
        service: String,
        why: String,
    },
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
    /// Every name that [`Self::name`] can give, in the order of [`readiness`].
    pub const NAMES: [&'static str; 10] =
        ["draining", "config", "tailscaled", "netmap", "tailnet-ip", "interface", "peer-connectivity", "services", "ruleset", "forwarding"];

    /// A closed set of words for metric labels and the first word of a line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leaving => "draining",
            Self::Config(_) => "config",
            Self::Tailscaled(_) => "tailscaled",
            Self::Netmap => "netmap",
            Self::Address => "tailnet-ip",
            Self::Interface(_) => "interface",
            Self::Paths(_) => "peer-connectivity",
            Self::Services(_) => "services",
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
            Self::Config(which) => write!(f, "the {which} config is not loaded yet; check its mount and the log"),
            Self::Tailscaled(state) => write!(f, "tailscaled is not connected: {state}"),
            Self::Netmap => f.write_str("no network map received yet"),
            Self::Address => f.write_str("this node has no tailnet IP address"),
            Self::Interface(what) => f.write_str(what),
            Self::Paths(waiting) if waiting.is_empty() => f.write_str("connectivity to the targets is not tested yet"),
            Self::Paths(waiting) => {
                let waiting: Vec<_> = waiting.iter().map(ToString::to_string).collect();
                write!(f, "no answer through the tailnet yet from {}; ready after {LIMIT:?} at the latest", waiting.join(", "))
            }
            Self::Services(waiting) => {
                let waiting: Vec<_> = waiting.iter().map(|(name, why)| format!("{name} ({why})")).collect();
                write!(f, "not advertised and approved yet: {}", waiting.join(", "))
            }
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

/// Everything that is in the way of new connections to this replica; nothing if it is ready.
pub fn readiness(facts: &HealthInputs) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    blockers.extend(facts.leaving.then_some(Blocker::Leaving));
    blockers.extend(facts.missing_configs.iter().map(|which| Blocker::Config(which)));
    if let DaemonHealth::Away(state) = &facts.daemon {
        blockers.push(Blocker::Tailscaled(state.clone()));
    }
    blockers.extend((!facts.netmap).then_some(Blocker::Netmap));
    blockers.extend((facts.netmap && !facts.addressed).then_some(Blocker::Address));
    blockers.extend(facts.interface.clone().map(Blocker::Interface));
    // With a tailscaled that is away there are no ways to try.
    if let (DaemonHealth::Running, Paths::Untried { waiting }) = (&facts.daemon, &facts.paths) {
        blockers.push(Blocker::Paths(waiting.clone()));
    }
    if facts.daemon == DaemonHealth::Running && !facts.services.is_empty() {
        blockers.push(Blocker::Services(facts.services.clone()));
    }
    match &facts.rules {
        Rules::Missing { fault } => blockers.push(Blocker::Rules { content: KernelContent::Nothing, fault: fault.clone() }),
        // A start is over once it has caught up with what came while it wrote first; after that, being behind is told and no more.
        Rules::Behind { first: true, fault, .. } => {
            blockers.push(Blocker::Rules { content: KernelContent::Beginning, fault: fault.clone() });
        }
        Rules::Damaged { fault } => blockers.push(Blocker::Rules { content: KernelContent::Damage, fault: Some(fault.clone()) }),
        Rules::Behind { .. } | Rules::Current | Rules::Unneeded => {}
    }
    blockers.extend(facts.switches.iter().map(|command| Blocker::Forwarding { command: command.clone() }));
    blockers
}

/// What is wrong and in nobody's way.
pub fn warnings(facts: &HealthInputs) -> Vec<ReadinessWarning> {
    let behind = match &facts.rules {
        Rules::Behind { since, fault, .. } if *since > BEHIND => Some(ReadinessWarning::Behind { since: *since, fault: fault.clone() }),
        _ => None,
    };
    let funnel_errors =
        facts.funnel_errors.iter().map(|(service, why)| ReadinessWarning::FunnelBlocked { service: service.clone(), why: why.clone() });
    behind.into_iter().chain(funnel_errors).collect()
}

/// Whether the Pod can forward: it is a node of the tailnet, and what it is to forward is in the kernel, be it an older plan.
pub fn forwards(facts: &HealthInputs) -> bool {
    facts.addressed && !matches!(facts.rules, Rules::Missing { .. } | Rules::Damaged { .. })
}

#[cfg(test)]
mod tests;

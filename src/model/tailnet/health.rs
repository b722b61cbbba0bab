//! Whether this replica is to get traffic: a list of what is in the way, by name.
//!
//! Three levels, three questions. `/livez`: does every task run? A task that ends ends the process; one that blocks stops its
//! heartbeat. `/readyz`: is this replica to get new connections? [`readiness`]. `/healthz`: can this Pod forward at all?
//! [`forwards`]; the Tailscale operator asks it through every service before it counts the Pod in, and a leaving replica asks
//! it through its services to learn whether they still lead here, so it stays true while the replica leaves.
//!
//! That the state Secret cannot be written is in nobody's way: a replica that starts while the API server is away serves.
//! Nor is it that the kernel does not take a newer plan: the rules of the one before go on serving, and what keeps the kernel from
//! taking it (a program that the image lacks, a config that it refuses) is likely to be the same in every replica, so that going
//! unready would turn a change that does not arrive into an outage of all that works. It is told instead: [`remarks`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::tailnet::peer_warmup::BOUND;

/// How long the kernel may be behind the newest plan before it is worth a word. A change is written within milliseconds; one
/// that takes longer than this is not being written.
pub const BEHIND: Duration = Duration::from_secs(2);

/// What health is judged by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthInputs {
    pub leaving: bool,
    /// Configs that were asked for and never heard, by name (`egress`, `ingress`).
    pub unheard: Vec<&'static str>,
    /// What makes the tailnet.
    pub daemon: DaemonHealth,
    /// A snapshot of the tailnet has come.
    pub netmap: bool,
    /// This node has an address in the tailnet.
    pub addressed: bool,
    /// What is wrong with the interface behind which the tailnet is, if anything is.
    pub interface: Option<String>,
    /// How the ways to the targets stand.
    pub paths: Paths,
    /// The services that this replica should serve and that were not advertised and approved yet since tailscaled was started,
    /// and why; empty once they were, or were waited for long enough.
    pub services: BTreeMap<String, String>,
    /// The sites that are to be reached from the internet and are not, and why.
    pub barred: BTreeMap<String, String>,
    /// What the kernel holds.
    pub rules: Rules,
    /// For each forwarding switch of the kernel that is needed and off: the command that turns it on.
    pub switches: Vec<String>,
}

/// What makes the tailnet.
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

/// What the kernel holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rules {
    /// Nothing is to be forwarded by the kernel.
    #[default]
    Unneeded,
    Missing {
        /// Why the last write failed, if it did: kind and message.
        fault: Option<(&'static str, String)>,
    },
    /// The newest plan.
    Current,
    /// An older plan than the newest.
    Behind {
        /// It still holds what was written first, and that was never the newest: the first write takes longer than a change does.
        first: bool,
        /// For how long it has been behind without taking anything newer.
        since: Duration,
        /// Why the last write failed, if it did: kind and message.
        fault: Option<(&'static str, String)>,
    },
    /// Not what was written: somebody else changed it, and it could not be written again.
    Damaged {
        /// Why the last write failed: kind and message.
        fault: (&'static str, String),
    },
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

/// One thing that is in the way of readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    Leaving,
    /// A config was never heard.
    Config(&'static str),
    /// tailscaled does not have the node connected.
    Tailscaled(String),
    /// No snapshot of the tailnet has come.
    Netmap,
    /// This node has no address in the tailnet.
    Address,
    /// The interface behind which the tailnet is cannot carry anything.
    Interface(String),
    /// The ways to the targets have not been tried, which takes [`crate::model::tailnet::peer_warmup::BOUND`] at most.
    Paths(BTreeSet<IpAddr>),
    /// Services that are to lead here do not yet, which is waited for only so long.
    Services(BTreeMap<String, String>),
    /// The kernel does not hold what a replica must hold to serve.
    Rules {
        /// What it holds instead.
        content: KernelContent,
        /// Why the last write failed, if it did: kind and message.
        fault: Option<(&'static str, String)>,
    },
    Forwarding {
        command: String,
    },
}

/// Something that is wrong and does not keep connections away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// The kernel holds an older plan than the newest.
    Behind {
        since: Duration,
        /// Why the last write failed, if it did: kind and message.
        fault: Option<(&'static str, String)>,
    },
    /// A site is not reached from the internet, as it is to be.
    Barred {
        /// The Tailscale Service, or `node`.
        service: String,
        why: String,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind { since, fault } => {
                write!(f, "ruleset-lag: the ruleset has been older than the newest plan for {} s", since.as_secs())?;
                fault.as_ref().map_or(Ok(()), |(kind, message)| write!(f, ": {kind}: {message}"))
            }
            Self::Barred { service, why } => write!(f, "funnel: {service} is not reachable from the internet: {why}"),
        }
    }
}

impl Blocker {
    /// Every name that [`Self::name`] can give, in the order of [`readiness`].
    pub const NAMES: [&'static str; 10] =
        ["draining", "config", "tailscaled", "netmap", "tailnet-ip", "interface", "peer-connectivity", "services", "ruleset", "forwarding"];

    /// A closed set of words for metric labels and the first word of a line.
    #[must_use]
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
                write!(f, "no answer through the tailnet yet from {}; ready after {BOUND:?} at the latest", waiting.join(", "))
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
#[must_use]
pub fn readiness(facts: &HealthInputs) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    blockers.extend(facts.leaving.then_some(Blocker::Leaving));
    blockers.extend(facts.unheard.iter().map(|which| Blocker::Config(which)));
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
#[must_use]
pub fn remarks(facts: &HealthInputs) -> Vec<Remark> {
    let behind = match &facts.rules {
        Rules::Behind { since, fault, .. } if *since > BEHIND => Some(Remark::Behind { since: *since, fault: fault.clone() }),
        _ => None,
    };
    let barred = facts.barred.iter().map(|(service, why)| Remark::Barred { service: service.clone(), why: why.clone() });
    behind.into_iter().chain(barred).collect()
}

/// Whether the Pod can forward: it is a node of the tailnet, and what it is to forward is in the kernel, be it an older plan.
#[must_use]
pub fn forwards(facts: &HealthInputs) -> bool {
    facts.addressed && !matches!(facts.rules, Rules::Missing { .. } | Rules::Damaged { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> HealthInputs {
        HealthInputs { netmap: true, addressed: true, daemon: DaemonHealth::Running, rules: Rules::Current, ..HealthInputs::default() }
    }

    fn names(facts: &HealthInputs) -> Vec<&'static str> {
        readiness(facts).iter().map(Blocker::name).collect()
    }

    #[test]
    fn everything_in_place_is_ready() {
        assert_eq!((names(&good()), forwards(&good())), (vec![], true));
        assert_eq!(names(&HealthInputs { daemon: DaemonHealth::Foreign, rules: Rules::Unneeded, ..good() }), [""; 0]);
    }

    #[test]
    fn a_start_names_all_that_is_missing() {
        let start = HealthInputs {
            unheard: vec!["egress"],
            daemon: DaemonHealth::Away("Starting".into()),
            rules: Rules::Missing { fault: None },
            switches: vec!["sysctl -w net.ipv4.ip_forward=1".into()],
            ..HealthInputs::default()
        };
        assert_eq!(names(&start), ["config", "tailscaled", "netmap", "ruleset", "forwarding"]);
        assert!(!forwards(&start));
        assert_eq!(names(&HealthInputs { addressed: false, ..good() }), ["tailnet-ip"]);
    }

    #[test]
    fn a_leaving_replica_is_unready_and_forwards() {
        let leaving = HealthInputs { leaving: true, ..good() };
        assert_eq!((names(&leaving), forwards(&leaving)), (vec!["draining"], true));
    }

    #[test]
    fn a_dead_tailscaled_is_in_the_way_at_once() {
        let dead = HealthInputs { daemon: DaemonHealth::Away("down".into()), ..good() };
        assert_eq!((names(&dead), forwards(&dead)), (vec!["tailscaled"], true));
    }

    #[test]
    fn rules_that_are_behind_are_told_and_in_nobodys_way() {
        let fault = Some(("nft", "no such file".into()));
        let behind = |since| HealthInputs { rules: Rules::Behind { first: false, since, fault: fault.clone() }, ..good() };
        let starting = HealthInputs { rules: Rules::Behind { first: true, since: Duration::ZERO, fault: fault.clone() }, ..good() };
        assert_eq!(names(&starting), ["ruleset"], "a start that has not caught up");
        assert_eq!((remarks(&behind(BEHIND)), names(&behind(BEHIND))), (vec![], vec![]));
        let late = behind(BEHIND * 2);
        assert_eq!((names(&late), forwards(&late)), (vec![], true), "an older plan forwards");
        let line = "ruleset-lag: the ruleset has been older than the newest plan for 4 s: nft: no such file";
        assert_eq!(remarks(&late).iter().map(ToString::to_string).collect::<Vec<_>>(), [line]);
    }

    #[test]
    fn rules_that_somebody_else_took_away_for_good_are_in_the_way() {
        let damaged = HealthInputs { rules: Rules::Damaged { fault: ("nft", "no such file".into()) }, ..good() };
        assert_eq!((names(&damaged), forwards(&damaged), remarks(&damaged)), (vec!["ruleset"], false, vec![]));
        let line = "ruleset: the kernel has a ruleset that another program changed and that cannot be repaired: nft: no such file";
        assert_eq!(readiness(&damaged)[0].to_string(), line);
    }

    #[test]
    fn ways_that_were_not_tried_are_in_the_way_while_there_is_a_tailscaled_to_try_them() {
        let untried = |waiting: &[IpAddr]| Paths::Untried { waiting: waiting.iter().copied().collect() };
        let trying = HealthInputs { paths: untried(&[[100, 64, 0, 2].into()]), ..good() };
        assert_eq!((names(&trying), forwards(&trying)), (vec!["peer-connectivity"], true));
        let line = "peer-connectivity: no answer through the tailnet yet from 100.64.0.2; ready after 7s at the latest";
        assert_eq!(readiness(&trying)[0].to_string(), line);
        assert_eq!(names(&HealthInputs { paths: untried(&[]), ..good() }), ["peer-connectivity"]);
        assert_eq!(names(&HealthInputs { daemon: DaemonHealth::Away("Down".into()), ..trying }), ["tailscaled"]);
    }

    #[test]
    fn services_that_do_not_lead_here_yet_are_in_the_way() {
        let services: BTreeMap<_, _> = [("svc:a".to_owned(), "the kernel holds no rules yet".to_owned())].into();
        let starting = HealthInputs { services: services.clone(), ..good() };
        assert_eq!((names(&starting), forwards(&starting)), (vec!["services"], true));
        assert_eq!(readiness(&starting)[0].to_string(), "services: not advertised and approved yet: svc:a (the kernel holds no rules yet)");
        assert_eq!(names(&HealthInputs { daemon: DaemonHealth::Away("Down".into()), ..starting }), ["tailscaled"]);
    }

    #[test]
    fn a_site_that_the_internet_does_not_reach_is_told_and_in_nobodys_way() {
        let facts = HealthInputs { barred: [("svc:a".to_owned(), "it may not be".to_owned())].into(), ..good() };
        assert_eq!(names(&facts), [""; 0]);
        assert_eq!(remarks(&facts)[0].to_string(), "funnel: svc:a is not reachable from the internet: it may not be");
    }

    #[test]
    fn every_blocker_is_in_the_list_of_names_and_says_something() {
        let all = HealthInputs {
            leaving: true,
            unheard: vec!["ingress"],
            daemon: DaemonHealth::Away("down".into()),
            interface: Some("tailscale0 is down".into()),
            rules: Rules::Missing { fault: None },
            switches: vec!["x".into()],
            ..HealthInputs::default()
        };
        let mut seen = names(&all);
        let services = [("svc:a".to_owned(), "no certificate".to_owned())].into();
        seen.extend(names(&HealthInputs { addressed: false, paths: Paths::Untried { waiting: BTreeSet::new() }, services, ..good() }));
        assert!(Blocker::NAMES.iter().all(|name| seen.contains(name)), "{seen:?}");
        assert!(readiness(&all).iter().all(|blocker| blocker.to_string().starts_with(&format!("{}: ", blocker.name()))));
    }
}

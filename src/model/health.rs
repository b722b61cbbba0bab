//! Whether this replica is to get traffic: a list of what is in the way, by name.
//!
//! Three levels, three questions. `/livez`: does the process turn? It is answered by answering: a task that ends ends the
//! process. `/readyz`: is this replica to get new connections? [`readiness`]. `/healthz`: can this Pod forward at all?
//! [`forwards`]; the Tailscale operator asks it through every service before it counts the Pod in, and a leaving replica asks
//! it through its services to learn whether they still lead here, so it stays true while the replica leaves.
//!
//! That the state Secret cannot be written is in nobody's way: a replica that starts while the API server is away serves.

use std::fmt;
use std::time::Duration;

/// How long the kernel may be behind the newest plan before the replica counts as unready. A change is written within
/// milliseconds; one that takes longer than this is not being written.
pub const BEHIND: Duration = Duration::from_secs(2);

/// What health is judged by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// It was told to leave.
    pub leaving: bool,
    /// Configs that were asked for and never heard, by name (`egress`, `ingress`).
    pub unheard: Vec<&'static str>,
    /// What makes the tailnet.
    pub daemon: Daemon,
    /// A snapshot of the tailnet has come.
    pub netmap: bool,
    /// This node has an address in the tailnet.
    pub addressed: bool,
    /// What is wrong with the interface behind which the tailnet is, if anything is.
    pub interface: Option<String>,
    /// What the kernel holds.
    pub rules: Rules,
    /// For each forwarding switch of the kernel that is needed and off: the command that turns it on.
    pub switches: Vec<String>,
}

/// What makes the tailnet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Daemon {
    /// Something that is not supervised here.
    #[default]
    Foreign,
    /// tailscaled, and the node is connected.
    Running,
    /// tailscaled, in another state: its word for it.
    Away(String),
}

/// What the kernel holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rules {
    /// Nothing is to be forwarded by the kernel.
    #[default]
    Unneeded,
    /// Nothing yet.
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
}

/// One thing that is in the way of readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    /// It was told to leave.
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
    /// The kernel does not hold the newest plan.
    Rules {
        /// It holds nothing at all.
        missing: bool,
        /// Why the last write failed, if it did: kind and message.
        fault: Option<(&'static str, String)>,
    },
    /// The kernel does not forward.
    Forwarding {
        /// The command that turns it on.
        command: String,
    },
}

impl Blocker {
    /// Every name that [`Self::name`] can give, in the order of [`readiness`].
    pub const NAMES: [&'static str; 8] = ["leaving", "config", "tailscaled", "netmap", "address", "interface", "rules", "forwarding"];

    /// A closed set of words for metric labels and the first word of a line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leaving => "leaving",
            Self::Config(_) => "config",
            Self::Tailscaled(_) => "tailscaled",
            Self::Netmap => "netmap",
            Self::Address => "address",
            Self::Interface(_) => "interface",
            Self::Rules { .. } => "rules",
            Self::Forwarding { .. } => "forwarding",
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::Leaving => f.write_str("this replica was told to end"),
            Self::Config(which) => write!(f, "the {which} config has not been read yet: look for its mount, and at the log"),
            Self::Tailscaled(state) => write!(f, "tailscaled is not connected, it is {state}"),
            Self::Netmap => f.write_str("no view of the tailnet has come yet"),
            Self::Address => f.write_str("this node has no address in the tailnet"),
            Self::Interface(what) => f.write_str(what),
            Self::Rules { missing, fault } => {
                f.write_str(if *missing { "the kernel holds no rules yet" } else { "the kernel holds an older plan than the newest" })?;
                fault.as_ref().map_or(Ok(()), |(kind, message)| write!(f, ": {kind}: {message}"))
            }
            Self::Forwarding { command } => write!(f, "the kernel does not forward: {command}"),
        }
    }
}

/// Everything that is in the way of new connections to this replica; nothing if it is ready.
#[must_use]
pub fn readiness(facts: &Facts) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    blockers.extend(facts.leaving.then_some(Blocker::Leaving));
    blockers.extend(facts.unheard.iter().map(|which| Blocker::Config(which)));
    if let Daemon::Away(state) = &facts.daemon {
        blockers.push(Blocker::Tailscaled(state.clone()));
    }
    blockers.extend((!facts.netmap).then_some(Blocker::Netmap));
    blockers.extend((facts.netmap && !facts.addressed).then_some(Blocker::Address));
    blockers.extend(facts.interface.clone().map(Blocker::Interface));
    match &facts.rules {
        Rules::Missing { fault } => blockers.push(Blocker::Rules { missing: true, fault: fault.clone() }),
        // Who is ready is trusted with what was asked for before: a start is over once it has caught up.
        Rules::Behind { first, since, fault } if *first || *since > BEHIND => {
            blockers.push(Blocker::Rules { missing: false, fault: fault.clone() });
        }
        Rules::Behind { .. } | Rules::Current | Rules::Unneeded => {}
    }
    blockers.extend(facts.switches.iter().map(|command| Blocker::Forwarding { command: command.clone() }));
    blockers
}

/// Whether the Pod can forward: it is a node of the tailnet, and what it is to forward is in the kernel, be it an older plan.
#[must_use]
pub fn forwards(facts: &Facts) -> bool {
    facts.addressed && !matches!(facts.rules, Rules::Missing { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts { netmap: true, addressed: true, daemon: Daemon::Running, rules: Rules::Current, ..Facts::default() }
    }

    fn names(facts: &Facts) -> Vec<&'static str> {
        readiness(facts).iter().map(Blocker::name).collect()
    }

    #[test]
    fn everything_in_place_is_ready() {
        assert_eq!((names(&good()), forwards(&good())), (vec![], true));
        assert_eq!(names(&Facts { daemon: Daemon::Foreign, rules: Rules::Unneeded, ..good() }), [""; 0]);
    }

    #[test]
    fn a_start_names_all_that_is_missing() {
        let start = Facts {
            unheard: vec!["egress"],
            daemon: Daemon::Away("Starting".into()),
            rules: Rules::Missing { fault: None },
            switches: vec!["sysctl -w net.ipv4.ip_forward=1".into()],
            ..Facts::default()
        };
        assert_eq!(names(&start), ["config", "tailscaled", "netmap", "rules", "forwarding"]);
        assert!(!forwards(&start));
        assert_eq!(names(&Facts { addressed: false, ..good() }), ["address"]);
    }

    #[test]
    fn a_leaving_replica_is_unready_and_forwards() {
        let leaving = Facts { leaving: true, ..good() };
        assert_eq!((names(&leaving), forwards(&leaving)), (vec!["leaving"], true));
    }

    #[test]
    fn a_dead_tailscaled_is_in_the_way_at_once_and_rules_that_are_behind_a_moment_are_not() {
        let dead = Facts { daemon: Daemon::Away("down".into()), ..good() };
        assert_eq!((names(&dead), forwards(&dead)), (vec!["tailscaled"], true));
        let fault = Some(("nft", "no such file".into()));
        let behind = |first, since| Facts { rules: Rules::Behind { first, since, fault: fault.clone() }, ..good() };
        assert_eq!(names(&behind(false, BEHIND)), [""; 0]);
        assert_eq!(names(&behind(true, Duration::ZERO)), ["rules"], "a start that has not caught up");
        let late = behind(false, BEHIND * 2);
        assert_eq!(names(&late), ["rules"]);
        assert!(forwards(&late), "an older plan forwards");
        assert_eq!(readiness(&late)[0].to_string(), "rules: the kernel holds an older plan than the newest: nft: no such file");
    }

    #[test]
    fn every_blocker_is_in_the_list_of_names_and_says_something() {
        let all = Facts {
            leaving: true,
            unheard: vec!["ingress"],
            daemon: Daemon::Away("down".into()),
            interface: Some("tailscale0 is down".into()),
            rules: Rules::Missing { fault: None },
            switches: vec!["x".into()],
            ..Facts::default()
        };
        let mut seen = names(&all);
        seen.extend(names(&Facts { addressed: false, ..good() }));
        assert!(Blocker::NAMES.iter().all(|name| seen.contains(name)), "{seen:?}");
        assert!(readiness(&all).iter().all(|blocker| blocker.to_string().starts_with(&format!("{}: ", blocker.name()))));
    }
}

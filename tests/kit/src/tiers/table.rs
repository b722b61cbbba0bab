//! The tiers of Tailyard's tests: program, needs, cost.
//!
//! Times are seconds on two processors in the development build. They order the schedule and bound hanging tiers; no test depends on them.

/// All tiers, with their common settings.
#[derive(Debug)]
pub struct Table {
    /// The package with the programs that tests start, if there is one. It is built before the tests.
    pub tools: Option<&'static str>,
    /// The script that builds servers: `SCRIPT NAME...`, relative to the workspace.
    pub servers: &'static str,
    /// In the order of reports.
    pub tiers: &'static [Tier],
}

/// Tests that run in one process.
#[derive(Debug)]
pub struct Tier {
    /// Unique.
    pub name: &'static str,
    /// The test program that has the tests.
    pub program: Program,
    /// The top-level modules of the program that have its tests. Empty: all tests of the program.
    pub modules: &'static [&'static str],
    /// Tests at once.
    pub threads: u32,
    /// Slots of the budget: one for a tier that mostly waits, two for one that computes or counts lost connections.
    pub slots: u32,
    /// Tiers that name the same resource never run at the same time.
    pub resource: Option<&'static str>,
    /// Servers that have to be built before the tier starts.
    pub servers: &'static [&'static [&'static str]],
    /// Expected duration in seconds: longer tiers start first.
    pub expected: u32,
    /// After this many seconds the tier is killed.
    pub limit: u32,
    /// Needs neither root nor servers: part of `--check`.
    pub check: bool,
    /// Runs only if it is named: it needs a setting.
    pub by_hand: bool,
}

/// A test program, as cargo names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The package.
    pub package: &'static str,
    /// The target: for a library, the name of the crate.
    pub target: &'static str,
    /// Which kind of target.
    pub kind: Kind,
}

/// The kind of a cargo target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The unit tests of a library.
    Lib,
    /// A program of integration tests.
    Test,
}

impl Table {
    /// Number of these tiers that run without being named.
    pub(super) fn count_automatic<'a>(tiers: impl IntoIterator<Item = &'a Tier>) -> usize {
        tiers.into_iter().filter(|tier| !tier.by_hand).count()
    }
}

impl Tier {
    /// Whether a test of its program is one of its tests.
    pub(super) fn has(&self, test: &str) -> bool {
        let first = test.split_once("::").map(|(module, _)| module);
        self.modules.is_empty() || first.is_some_and(|module| self.modules.contains(&module))
    }
}

const LIB: Program = Program { package: "tailyard", target: "tailyard", kind: Kind::Lib };
const KIT: Program = Program { package: "tailyard-kit", target: "kit", kind: Kind::Lib };
const PURE: Program = test("pure");
const MACHINE: Program = test("machine");
const API: Program = test("api");
const PACKAGE: Program = test("package");
const CLUSTER: Program = test("cluster");

/// Servers that a tier needs, as lists that tiers share.
type Servers = &'static [&'static [&'static str]];
const HELM: &[&str] = &["helm"];
const API_SERVER: &[&str] = &["etcd", "kube-apiserver"];
const CONTROLLERS: &[&str] = &["kube-controller-manager"];
const DAEMON: &[&str] = &["tailscaled", "tailscale"];
const HEADSCALE: &[&str] = &["headscale"];
const HOSTED: &[&str] = &["hosted"];
const ACME: &[&str] = &["pebble", "pebble-challtestsrv"];
const OPERATOR: &[&str] = &["containerboot", "k8s-operator", "k8s-proxy"];
const CLUSTER_PROGRAMS: &[&str] = &crate::cluster::PROGRAMS;

const fn test(target: &'static str) -> Program {
    Program { package: "tailyard", target, kind: Kind::Test }
}

/// A light tier without needs.
const fn light(name: &'static str, program: Program, modules: &'static [&'static str], expected: u32) -> Tier {
    let limit = if expected < 30 { 300 } else { expected * 10 };
    Tier { name, program, modules, threads: 2, slots: 1, resource: None, servers: &[], expected, limit, check: false, by_hand: false }
}

/// A tier on real clusters, one of which runs in each lane: they mostly wait. A third lane would exhaust the kernel's inotify instances,
/// of which a user has 128: kubelets then fail to start.
const fn clusters(modules: &'static [&'static str], lane: &'static str, servers: Servers, expected: u32) -> Tier {
    Tier { resource: Some(lane), threads: 1, servers, limit: 1800, ..light(modules[0], CLUSTER, modules, expected) }
}

/// The tiers of this workspace.
pub static TAILYARD: Table = Table {
    tools: Some("tailyard-kit"),
    servers: "tests/servers/build",
    tiers: &[
        Tier { slots: 2, check: true, ..light("lib", LIB, &[], 80) },
        Tier { check: true, ..light("kit", KIT, &[], 5) },
        Tier {
            check: true,
            ..light("pure", PURE, &["cost", "docs", "firewall", "kinds", "language", "layers", "metrics", "objects", "report"], 10)
        },
        light("cli", PURE, &["cli", "kubeconfig"], 5),
        Tier { threads: 4, ..light("dns", PURE, &["dns"], 20) },
        Tier { check: true, ..light("front_end", PURE, &["front_end"], 20) },
        Tier { check: true, threads: 4, ..light("supervise", PURE, &["supervise"], 10) },
        light("kernel", MACHINE, &["kernel", "netns"], 40),
        Tier { slots: 2, ..light("proxy", MACHINE, &["proxy"], 90) },
        Tier { slots: 2, threads: 1, ..light("demo", MACHINE, &["demo"], 60) },
        Tier { slots: 2, ..light("load", MACHINE, &["load"], 20) },
        Tier { servers: &[HELM], ..light("chart", PACKAGE, &["chart"], 20) },
        light("crd", PACKAGE, &["crd", "served"], 15),
        Tier { servers: &[DAEMON], ..light("image", PACKAGE, &["image"], 15) },
        Tier { servers: &[API_SERVER], threads: 1, ..light("kube", API, &["kube"], 110) },
        Tier { servers: &[HOSTED, API_SERVER, CONTROLLERS], threads: 1, ..light("reconciler", API, &["reconciler"], 900) },
        Tier { servers: &[HOSTED, HEADSCALE, DAEMON], ..light("control", API, &["control"], 15) },
        Tier { servers: &[HOSTED, DAEMON, ACME, API_SERVER], threads: 1, ..light("certs", API, &["certs"], 85) },
        Tier { servers: &[API_SERVER], slots: 2, threads: 1, ..light("soak", API, &["soak"], 55) },
        Tier { servers: &[HEADSCALE, DAEMON], ..light("tailnet", CLUSTER, &["tailnet"], 60) },
        Tier { servers: &[HOSTED, HEADSCALE, DAEMON, ACME, API_SERVER], ..light("advertise", CLUSTER, &["advertise"], 90) },
        Tier { slots: 2, ..clusters(&["cluster"], "first cluster", &[CLUSTER_PROGRAMS, HELM], 460) },
        clusters(&["services"], "first cluster", &[CLUSTER_PROGRAMS, HELM], 350),
        clusters(&["ingress"], "second cluster", &[CLUSTER_PROGRAMS, HELM, HOSTED, ACME, &["containerboot"]], 210),
        clusters(&["connector"], "first cluster", &[CLUSTER_PROGRAMS, HELM, HOSTED], 80),
        Tier { slots: 2, ..clusters(&["crossing"], "second cluster", &[CLUSTER_PROGRAMS, HELM, HOSTED, ACME], 240) },
        Tier { slots: 2, ..clusters(&["api_server"], "first cluster", &[CLUSTER_PROGRAMS, HELM, HOSTED, ACME], 200) },
        clusters(&["dropin"], "second cluster", &[CLUSTER_PROGRAMS, HELM, HOSTED, ACME, OPERATOR], 800),
        Tier { slots: 2, by_hand: true, ..clusters(&["upgrade"], "first cluster", &[CLUSTER_PROGRAMS, HELM, HOSTED, ACME], 240) },
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tier_names_are_unique_and_limits_are_valid() {
        let names: BTreeSet<&str> = TAILYARD.tiers.iter().map(|tier| tier.name).collect();
        assert_eq!(names.len(), TAILYARD.tiers.len());
        for tier in TAILYARD.tiers {
            assert!(tier.threads > 0 && tier.slots > 0 && tier.limit >= 2 * tier.expected, "{}", tier.name);
            assert!(!tier.check || (tier.servers.is_empty() && !tier.by_hand), "{}", tier.name);
        }
    }
}

use super::*;
use crate::api::failover::UnreachableStage;

fn good() -> HealthInputs {
    HealthInputs { netmap: true, addressed: true, daemon: DaemonHealth::Running, rules: Rules::Current, ..HealthInputs::default() }
}

fn names(facts: &HealthInputs) -> Vec<&'static str> {
    readiness(facts).iter().map(Blocker::name).collect()
}

#[test]
fn healthy_inputs_are_ready() {
    assert_eq!((names(&good()), forwards(&good())), (vec![], true));
    assert_eq!(names(&HealthInputs { daemon: DaemonHealth::Foreign, rules: Rules::Unneeded, ..good() }), [""; 0]);
}

#[test]
fn startup_names_all_blockers() {
    let start = HealthInputs {
        missing_configs: vec!["egress"],
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
fn dead_tailscaled_blocks_readiness_at_once() {
    let dead = HealthInputs { daemon: DaemonHealth::Away("down".into()), ..good() };
    assert_eq!((names(&dead), forwards(&dead)), (vec!["tailscaled"], true));
}

#[test]
fn outdated_ruleset_is_a_warning() {
    let fault = Some(("nft", "no such file".into()));
    let behind = |since| HealthInputs { rules: Rules::Behind { first: false, since, fault: fault.clone() }, ..good() };
    let starting = HealthInputs { rules: Rules::Behind { first: true, since: Duration::ZERO, fault: fault.clone() }, ..good() };
    assert_eq!(names(&starting), ["ruleset"], "a start that has not caught up");
    assert_eq!((warnings(&behind(MAX_RULESET_LAG)), names(&behind(MAX_RULESET_LAG))), (vec![], vec![]));
    let late = behind(MAX_RULESET_LAG * 2);
    assert_eq!((names(&late), forwards(&late)), (vec![], true), "an older plan forwards");
    let line = "ruleset-lag: the ruleset has been older than the newest plan for 4 s: nft: no such file";
    assert_eq!(warnings(&late).iter().map(ToString::to_string).collect::<Vec<_>>(), [line]);
}

#[test]
fn unrepairable_ruleset_blocks_readiness() {
    let damaged = HealthInputs { rules: Rules::Damaged { fault: ("nft", "no such file".into()) }, ..good() };
    assert_eq!((names(&damaged), forwards(&damaged), warnings(&damaged)), (vec!["ruleset"], false, vec![]));
    let line = "ruleset: the kernel has a ruleset that another program changed and that cannot be repaired: nft: no such file";
    assert_eq!(readiness(&damaged)[0].to_string(), line);
}

#[test]
fn untried_peers_block_readiness_while_tailscaled_runs() {
    let untried = |waiting: &[IpAddr]| Paths::Untried { waiting: waiting.iter().copied().collect() };
    let trying = HealthInputs { paths: untried(&[[100, 64, 0, 2].into()]), ..good() };
    assert_eq!((names(&trying), forwards(&trying)), (vec!["peer-connectivity"], true));
    let line = "peer-connectivity: no answer through the tailnet yet from 100.64.0.2; ready after 7s at the latest";
    assert_eq!(readiness(&trying)[0].to_string(), line);
    assert_eq!(names(&HealthInputs { paths: untried(&[]), ..good() }), ["peer-connectivity"]);
    assert_eq!(names(&HealthInputs { daemon: DaemonHealth::Away("Down".into()), ..trying }), ["tailscaled"]);
}

#[test]
fn unadvertised_services_block_readiness() {
    let services: BTreeMap<_, _> = [("svc:a".to_owned(), "the kernel holds no rules yet".to_owned())].into();
    let starting = HealthInputs { services: services.clone(), ..good() };
    assert_eq!((names(&starting), forwards(&starting)), (vec!["services"], true));
    assert_eq!(readiness(&starting)[0].to_string(), "services: not advertised and approved yet: svc:a (the kernel holds no rules yet)");
    assert_eq!(names(&HealthInputs { daemon: DaemonHealth::Away("Down".into()), ..starting }), ["tailscaled"]);
}

#[test]
fn unreachable_api_server_blocks_readiness_alone() {
    let facts = HealthInputs { api_server: Some("connection refused".into()), ..good() };
    assert_eq!((names(&facts), forwards(&facts)), (vec!["api-server"], true));
    assert_eq!(readiness(&facts)[0].to_string(), "api-server: the Kubernetes API server is unreachable: connection refused");
}

#[test]
fn funnel_error_is_a_warning() {
    let facts = HealthInputs { funnel_errors: [("svc:a".to_owned(), "it may not be".to_owned())].into(), ..good() };
    assert_eq!(names(&facts), [""; 0]);
    assert_eq!(warnings(&facts)[0].to_string(), "funnel: svc:a is not reachable from the internet: it may not be");
}

#[test]
fn every_blocker_is_listed_and_has_a_text() {
    let note = UnreachableNote {
        stage: UnreachableStage::Lost,
        process: "r-1".into(),
        time: "2026-01-01T00:10:03.4Z".into(),
        since: "2026-01-01T00:10:01Z".into(),
        connected: true,
    };
    let all = HealthInputs {
        leaving: true,
        unreachable: Some(note),
        missing_configs: vec!["ingress"],
        daemon: DaemonHealth::Away("down".into()),
        interface: Some("tailscale0 is down".into()),
        api_server: Some("connection refused".into()),
        rules: Rules::Missing { fault: None },
        switches: vec!["x".into()],
        ..HealthInputs::default()
    };
    let mut found = names(&all);
    let services = [("svc:a".to_owned(), "no certificate".to_owned())].into();
    found.extend(names(&HealthInputs { addressed: false, paths: Paths::Untried { waiting: BTreeSet::new() }, services, ..good() }));
    assert!(Blocker::NAMES.iter().all(|name| found.contains(name)), "{found:?}");
    assert!(readiness(&all).iter().all(|blocker| blocker.to_string().starts_with(&format!("{}: ", blocker.name()))));
}

#[test]
fn ruleset_lag_counts_from_first_newer_plan_or_last_write() {
    let second = Duration::from_secs;
    let fault = ("Refused", "no space".to_owned());
    let writes =
        |written_at: u64, count, newest| RulesetWrites { written_at: Some(second(written_at)), count, newest, ..RulesetWrites::default() };
    let behind = |first, since| Rules::Behind { first, since: second(since), fault: None };
    let mut lag = RulesetLag::default();
    let nothing = RulesetWrites { fault: Some(fault.clone()), ..RulesetWrites::default() };
    assert_eq!(lag.observe(nothing, second(1)), Rules::Missing { fault: Some(fault.clone()) });
    assert_eq!(lag.observe(writes(2, 1, false), second(2)), behind(true, 0), "the first write takes longer than a change does");
    assert_eq!(lag.observe(writes(2, 1, false), second(5)), behind(true, 3));
    assert_eq!(lag.observe(writes(6, 2, false), second(7)), behind(false, 1), "a newer write counts");
    assert_eq!(lag.observe(writes(8, 3, true), second(8)), Rules::Current);
    assert_eq!(lag.observe(writes(8, 1, false), second(9)), behind(false, 0), "it has held the newest plan");
    let damaged = |fault| RulesetWrites { damaged: true, fault, ..writes(8, 3, false) };
    assert_eq!(lag.observe(damaged(Some(fault.clone())), second(10)), Rules::Damaged { fault });
    assert_eq!(lag.observe(damaged(None), second(11)), behind(false, 2), "the repair has not failed");
}

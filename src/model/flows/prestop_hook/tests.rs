use super::*;

const OWN: &str = "10.0.0.5";

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn from(ips: &[&str]) -> HealthProbe {
    HealthProbe::Answered(ips.iter().map(|ip| ip.parse().expect("an address")).collect())
}

fn leaving(services: &[&str]) -> DrainingServices {
    let own = [OWN, "fd00::5"].map(|ip| ip.parse().expect("an address")).into();
    DrainingServices::new(own, services.iter().map(|name| (*name).into()), at(0))
}

#[test]
fn pod_without_services_is_drained_at_once() {
    assert_eq!(leaving(&[]).verdict(at(0)), HookVerdict::Drained);
}

#[test]
fn own_probe_answer_means_still_routed() {
    let mut state = leaving(&["a", "b"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[from(&["10.0.0.6"]), from(&[OWN])]);
    state.probed("b", &[from(&["10.0.0.6"]), from(&["10.0.0.7"])]);
    assert_eq!(state.verdict(at(1)), HookVerdict::Routed(vec!["a".into()]));
    assert_eq!(state.to_ask(), ["a".into()]);
    // Either family counts.
    state.probed("a", &[from(&["10.0.0.6", "fd00::5"])]);
    assert_eq!(state.verdict(at(2)), HookVerdict::Routed(vec!["a".into()]));
}

#[test]
fn no_new_flows_after_rerouting_means_drained() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[from(&["10.0.0.6"])]);
    assert_eq!(state.verdict(at(1)), HookVerdict::Settling(at(2)));
    state.counted(Some(8), at(2));
    assert_eq!(state.verdict(at(4)), HookVerdict::Settling(at(1)), "a new flow came: some node still leads here");
    state.counted(Some(8), at(5));
    assert_eq!(state.verdict(at(5)), HookVerdict::Drained);
}

#[test]
fn quiet_time_before_rerouting_counts() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[from(&[OWN])]);
    assert!(matches!(state.verdict(at(19)), HookVerdict::Routed(_)));
    state.counted(Some(7), at(20));
    state.probed("a", &[from(&["10.0.0.6"])]);
    assert_eq!(state.verdict(at(20)), HookVerdict::Drained);
}

#[test]
fn reset_flow_counter_counts_as_new_flows() {
    let mut state = leaving(&["a"]);
    state.probed("a", &[from(&["10.0.0.6"])]);
    state.counted(Some(7), at(0));
    state.counted(Some(0), at(10));
    assert_eq!(state.verdict(at(11)), HookVerdict::Settling(at(2)));
}

#[test]
fn missing_flow_counter_requires_a_fixed_wait() {
    let mut state = leaving(&["a"]);
    state.counted(None, at(0));
    state.probed("a", &[from(&[OWN])]);
    assert!(matches!(state.verdict(at(5)), HookVerdict::Routed(_)));
    state.probed("a", &[from(&["10.0.0.6"])]);
    assert_eq!(state.verdict(at(6)), HookVerdict::Settling(at(9)));
    assert_eq!(state.verdict(at(15)), HookVerdict::Drained);
}

#[test]
fn refused_probes_count_after_consecutive_rounds() {
    let mut state = leaving(&["a"]);
    state.counted(Some(0), at(0));
    for round in 1..ROUNDS {
        state.probed("a", &[HealthProbe::Refused, HealthProbe::Refused]);
        assert!(matches!(state.verdict(at(100)), HookVerdict::Routed(_)), "round {round}");
    }
    state.probed("a", &[HealthProbe::Refused, from(&[OWN])]);
    assert!(matches!(state.verdict(at(100)), HookVerdict::Routed(_)), "it leads here again");
    for _ in 0..ROUNDS {
        state.probed("a", &[HealthProbe::Refused]);
    }
    assert_eq!(state.verdict(at(100)), HookVerdict::Drained);
    assert_eq!(state.to_ask(), [] as [Arc<str>; 0]);
}

#[test]
fn unanswered_probes_need_longer_quiet_time_and_are_repeated() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    for _ in 0..ROUNDS {
        assert!(matches!(state.verdict(at(4)), HookVerdict::Routed(_)));
        state.probed("a", &[from(&["10.0.0.6"]), HealthProbe::Silent]);
    }
    assert_eq!(state.verdict(at(4)), HookVerdict::Settling(at(6)));
    assert_eq!(state.to_ask(), ["a".into()]);
    assert_eq!(state.verdict(at(10)), HookVerdict::Drained);
}

#[test]
fn answer_without_pod_address_is_another_pod() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[from(&[])]);
    assert_eq!(state.verdict(at(3)), HookVerdict::Drained);
}

#[test]
fn zero_probes_mean_not_routed() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[]);
    assert_eq!(state.verdict(at(3)), HookVerdict::Drained);
}

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
fn a_pod_without_services_is_drained_at_once() {
    assert_eq!(leaving(&[]).verdict(at(0)), HookVerdict::Drained);
}

#[test]
fn one_answer_of_our_own_means_that_it_leads_here() {
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
fn silence_after_the_evidence_ends_it_without_a_fixed_wait() {
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
fn silence_that_began_before_the_evidence_counts() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[from(&[OWN])]);
    assert!(matches!(state.verdict(at(19)), HookVerdict::Routed(_)));
    state.counted(Some(7), at(20));
    state.probed("a", &[from(&["10.0.0.6"])]);
    assert_eq!(state.verdict(at(20)), HookVerdict::Drained);
}

#[test]
fn counters_that_start_again_are_new_flows() {
    let mut state = leaving(&["a"]);
    state.probed("a", &[from(&["10.0.0.6"])]);
    state.counted(Some(7), at(0));
    state.counted(Some(0), at(10));
    assert_eq!(state.verdict(at(11)), HookVerdict::Settling(at(2)));
}

#[test]
fn without_counters_the_wait_is_blind() {
    let mut state = leaving(&["a"]);
    state.counted(None, at(0));
    state.probed("a", &[from(&[OWN])]);
    assert!(matches!(state.verdict(at(5)), HookVerdict::Routed(_)));
    state.probed("a", &[from(&["10.0.0.6"])]);
    assert_eq!(state.verdict(at(6)), HookVerdict::Settling(at(9)));
    assert_eq!(state.verdict(at(15)), HookVerdict::Drained);
}

#[test]
fn refusals_are_believed_after_a_few_rounds_in_a_row() {
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
fn what_cannot_be_asked_needs_more_silence_and_is_asked_on() {
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
fn a_pod_that_does_not_say_who_it_is_is_not_us() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[from(&[])]);
    assert_eq!(state.verdict(at(3)), HookVerdict::Drained);
}

#[test]
fn no_probes_at_all_are_the_operators_word_that_nothing_leads_here() {
    let mut state = leaving(&["a"]);
    state.counted(Some(7), at(0));
    state.probed("a", &[]);
    assert_eq!(state.verdict(at(3)), HookVerdict::Drained);
}

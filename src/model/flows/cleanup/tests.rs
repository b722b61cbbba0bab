use proptest::prelude::*;

use super::*;
use crate::model::base::net::{Family, InterfaceName, Port, Proto};
use crate::model::firewall::ruleset::SiblingAddresses;
use crate::model::flows::flow::{DST_NAT, Tuple};

const OWN: &str = "100.64.0.1:4000";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn add<T: Ord + Copy>(few: &mut SortedSet<T>, value: T) {
    *few = few.iter().copied().chain([value]).collect();
}

fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

fn ruleset(ports: &[(PortKey, &[&str])]) -> Ruleset {
    let mut ruleset = Ruleset::empty(InterfaceName::tailscale0());
    ruleset.source.insert(Family::V4, ip("100.64.0.1"));
    ruleset.ports =
        ports.iter().map(|(key, targets)| (*key, targets.iter().map(|target| address(target)).collect::<SortedSet<_>>())).collect();
    ruleset
}

fn flow(key: PortKey, target: &str) -> Flow {
    Flow {
        proto: key.proto.number(),
        original: Tuple { source: address("10.0.0.9:4000"), destination: SocketAddr::new(ip("10.0.0.1"), key.port.get()) },
        reply: Tuple { source: address(target), destination: address(OWN) },
        tcp: (key.proto == Proto::Tcp).then_some(TcpState::Established),
        status: DST_NAT | SRC_NAT,
        mark: 0,
        timeout: 100,
        id: 1,
    }
}

fn verdict(before: &Ruleset, after: &Ruleset, flow: &Flow, reachable: bool) -> FlowAction {
    since(&[before], after, flow, reachable)
}

/// As above, with these rulesets in force one after the other.
fn since(before: &[&Ruleset], after: &Ruleset, flow: &Flow, reachable: bool) -> FlowAction {
    let past = past(before.iter().copied().chain([after]));
    FlowChanges::new(&past, &past.until(after), after, &|_| reachable).verdict(flow)
}

fn past<'a>(rules: impl IntoIterator<Item = &'a Ruleset>) -> RulesetHistory {
    let mut rules = rules.into_iter();
    let mut past = RulesetHistory::of(rules.next().expect("some rules"), None);
    rules.for_each(|rules| past.add(rules, None));
    past
}

const A: &str = "100.64.0.2:80";
const B: &str = "100.64.0.3:80";

#[test]
fn removed_key_resets_tcp_and_deletes_udp_flows() {
    let (tcp, udp) = (key(Proto::Tcp, 1), key(Proto::Udp, 1));
    let (before, after) = (ruleset(&[(tcp, &[A]), (udp, &[A])]), ruleset(&[]));
    assert_eq!(verdict(&before, &after, &flow(tcp, A), true), FlowAction::Reset);
    assert_eq!(verdict(&before, &after, &flow(udp, A), true), FlowAction::Delete);
    assert_eq!(verdict(&before, &after, &flow(tcp, B), true), FlowAction::Reset, "one that drained on an older target, too");
}

#[test]
fn retargeted_key_deletes_udp_and_drains_tcp_while_its_target_is_reachable() {
    let (tcp, udp) = (key(Proto::Tcp, 1), key(Proto::Udp, 1));
    let (before, after) = (ruleset(&[(tcp, &[A]), (udp, &[A])]), ruleset(&[(tcp, &[B]), (udp, &[B])]));
    assert_eq!(verdict(&before, &after, &flow(udp, A), true), FlowAction::Delete);
    assert_eq!(verdict(&before, &after, &flow(udp, B), true), FlowAction::Keep);
    assert_eq!(verdict(&before, &after, &flow(tcp, A), true), FlowAction::Keep);
    assert_eq!(verdict(&before, &after, &flow(tcp, A), false), FlowAction::Reset);
}

#[test]
fn removed_target_ends_only_its_own_flows() {
    let udp = key(Proto::Udp, 1);
    let (before, after) = (ruleset(&[(udp, &[A, B])]), ruleset(&[(udp, &[B])]));
    assert_eq!(verdict(&before, &after, &flow(udp, A), true), FlowAction::Delete);
    assert_eq!(verdict(&before, &after, &flow(udp, B), true), FlowAction::Keep);
}

#[test]
fn transient_key_leaves_no_flow_and_transient_removal_ends_none() {
    let (tcp, udp) = (key(Proto::Tcp, 1), key(Proto::Udp, 1));
    let (nothing, there) = (ruleset(&[]), ruleset(&[(tcp, &[A]), (udp, &[A])]));
    assert_eq!(since(&[&nothing, &there], &nothing, &flow(tcp, A), true), FlowAction::Reset);
    assert_eq!(since(&[&there, &nothing], &there, &flow(udp, A), true), FlowAction::Keep);
    let at_b = ruleset(&[(tcp, &[B]), (udp, &[B])]);
    assert_eq!(since(&[&there, &at_b], &there, &flow(udp, B), true), FlowAction::Delete);
    assert_eq!(since(&[&there, &at_b], &there, &flow(udp, A), true), FlowAction::Keep);
    assert_eq!(since(&[&there, &at_b], &there, &flow(tcp, B), false), FlowAction::Reset);
}

#[test]
fn closed_tcp_flow_is_deleted_without_reset() {
    let tcp = key(Proto::Tcp, 1);
    let (before, after) = (ruleset(&[(tcp, &[A])]), ruleset(&[]));
    let ended = |state| verdict(&before, &after, &Flow { tcp: Some(state), ..flow(tcp, A) }, true);
    assert_eq!(ended(TcpState::Close), FlowAction::Delete);
    assert_eq!(ended(TcpState::SynSent), FlowAction::Reset, "the answer may be under way");
}

#[test]
fn time_wait_flow_is_neither_listed_nor_ended() {
    let tcp = key(Proto::Tcp, 1);
    let (before, after) = (ruleset(&[(tcp, &[A])]), ruleset(&[]));
    let over = Flow { tcp: Some(TcpState::TimeWait), ..flow(tcp, A) };
    assert_eq!(verdict(&before, &after, &over, false), FlowAction::Keep);
    let past = past([&before]);
    let filter = FlowChanges::new(&past, &past.until(&after), &after, &|_| true).filter();
    assert!(!filter.admits(&over) && filter.admits(&flow(tcp, A)));
}

#[test]
fn changed_source_address_resets_its_flows() {
    let tcp = key(Proto::Tcp, 1);
    let before = ruleset(&[(tcp, &[A])]);
    let mut after = before.clone();
    after.source.insert(Family::V4, ip("100.64.0.7"));
    assert_eq!(verdict(&before, &after, &flow(tcp, A), true), FlowAction::Reset);
    let moved = Flow { reply: Tuple { destination: address("100.64.0.7:1"), ..flow(tcp, A).reply }, ..flow(tcp, A) };
    assert_eq!(verdict(&before, &after, &moved, true), FlowAction::Keep);
}

#[test]
fn tailnet_flow_depends_on_its_address_and_not_on_match_ports() {
    let (vip, backend, tcp) = (ip("100.99.0.1"), ip("10.96.0.1"), key(Proto::Tcp, 1));
    let mut before = ruleset(&[(tcp, &[A])]);
    before.from_tailnet.insert(vip, [backend].into());
    let mut ingress = flow(tcp, "10.96.0.1:1");
    ingress.original.destination.set_ip(vip);
    let mut after = before.clone();
    after.ports.clear();
    assert_eq!(verdict(&before, &after, &ingress, true), FlowAction::Keep);
    after.from_tailnet.clear();
    assert_eq!(verdict(&before, &after, &ingress, true), FlowAction::Reset);
    let ping = Flow { proto: 1, tcp: None, ..ingress };
    assert_eq!(verdict(&before, &after, &ping, true), FlowAction::Delete);
}

#[test]
fn connection_to_a_listener_of_the_pod_never_ends() {
    let (vip, tcp) = (ip("100.99.0.1"), key(Proto::Tcp, 443));
    let mut before = ruleset(&[]);
    before.from_tailnet.insert(vip, SortedSet::default());
    before.listeners.insert(address("100.99.0.1:443"), address("100.64.0.1:40443"));
    let connection = flow_to(vip, tcp, "100.64.0.1:40443");
    let nothing = ruleset(&[]);
    for (before, after) in [(&before, &nothing), (&nothing, &before), (&before, &before)] {
        for reachable in [true, false] {
            assert_eq!(verdict(before, after, &connection, reachable), FlowAction::Keep);
            assert_eq!(FlowChanges::audit(after, &|_| reachable).verdict(&connection), FlowAction::Keep);
        }
    }
    // A connection to the former backend of an L3 service ends.
    let mut former = ruleset(&[]);
    former.from_tailnet.insert(vip, [ip("10.96.0.1")].into());
    assert_eq!(verdict(&former, &before, &flow_to(vip, tcp, "10.96.0.1:443"), false), FlowAction::Reset);
}

fn flow_to(vip: IpAddr, key: PortKey, target: &str) -> Flow {
    let mut flow = flow(key, target);
    flow.original.destination.set_ip(vip);
    flow
}

#[test]
fn whole_address_mapping_applies_after_match_ports() {
    let (pod, tcp, other) = (ip("10.0.0.1"), key(Proto::Tcp, 1), key(Proto::Tcp, 2));
    let mut before = ruleset(&[(tcp, &[A])]);
    before.from_cluster.insert(pod, [ip("100.64.0.2")].into());
    let mut after = before.clone();
    after.from_cluster.clear();
    assert_eq!(verdict(&before, &after, &flow(other, "100.64.0.2:2"), true), FlowAction::Reset);
    assert_eq!(verdict(&before, &after, &flow(tcp, A), true), FlowAction::Keep);
}

#[test]
fn audit_resets_draining_flows_of_an_unreachable_target() {
    let tcp = key(Proto::Tcp, 1);
    let now = ruleset(&[(tcp, &[B])]);
    let gone = |address: IpAddr| address != ip("100.64.0.2");
    let cuts = FlowChanges::audit(&now, &gone);
    assert_eq!(cuts.verdict(&flow(tcp, A)), FlowAction::Reset);
    assert_eq!(cuts.verdict(&flow(tcp, B)), FlowAction::Keep);
    assert_eq!(cuts.verdict(&flow(key(Proto::Tcp, 9), A)), FlowAction::Keep, "not ours to judge");
}

#[test]
fn added_keys_need_no_listing_and_one_changed_key_a_filtered_one() {
    let (one, two) = (key(Proto::Tcp, 1), key(Proto::Udp, 2));
    let (before, after) = (ruleset(&[(one, &[A])]), ruleset(&[(one, &[A, B]), (two, &[A])]));
    let (few, many) = (past([&before]), past([&after]));
    assert!(FlowChanges::new(&few, &few.until(&after), &after, &|_| true).is_empty());
    let back = many.until(&before);
    let filter = |reachable: bool| FlowChanges::new(&many, &back, &before, &|_| reachable).filter();
    assert_eq!(filter(false), FlowFilter::under_way());
    assert_eq!(filter(true).key, Some(two), "connections drain on a target that lives");
    let less = ruleset(&[(one, &[A, B])]);
    assert_eq!(FlowChanges::new(&many, &many.until(&less), &less, &|_| true).filter().key, Some(two));
}

fn any_ruleset() -> impl Strategy<Value = Ruleset> {
    let target = (2_u8..5).prop_map(|host| SocketAddr::from(([100, 64, 0, host], 80)));
    let ports = prop::collection::btree_map((1_u16..5, any::<bool>()), prop::collection::btree_set(target, 0..3), 0..5);
    let hosts = prop::collection::btree_map(1_u8..3, prop::collection::btree_set(2_u8..5, 0..3), 0..3);
    (ports, hosts, prop_oneof![Just(1_u8), Just(9)]).prop_map(|(ports, hosts, own)| {
        let mut ruleset = ruleset(&[]);
        ruleset.source.insert(Family::V4, IpAddr::from([100, 64, 0, own]));
        let proto = |tcp| if tcp { Proto::Tcp } else { Proto::Udp };
        ruleset.ports = ports.into_iter().map(|((port, tcp), targets)| (key(proto(tcp), port), targets)).collect();
        let address = |host| IpAddr::from([100, 64, 0, host]);
        ruleset.from_tailnet = hosts
            .into_iter()
            .map(|(vip, to)| (IpAddr::from([100, 99, 0, vip]), to.into_iter().map(address).collect::<SortedSet<_>>()))
            .collect();
        ruleset
    })
}

proptest! {
    /// A flow that matches the new ruleset never ends, nor does any flow after an empty change. Other flows end unless they are TCP with a
    /// reachable target, and the filtered listing includes each flow that ends.
    #[test]
    fn only_flows_of_changed_rules_end(
        before in any_ruleset(), after in any_ruleset(), tcp in any::<bool>(), port in 1_u16..5, host in 2_u8..5,
        vip in prop::option::of(1_u8..3), reachable in any::<bool>(),
    ) {
        let mut before = before;
        let key = key(if tcp { Proto::Tcp } else { Proto::Udp }, port);
        let mut flow = flow(key, &format!("100.64.0.{host}:80"));
        flow.reply.destination.set_ip(before.source[&Family::V4]);
        if let Some(vip) = vip {
            let vip = IpAddr::from([100, 99, 0, vip]);
            flow.original.destination.set_ip(vip);
            add(before.from_tailnet.entry(vip).or_default(), flow.target().ip());
        } else {
            add(before.ports.entry(key).or_default(), flow.target());
        }
        let makes = |rules: &Ruleset| {
            let ip = flow.target().ip();
            match vip {
                Some(_) => rules.from_tailnet.get(&flow.original.destination.ip()).is_some_and(|to| to.contains(&ip)),
                None => rules.ports.get(&key).is_some_and(|to| to.contains(&flow.target())),
            }
        };
        prop_assert!(makes(&before));
        let past = past([&before]);
        let delta = past.until(&after);
        let alive = move |_: IpAddr| reachable;
        let cuts = FlowChanges::new(&past, &delta, &after, &alive);
        let verdict = cuts.verdict(&flow);
        let same_source = before.source == after.source;
        let key_stays = match vip {
            Some(_) => after.from_tailnet.contains_key(&flow.original.destination.ip()),
            None => after.ports.contains_key(&key),
        };
        let drains = tcp && reachable && key_stays;
        prop_assert_eq!(verdict == FlowAction::Keep, same_source && (makes(&after) || drains));
        prop_assert!(verdict == FlowAction::Keep || (!cuts.is_empty() && cuts.filter().admits(&flow)));
        let nothing = past.until(&before);
        prop_assert!(FlowChanges::new(&past, &nothing, &before, &alive).is_empty());
    }

    /// Consecutive rulesets together end the flows that each of them alone would end.
    #[test]
    fn transient_rules_leave_no_flow(
        rules in prop::collection::vec(any_ruleset(), 1..5), after in any_ruleset(), tcp in any::<bool>(), port in 1_u16..5, host in 2_u8..5,
        own in 1_u8..3, vip in prop::option::of(1_u8..3), reachable in any::<bool>(),
    ) {
        let mut flow = flow(key(if tcp { Proto::Tcp } else { Proto::Udp }, port), &format!("100.64.0.{host}:80"));
        flow.reply.destination.set_ip([100, 64, 0, own].into());
        if let Some(vip) = vip {
            flow.original.destination.set_ip([100, 99, 0, vip].into());
        }
        let rules: Vec<_> = rules.iter().collect();
        let each = rules.iter().any(|before| verdict(before, &after, &flow, reachable) != FlowAction::Keep);
        prop_assert_eq!(since(&rules, &after, &flow, reachable) != FlowAction::Keep, each);
    }
}

/// A flow that the kernel passed to a sibling replica while the tunnel was closed, to the same port.
fn passed(key: PortKey, sibling: &str) -> Flow {
    let to = SocketAddr::new(ip(sibling), key.port.get());
    Flow { reply: Tuple { source: to, destination: address("10.0.0.1:4000") }, mark: FALLBACK_MARK, ..flow(key, "100.64.0.7:1") }
}

fn beside(ports: &[(PortKey, &[&str])], siblings: &[&str]) -> Ruleset {
    let siblings = SiblingAddresses::new(ip("10.0.0.1"), siblings.iter().map(|text| ip(text))).expect("a sibling");
    Ruleset { siblings: [(Family::V4, siblings)].into_iter().collect(), ..ruleset(ports) }
}

#[test]
fn flow_to_a_sibling_ends_when_the_sibling_leaves() {
    let (tcp, udp) = (key(Proto::Tcp, 1), key(Proto::Udp, 1));
    let ports: [(PortKey, &[&str]); 2] = [(tcp, &["100.64.0.7:1"]), (udp, &["100.64.0.7:1"])];
    let (before, after) = (beside(&ports, &["10.0.0.2", "10.0.0.3"]), beside(&ports, &["10.0.0.3"]));
    assert_eq!(verdict(&before, &after, &passed(udp, "10.0.0.2"), true), FlowAction::Delete);
    assert_eq!(verdict(&before, &after, &passed(tcp, "10.0.0.2"), true), FlowAction::Reset);
    for stays in [passed(udp, "10.0.0.3"), passed(tcp, "10.0.0.3"), flow(udp, "100.64.0.7:1"), flow(tcp, "100.64.0.7:1")] {
        assert_eq!(verdict(&before, &after, &stays, true), FlowAction::Keep, "{stays:?}");
    }
    let past = past([&before, &after]);
    let (delta, filter) = (past.until(&after), FlowFilter::under_way());
    let changes = FlowChanges::new(&past, &delta, &after, &|_| true);
    assert!(!changes.is_empty() && changes.filter() == filter);

    // After a restart the process has no history, and may not know its siblings yet.
    for (now, expected) in [(after, FlowAction::Reset), (ruleset(&ports), FlowAction::Keep)] {
        assert_eq!(FlowChanges::audit(&now, &|_| true).verdict(&passed(tcp, "10.0.0.2")), expected);
        assert_eq!(FlowChanges::audit(&now, &|_| true).verdict(&passed(tcp, "10.0.0.3")), FlowAction::Keep);
    }
    let learned = beside(&ports, &["10.0.0.3"]);
    assert_eq!(verdict(&ruleset(&ports), &learned, &passed(tcp, "10.0.0.2"), true), FlowAction::Reset, "found after the restart");
}

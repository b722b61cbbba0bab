use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::api::siblings::Siblings;
use crate::api::targets::TargetRules;
use crate::model::base::net::{Family, Proto};
use crate::model::base::netmap::{Fqdn, NetMap, SelfNode};
use crate::model::config::{EgressConfig, IngressConfig};
use crate::model::plan::targets::TargetPolicy;
use crate::model::plan::world::{ServiceListeners, Single, VhostListeners};

fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn netmap(own: &[&str], peers: &[(&str, &[&str])]) -> NetMap {
    let addresses = own.iter().map(|text| ip(text)).collect();
    let peers: OrdMap<_, _> = peers
        .iter()
        .map(|(name, addresses)| (Fqdn::new(name).expect("a name"), addresses.iter().map(|text| ip(text)).collect::<BTreeSet<_>>()))
        .collect();
    let routes = peers.values().flatten().map(|ip: &IpAddr| ipnet::IpNet::from(*ip)).collect();
    NetMap { node: Some(SelfNode { addresses, ..SelfNode::default() }), peers, routes, ..NetMap::default() }
}

fn world(egress: &str) -> World {
    let reserved = [key(Proto::Tcp, 9002)].into();
    World {
        pod_ips: [ip("10.0.0.5"), ip("fd00::5")].into(),
        egress: Arc::new(EgressConfig::parse(egress.as_bytes()).expect("a config")),
        netmap: Some(Arc::new(netmap(
            &["100.64.0.1", "fd7a::1"],
            &[
                ("db.tail.lab", &["100.64.0.2", "fd7a::2"]),
                ("six.tail.lab", &["fd7a::6"]),
                ("more.tail.lab", &["100.64.0.3", "100.64.0.9"]),
            ],
        ))),
        ..World::empty(InterfaceName::tailscale0(), reserved)
    }
}

fn reasons(planned: &Planned, name: &str) -> Vec<&'static str> {
    planned.plan.rejected.get(name).into_iter().flatten().map(Reason::reason).collect()
}

#[test]
fn fqdn_target_uses_every_address_of_its_peer() {
    let planned = Planned::new(&world(
        r#"{"a":{"tailnetTarget":{"fqdn":"DB.tail.lab."},"ports":[{"protocol":"TCP","matchPort":10042,"targetPort":5432}]}}"#,
    ));
    let to: Vec<_> = planned.ruleset.ports[&key(Proto::Tcp, 10042)].iter().map(ToString::to_string).collect();
    assert_eq!(to, ["100.64.0.2:5432", "[fd7a::2]:5432"]);
    assert_eq!(planned.ruleset.source.get(&Family::V6), Some(&ip("fd7a::1")));
    assert!(planned.plan.rejected.is_empty());
}

#[test]
fn invalid_service_is_rejected_alone() {
    let planned = Planned::new(&world(
        r#"{"ok":{"tailnetTarget":{"ip":"100.64.0.9"},"ports":[{"protocol":"UDP","matchPort":53,"targetPort":53}]},
            "gone":{"tailnetTarget":{"fqdn":"typo.tail.lab"},"ports":[{"protocol":"TCP","matchPort":1,"targetPort":1}]},
            "sctp":{"tailnetTarget":{"ip":"100.64.0.9"},"ports":[{"protocol":"SCTP","matchPort":2,"targetPort":1},{"protocol":"TCP","matchPort":2,"targetPort":1}]},
            "zero":{"tailnetTarget":{"ip":"100.64.0.9"},"ports":[{"protocol":"TCP","matchPort":0,"targetPort":1},{"protocol":"TCP","matchPort":3,"targetPort":70000}]},
            "mine":{"tailnetTarget":{"ip":"100.64.0.9"},"ports":[{"protocol":"TCP","matchPort":9002,"targetPort":1}]},
            "both":{"tailnetTarget":{"ip":"100.64.0.9","fqdn":"db.tail.lab"},"ports":[{"protocol":"TCP","matchPort":4,"targetPort":1}]},
            "text":{"tailnetTarget":{"ip":"100.64.0.999"},"ports":[{"protocol":"TCP","matchPort":5,"targetPort":1}]},
            "bent":{"tailnetTarget":7}}"#,
    ));
    let expected: [(&str, &[&str]); 8] = [
        ("ok", &[]),
        ("gone", &["Unresolved"]),
        ("sctp", &["UnknownProtocol"]),
        ("zero", &["InvalidPort", "InvalidPort"]),
        ("mine", &["ReservedPort"]),
        ("both", &["InvalidTarget"]),
        ("text", &["InvalidAddress"]),
        ("bent", &["Malformed"]),
    ];
    for (name, kinds) in expected {
        assert_eq!(reasons(&planned, name), kinds, "{name}");
    }
    let ports: Vec<_> = planned.ruleset.ports.iter().map(|(key, to)| format!("{key} {}", to.len())).collect();
    assert_eq!(ports, ["tcp/1 0", "tcp/2 1", "tcp/4 0", "tcp/5 0", "udp/53 1"], "what has no target refuses");
}

fn by_address(ip: &str, port: u16) -> String {
    format!(r#"{{"tailnetTarget":{{"ip":"{ip}"}},"ports":[{{"protocol":"TCP","matchPort":{port},"targetPort":80}}]}}"#)
}

fn rejected(planned: &Planned) -> Vec<String> {
    let mut rejected = Vec::new();
    for (name, reasons) in &planned.plan.rejected {
        rejected.extend(reasons.iter().map(|reason| format!("{name} {}", reason.reason())));
    }
    rejected
}

#[test]
fn address_that_no_peer_routes_is_refused() {
    let config =
        format!(r#"{{"far":{},"near":{},"six":{}}}"#, by_address("10.1.2.3", 1), by_address("100.64.0.2", 2), by_address("fd7a::9", 3));
    let one_family = world(&config);
    let planned = Planned::new(&one_family);
    assert_eq!(rejected(&planned), ["far Unrouted", "six Unrouted"]);
    let targets = |planned: &Planned| [1, 2, 3].map(|port| planned.ruleset.ports[&key(Proto::Tcp, port)].len());
    assert_eq!(targets(&planned), [0, 1, 0], "a port without targets refuses");
    let mut wider = one_family.netmap.as_deref().cloned().expect("a netmap");
    wider.routes.insert("10.1.0.0/16".parse().expect("a prefix"));
    let routed = planned.next(&World { netmap: Some(Arc::new(wider)), ..one_family.clone() });
    assert_eq!((rejected(&routed), targets(&routed)), (vec!["six Unrouted".to_owned()], [1, 1, 0]), "a subnet route appears");
    let mut gone = one_family.netmap.as_deref().cloned().expect("a netmap");
    gone.routes.remove(&"100.64.0.2/32".parse::<ipnet::IpNet>().expect("a prefix"));
    let gone = routed.next(&World { netmap: Some(Arc::new(gone)), ..one_family.clone() });
    assert_eq!(targets(&gone), [0; 3], "and peers go");
    let unknown = gone.next(&World { netmap: None, ..one_family });
    assert_eq!(rejected(&unknown), [""; 0], "without a view of the tailnet there is nothing to say");
}

#[test]
fn single_proxys_address_that_no_peer_routes_is_refused() {
    let planned = Planned::new(&World { single: Single::TailnetIp(ip("100.64.0.8")), ..world("") });
    assert_eq!(rejected(&planned), ["TS_TAILNET_TARGET_IP Unrouted"]);
    assert!(planned.ruleset.from_cluster.values().all(|to| to.is_empty()) && planned.ruleset.from_cluster.len() == 2);
    assert_eq!(rejected(&planned.next(&world(""))), [""; 0]);
}

#[test]
fn forbidden_address_is_refused_even_where_a_peer_routes_it() {
    let targets = [("10.96.0.1", 1), ("169.254.169.254", 2), ("100.64.0.1", 3), ("10.0.0.5", 4)];
    let [api, meta, own, pod] = targets.map(|(ip, port)| by_address(ip, port));
    let mut all = world(&format!(r#"{{"api":{api},"meta":{meta},"own":{own},"pod":{pod}}}"#));
    let mut netmap = all.netmap.as_deref().cloned().expect("a netmap");
    netmap.routes.extend(["10.0.0.0/8", "169.254.0.0/16"].map(|net| net.parse::<ipnet::IpNet>().expect("a prefix")));
    all.netmap = Some(Arc::new(netmap));
    all.targets.denied = vec!["10.96.0.1/32".parse().expect("a prefix")];
    let refused = Planned::new(&all);
    assert_eq!(rejected(&refused), ["api ForbiddenTarget", "meta ForbiddenTarget", "own ForbiddenTarget", "pod ForbiddenTarget"]);
    assert!(refused.ruleset.ports.values().all(|to| to.is_empty()), "{:?}", refused.ruleset.ports);
    let mut allowing = all.clone();
    allowing.targets.allowed = vec!["169.254.169.254/32".parse().expect("a prefix")];
    assert_eq!(rejected(&refused.next(&allowing)), ["api ForbiddenTarget", "own ForbiddenTarget", "pod ForbiddenTarget"]);
}

#[test]
fn name_of_a_denied_address_is_refused_like_the_address() {
    let by_name = |name: &str, port: u16| {
        format!(r#"{{"tailnetTarget":{{"fqdn":"{name}"}},"ports":[{{"protocol":"TCP","matchPort":{port},"targetPort":80}}]}}"#)
    };
    let [db, via, svc] = [("DB.tail.lab.", 1), ("10-5-0-1-via-7", 2), ("svc.tail.lab", 3)].map(|(name, port)| by_name(name, port));
    let mut all = world(&format!(r#"{{"db":{db},"svc":{svc},"via":{via}}}"#));
    let mut netmap = netmap(&["100.64.0.1"], &[("db.tail.lab", &["100.64.7.2", "fd7a::2"])]);
    netmap.records.insert(Fqdn::new("svc.tail.lab").expect("a name"), [ip("100.99.0.1")].into());
    netmap.routes.extend(["100.99.0.1/32", "fd7a:115c:a1e0:b1a::/64"].map(|net| net.parse::<ipnet::IpNet>().expect("a prefix")));
    all.netmap = Some(Arc::new(netmap));
    let free = Planned::new(&all);
    assert_eq!(rejected(&free), [""; 0]);
    let nets = |list: &[&str]| list.iter().map(|net| net.parse().expect("a prefix")).collect::<Vec<_>>();
    let denied = nets(&["100.64.7.0/24", "100.99.0.1/32", "fd7a:115c:a1e0:b1a:0:7::/96"]);
    let rules = TargetRules { denied, ..TargetRules::default() };
    let mut denying = all.clone();
    denying.targets.rules = Arc::new(rules.clone());
    let refused = free.next(&denying);
    assert_eq!(rejected(&refused), ["svc ForbiddenTarget", "via ForbiddenTarget"]);
    let targets = [1, 2, 3].map(|port| refused.ruleset.ports[&key(Proto::Tcp, port)].len());
    assert_eq!(targets, [1, 0, 0], "the address of another family is permitted");
    let single = |rules: TargetRules| {
        let single = Single::TailnetFqdn(Fqdn::new("db.tail.lab").expect("a name"));
        let targets = TargetPolicy { rules: Arc::new(rules), ..TargetPolicy::default() };
        let planned = Planned::new(&World { single, targets, egress: Arc::default(), ..all.clone() });
        (planned.ruleset.from_cluster.values().map(|to| to.len()).sum::<usize>(), rejected(&planned))
    };
    let both = nets(&["100.64.0.0/10", "fd7a::/64"]);
    let forbidden = vec!["TS_TAILNET_TARGET_FQDN ForbiddenTarget".to_owned()];
    assert_eq!(single(TargetRules { denied: both.clone(), ..rules.clone() }), (0, forbidden.clone()));
    let inherited = TargetRules { inherited: both, ..TargetRules::default() };
    assert_eq!(single(inherited.clone()), (0, forbidden));
    let exempt = ["db.tail.lab.".to_owned()].into();
    assert_eq!(single(TargetRules { exempt, ..inherited }).0, 2, "as the StatefulSet has the name");
}

#[test]
fn duplicate_match_port_belongs_to_the_first_service() {
    let (a, b) = (by_address("100.64.0.2", 80), by_address("100.64.0.3", 80));
    let both = Planned::new(&world(&format!(r#"{{"b":{b},"a":{a}}}"#)));
    assert_eq!(reasons(&both, "b"), ["DuplicatePort"]);
    assert!(both.ruleset.ports[&key(Proto::Tcp, 80)].contains(&"100.64.0.2:80".parse().expect("an address")));
    let one_family = both.next(&world(&format!(r#"{{"b":{b}}}"#)));
    assert_eq!(reasons(&one_family, "b"), Vec::<&str>::new());
    assert!(one_family.ruleset.ports[&key(Proto::Tcp, 80)].contains(&"100.64.0.3:80".parse().expect("an address")));
}

#[test]
fn an_ingress_service_lacking_a_family_is_served_in_the_other() {
    let mut world = world("");
    let text = br#"{"svc:web":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.9"},"IPv6Mapping":{"TailscaleServiceIP":"","ClusterIP":""}},
                    "svc:web2":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.8"}}}"#;
    world.ingress = Arc::new(IngressConfig::parse(text).expect("a config"));
    let planned = Planned::new(&world);
    assert_eq!(planned.ruleset.from_tailnet.get(&ip("100.99.1.2")), Some(&[ip("10.96.0.9")].into()));
    assert_eq!(reasons(&planned, "svc:web2"), ["DuplicateAddress"]);
}

#[test]
fn address_of_a_tailscale_service_without_mapping_refuses() {
    let at = |four: &str, six: &str| {
        let mut netmap = netmap(&["100.64.0.1"], &[]);
        let granted = [("svc:web".to_owned(), [ip(four), ip(six)].into()), ("svc:other".to_owned(), [ip("100.99.1.9")].into())];
        netmap.node.as_mut().expect("a node").services.extend(granted);
        Some(Arc::new(netmap))
    };
    let mappings = [
        r#""IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.9"}"#,
        r#""IPv6Mapping":{"TailscaleServiceIP":"fd7a::99","ClusterIP":"fd00:96::9"}"#,
    ];
    for (mapping, served, to, refused) in
        [(mappings[0], "100.99.1.2", "10.96.0.9", "fd7a::99"), (mappings[1], "fd7a::99", "fd00:96::9", "100.99.1.2")]
    {
        let text = format!(r#"{{"svc:web":{{{mapping}}}}}"#);
        let before = World { ingress: Arc::new(IngressConfig::parse(text.as_bytes()).expect("a config")), ..world("") };
        let unknown = Planned::new(&before);
        assert_eq!(unknown.ruleset.from_tailnet.len(), 1, "its other address is not known");
        let both = OrdMap::from(vec![(ip(served), [ip(to)].into()), (ip(refused), SortedSet::default())]);
        let granted = World { netmap: at("100.99.1.2", "fd7a::99"), ..before.clone() };
        assert_eq!(unknown.next(&granted).ruleset.from_tailnet, both);
        assert!(Planned::new(&granted).plan.rejected.is_empty());
    }
    let unserved = Planned::new(&World { netmap: at("100.99.1.2", "fd7a::99"), ..world("") });
    assert!(unserved.ruleset.from_tailnet.is_empty(), "tailscaled serves an Ingress in both families");
}

fn listeners(addresses: &[&str], ports: &[(u16, u16)]) -> Arc<VhostListeners> {
    let listeners = ServiceListeners { addresses: addresses.iter().map(|text| ip(text)).collect(), ports: ports.iter().copied().collect() };
    Arc::new([("svc:web".into(), listeners)].into())
}

#[test]
fn listeners_get_the_served_ports_and_the_rest_is_refused() {
    let world = World { listeners: listeners(&["100.99.1.2", "fd7a::99"], &[(443, 40_001), (80, 40_002)]), ..world("") };
    let planned = Planned::new(&world);
    let at = |text: &str| text.parse::<std::net::SocketAddr>().expect("an address");
    let expected = [
        ("100.99.1.2:80", "100.64.0.1:40002"),
        ("100.99.1.2:443", "100.64.0.1:40001"),
        ("[fd7a::99]:80", "[fd7a::1]:40002"),
        ("[fd7a::99]:443", "[fd7a::1]:40001"),
    ];
    assert_eq!(planned.ruleset.listeners, expected.map(|(from, to)| (at(from), at(to))).into_iter().collect());
    let refused: Vec<_> = planned.ruleset.from_tailnet.iter().map(|(ip, to)| (ip.to_string(), to.len())).collect();
    assert_eq!(refused, [("100.99.1.2".to_owned(), 0), ("fd7a::99".to_owned(), 0)]);
    assert!(planned.plan.ingress.is_empty() && planned.plan.rejected.is_empty());

    // A tailnet of one family, and an address that only the netmap names.
    let mut netmap = netmap(&["100.64.0.7"], &[]);
    let node = netmap.node.as_mut().expect("a node");
    node.services.insert("svc:web".to_owned(), [ip("100.99.1.2"), ip("100.99.1.3"), ip("fd7a::99")].into());
    let next = planned.next(&World { netmap: Some(Arc::new(netmap)), ..world.clone() });
    assert_eq!(next.ruleset.listeners.values().map(ToString::to_string).collect::<Vec<_>>(), ["100.64.0.7:40002", "100.64.0.7:40001"]);
    assert_eq!(next.ruleset.from_tailnet.len(), 3);
    let closed = next.next(&World { listeners: Arc::default(), ..next.world.clone() });
    assert!(closed.ruleset.listeners.is_empty() && closed.ruleset.from_tailnet.is_empty());
}

#[test]
fn address_of_an_l3_service_has_no_listener() {
    let text = br#"{"svc:db":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.9"}}}"#;
    let ingress = Arc::new(IngressConfig::parse(text).expect("a config"));
    let planned = Planned::new(&World { ingress, listeners: listeners(&["100.99.1.2"], &[(443, 40_001)]), ..world("") });
    assert!(planned.ruleset.listeners.is_empty() && reasons(&planned, "svc:web") == ["DuplicateAddress"]);
    assert_eq!(planned.ruleset.from_tailnet, OrdMap::unit(ip("100.99.1.2"), [ip("10.96.0.9")].into()));
}

#[test]
fn external_name_uses_all_resolved_addresses() {
    let text = br#"{"svc:db":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":""},"IPv6Mapping":{"TailscaleServiceIP":"fd7a::99","ClusterIP":""},
        "externalName":"db.example.com"}}"#;
    let mut world = World { ingress: Arc::new(IngressConfig::parse(text).expect("a config")), ..world("") };
    assert_eq!(names(&world.ingress).collect::<Vec<_>>(), ["db.example.com"]);
    let unknown = Planned::new(&world);
    assert_eq!((reasons(&unknown, "svc:db"), unknown.ruleset.from_tailnet.len()), (vec!["NoAnswer"], 0));
    world.names = Arc::new([("db.example.com".to_owned(), [ip("192.0.2.1"), ip("192.0.2.2")].into())].into());
    let resolved = unknown.next(&world);
    assert_eq!(resolved.ruleset.from_tailnet.get(&ip("100.99.1.2")), Some(&[ip("192.0.2.1"), ip("192.0.2.2")].into()));
    assert_eq!(resolved.ruleset.from_tailnet.get(&ip("fd7a::99")), Some(&SortedSet::default()), "a family without an address refuses");
    assert_eq!(reasons(&resolved, "svc:db"), Vec::<&str>::new());
    world.names = Arc::new([("db.example.com".to_owned(), [ip("192.0.2.3")].into())].into());
    assert_eq!(resolved.next(&world).ruleset.from_tailnet.get(&ip("100.99.1.2")), Some(&[ip("192.0.2.3")].into()));
}

#[test]
fn forbidden_answers_of_dns_are_dropped_at_each_answer() {
    let text = br#"{"svc:db":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":""},"externalName":"db.example.com"}}"#;
    let mut world = World { ingress: Arc::new(IngressConfig::parse(text).expect("a config")), ..world("") };
    let answer = |text: &[&str]| Arc::new(BTreeMap::from([("db.example.com".to_owned(), text.iter().map(|text| ip(text)).collect())]));
    world.names = answer(&["192.0.2.1", "169.254.169.254", "127.0.0.1", "::ffff:10.0.0.5", "64:ff9b::a00:5", "100.64.0.3"]);
    let part = Planned::new(&world);
    assert_eq!(part.ruleset.from_tailnet.get(&ip("100.99.1.2")), Some(&[ip("192.0.2.1")].into()));
    assert_eq!(reasons(&part, "svc:db"), ["ForbiddenTarget"; 5]);
    world.names = answer(&["169.254.169.254"]);
    let nothing = part.next(&world);
    assert_eq!((nothing.ruleset.from_tailnet.len(), reasons(&nothing, "svc:db")), (0, vec!["ForbiddenTarget"]));
    world.names = answer(&["192.0.2.2", "fd7a::1"]);
    let good = nothing.next(&world);
    assert_eq!(good.ruleset.from_tailnet.get(&ip("100.99.1.2")), Some(&[ip("192.0.2.2")].into()));
    assert_eq!(good.plan.rejected["svc:db"].len(), 1, "this node's own address");
    let single = World { single: Single::DestDns("db.example.com".into()), names: answer(&["169.254.169.254"]), ..self::world("") };
    let single = Planned::new(&single);
    assert_eq!(rejected(&single), ["TS_EXPERIMENTAL_DEST_DNS_NAME ForbiddenTarget"]);
    assert!(single.ruleset.from_tailnet.values().all(|to| to.is_empty()), "refuses");
}

#[test]
fn cluster_traffic_via_ingress_maps_pod_addresses_to_the_node() {
    let planned = Planned::new(&World { via_ingress: true, ..world("") });
    let mapped: Vec<_> = planned.ruleset.from_cluster.iter().map(|(pod, to)| (*pod, to[0])).collect();
    assert_eq!(mapped, [(ip("10.0.0.5"), ip("100.64.0.1")), (ip("fd00::5"), ip("fd7a::1"))]);
}

#[test]
fn single_proxy_modes_map_whole_addresses() {
    let single = |single| Planned::new(&World { single, ..world("") });
    let dest = single(Single::DestIp { ip: ip("10.1.2.3"), other: None });
    assert_eq!(dest.ruleset.from_tailnet, OrdMap::unit(ip("100.64.0.1"), [ip("10.1.2.3")].into()));
    let both = Single::DestIp { ip: ip("fd00:96::3"), other: Some(ip("10.1.2.3")) };
    let [four, six] = [("100.64.0.1", "10.1.2.3"), ("fd7a::1", "fd00:96::3")].map(|(from, to)| (ip(from), SortedSet::from([ip(to)])));
    assert_eq!(single(both.clone()).ruleset.from_tailnet, OrdMap::from(vec![four.clone(), six]), "a Service of both families");
    let one_family = World { netmap: Some(Arc::new(netmap(&["100.64.0.1"], &[]))), single: both, ..world("") };
    let one_family = Planned::new(&one_family);
    assert_eq!((one_family.ruleset.from_tailnet, one_family.plan.rejected.len()), (OrdMap::from(vec![four]), 0), "a tailnet of one family");
    let six_only = Single::DestIp { ip: ip("fd00:96::3"), other: None };
    let six_only = World { netmap: Some(Arc::new(netmap(&["100.64.0.1"], &[]))), single: six_only, ..world("") };
    assert_eq!(reasons(&Planned::new(&six_only), "TS_DEST_IP"), ["NoAddress"]);
    let by_name = Single::TailnetFqdn(Fqdn::new("db.tail.lab").expect("a name"));
    let pod = Planned::new(&World { single: by_name, pod_ips: [ip("10.0.0.5")].into(), ..world("") });
    assert_eq!(pod.plan.rejected.len(), 0, "a cluster of one family reaches a target of both");
    let fqdn = single(Single::TailnetFqdn(Fqdn::new("six.tail.lab").expect("a name")));
    assert_eq!(fqdn.ruleset.from_cluster, OrdMap::unit(ip("fd00::5"), [ip("fd7a::6")].into()));
    let dns = single(Single::DestDns("db.example".into()));
    assert_eq!(reasons(&dns, "TS_EXPERIMENTAL_DEST_DNS_NAME"), ["Unresolved"]);
    assert_eq!(dns.ruleset.from_tailnet.get(&ip("fd7a::1")), Some(&SortedSet::default()), "refuses while there is no answer");
}

/// Any config of a few names over a few ports and targets, good and bad.
fn any_egress() -> impl Strategy<Value = String> {
    let port = (select(vec!["TCP", "UDP", "SCTP"]), select(vec![0_u32, 80, 81, 82, 9002]), select(vec![0_u32, 80, 443]));
    let target = select(vec![
        r#""ip":"100.64.0.9""#,
        r#""ip":"x""#,
        r#""fqdn":"db.tail.lab""#,
        r#""fqdn":"p.tail.lab""#,
        r#""fqdn":"10-0-0-1-via-7""#,
        r#""fqdn":"svc.tail.lab""#,
    ]);
    let service = (target, proptest::collection::vec(port, 0..4), proptest::bool::weighted(0.1));
    proptest::collection::btree_map(select(vec!["a", "b", "c", "d"]), service, 0..4).prop_map(|services| {
        let mut text = String::new();
        for (name, (target, ports, bent)) in services {
            let ports: Vec<_> = ports.iter().map(|(p, m, t)| format!(r#"{{"protocol":"{p}","matchPort":{m},"targetPort":{t}}}"#)).collect();
            let ports = if bent { "7".to_owned() } else { format!("[{}]", ports.join(",")) };
            let comma = if text.is_empty() { "" } else { "," };
            write!(text, r#"{comma}"{name}":{{"tailnetTarget":{{{target}}},"ports":{ports}}}"#).expect("a string takes all");
        }
        format!("{{{text}}}")
    })
}

fn any_world() -> impl Strategy<Value = World> {
    let (names, ips) = (select(vec!["db.tail.lab", "p.tail.lab"]), select(vec!["100.64.0.2", "100.64.0.3", "fd7a::3"]));
    let peers = proptest::collection::btree_map(names, ips, 0..3);
    let netmap = (peers, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(peers, via, svc, subnet)| {
        let list: Vec<_> = peers.iter().map(|(name, address)| (*name, std::slice::from_ref(address))).collect();
        let mut map = netmap(&["100.64.0.1"], &list);
        map.records.insert(Fqdn::new("svc.tail.lab").expect("a name"), [ip("100.99.0.1")].into());
        map.routes.extend(via.then(|| "fd7a:115c:a1e0:b1a::/64".parse::<ipnet::IpNet>().expect("a prefix")));
        map.routes.extend(svc.then(|| "100.99.0.1/32".parse::<ipnet::IpNet>().expect("a prefix")));
        map.routes.extend(subnet.then(|| "100.64.0.8/29".parse::<ipnet::IpNet>().expect("a prefix")));
        Arc::new(map)
    });
    let single = select(vec![
        Single::None,
        Single::DestIp { ip: ip("10.1.2.3"), other: None },
        Single::TailnetFqdn(Fqdn::new("db.tail.lab").expect("a name")),
    ]);
    let translated = select(vec![&[][..], &[(443_u16, 40_001_u16)], &[(80, 40_002), (443, 40_001)]]);
    let listeners = (select(vec![&[][..], &["100.99.0.1"], &["100.99.0.1", "fd7a::99"]]), translated)
        .prop_map(|(addresses, ports)| if addresses.is_empty() { Arc::default() } else { listeners(addresses, ports) });
    let parts = (any_egress(), proptest::option::weighted(0.8, netmap), single, listeners);
    parts.prop_map(|(egress, netmap, single, listeners)| World { single, listeners, netmap, ..world(&egress) })
}

proptest! {
    #[test]
    fn incremental_plan_equals_a_fresh_plan(worlds in proptest::collection::vec(any_world(), 1..6)) {
        let mut planned = Planned::new(&worlds[0]);
        for world in &worlds {
            // A world as the data plane makes it: the config that follows shares what did not change.
            planned = planned.next(world);
            let fresh = Planned::new(world);
            prop_assert_eq!(&planned.plan, &fresh.plan);
            prop_assert_eq!(&planned.ruleset, &fresh.ruleset);
        }
    }

    #[test]
    fn delta_transforms_one_ruleset_into_the_other(before in any_world(), after in any_world()) {
        use crate::model::firewall::ruleset::diff;
        let (before, after) = (Planned::new(&before).ruleset, Planned::new(&after).ruleset);
        let delta = diff(&before, &after);
        prop_assert_eq!(delta.apply(&before), after.clone());
        prop_assert_eq!(delta.is_empty(), before == after);
    }

    #[test]
    fn everything_configured_is_served_or_refused_with_a_reason(world in any_world()) {
        let planned = Planned::new(&world);
        for name in world.egress.services.keys().chain(world.egress.malformed.keys()) {
            let served = planned.plan.egress.get(name).is_some_and(|egress| !egress.targets.is_empty());
            let portless = world.egress.services.get(name).is_some_and(|service| service.ports.is_empty());
            prop_assert!(served || portless || planned.plan.rejected.contains_key(name), "{}", name);
        }
    }
}

#[test]
fn siblings_are_the_other_replicas_by_family() {
    let siblings = |all: &[&str]| {
        let siblings = Siblings::new(all.iter().map(|text| ip(text)));
        Planned::new(&World { siblings: Arc::new(siblings), ..world("{}") }).ruleset.siblings
    };
    assert!(siblings(&["10.0.0.5", "fd00::5"]).is_empty(), "only this replica");
    let found = siblings(&["10.0.0.5", "10.0.0.6", "10.0.0.4"]);
    let expected = SiblingAddresses::new(ip("10.0.0.5"), [ip("10.0.0.4"), ip("10.0.0.6")]).expect("siblings");
    assert_eq!((expected.others(), expected.fallback()), (&[ip("10.0.0.4"), ip("10.0.0.6")][..], ip("10.0.0.6")));
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(Family::V4, expected)]);
    let changed = Planned::new(&world("{}")).next(&World { siblings: Arc::new(Siblings::new([ip("fd00::6")])), ..world("{}") });
    assert_eq!(changed.ruleset.siblings.get(&Family::V6).map(SiblingAddresses::others), Some(&[ip("fd00::6")][..]));
}

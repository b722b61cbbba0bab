use std::collections::BTreeMap;
use std::net::IpAddr;

use super::*;
use crate::model::base::net::{InterfaceName, Port, PortKey, Proto};
use crate::model::base::netmap::{Fqdn, NetMap};
use crate::model::plan::Planned;
use crate::model::plan::world::World;
use std::time::Duration;

const EGRESS: &str = r#"{
 "default-db":{"healthCheckEndpoint":"http://ts-db.tailscale.svc.cluster.local:9002/healthz","tailnetTarget":{"ip":"","fqdn":"DB.tail.lab."},
   "ports":[{"protocol":"TCP","matchPort":10081,"targetPort":5201},{"protocol":"UDP","matchPort":10080,"targetPort":53}],"new":true},
 "by-ip":{"tailnetTarget":{"ip":"100.64.0.9"},"ports":[{"protocol":"TCP","matchPort":10100,"targetPort":80},{"protocol":"TCP","matchPort":9002,"targetPort":80}]},
 "typo":{"tailnetTarget":{"fqdn":"nobody.tail.lab"},"ports":[{"protocol":"TCP","matchPort":10200,"targetPort":80}]},
 "sctp":{"tailnetTarget":{"ip":"100.64.0.9"},"ports":[{"protocol":"SCTP","matchPort":10300,"targetPort":80}]},
 "cut":{"ports":"all"}}"#;

const INGRESS: &str = r#"{
 "svc:web":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.9"},
            "IPv6Mapping":{"TailscaleServiceIP":"","ClusterIP":""}},
 "svc:bad":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.3","ClusterIP":"10.96.0"}},
 "svc:none":{"IPv4Mapping":{"TailscaleServiceIP":"","ClusterIP":"10.96.0.10"}}}"#;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn pod() -> PodAddresses {
    PodAddresses::of([ip("10.244.2.3"), ip("fd00::5")])
}

/// Plan of this config in a tailnet with these names and addresses.
fn planned(egress: &str, names: &[(&str, &[&str])]) -> Planned {
    let peers =
        names.iter().map(|(name, ips)| (Fqdn::new(name).expect("a name"), ips.iter().map(|text| ip(text)).collect::<BTreeSet<_>>()));
    let routes = [ipnet::IpNet::from(ip("100.64.0.9"))].into_iter().collect();
    let netmap = NetMap { peers: peers.collect(), routes, ..NetMap::default() };
    let reserved = [PortKey { proto: Proto::Tcp, port: Port::new(9002).expect("a port") }];
    let world = World {
        egress: Arc::new(EgressConfig::parse(egress.as_bytes()).expect("a config")),
        ingress: Arc::new(IngressConfig::parse(INGRESS.as_bytes()).expect("a config")),
        netmap: Some(Arc::new(netmap)),
        ..World::empty(InterfaceName::tailscale0(), reserved.into())
    };
    Planned::new(&world)
}

const KNOWN: &[(&str, &[&str])] = &[("db.tail.lab", &["100.64.0.2", "fd7a:115c:a1e0::2"])];

static NOTHING: BTreeSet<Arc<str>> = BTreeSet::new();

/// Status of a plan without withheld services.
fn status(planned: &Planned) -> EgressStatus<PublishedServices<'_>> {
    egress_status(&planned.plan, &planned.world.egress, pod(), &NOTHING)
}

/// Status after a JSON round trip.
fn read(status: &EgressStatus<PublishedServices<'_>>) -> EgressStatus {
    serde_json::from_slice(&serde_json::to_vec(status).expect("text")).expect("a status")
}

fn services(status: &EgressStatus) -> Vec<&str> {
    status.services.iter().flat_map(BTreeMap::keys).map(String::as_str).collect()
}

fn withheld(patience: &mut ServeHistory, planned: &Planned, now: u64) -> Vec<String> {
    patience.withheld(&planned.plan, &planned.world.egress, Duration::from_secs(now)).iter().map(ToString::to_string).collect()
}

#[test]
fn egress_status_matches_the_operator_format() {
    let planned = planned(EGRESS, KNOWN);
    let status = status(&planned);
    let Encoded { plain: text, packed, omitted: omission } = encode(status, ROOM);
    assert_eq!(packed, None);
    assert_eq!(String::from_utf8(text).expect("text"), include_str!("../../../../tests/golden/status/egress.json").trim_end());
    assert_eq!(omission, Omitted::Nothing);
}

#[test]
fn ingress_status_matches_the_operator_format() {
    let planned = planned(EGRESS, KNOWN);
    let status = ingress_status(&planned.plan, &planned.world.ingress, pod());
    let text = serde_json::to_string(&status).expect("text");
    assert_eq!(text, include_str!("../../../../tests/golden/status/ingress.json").trim_end());
}

#[test]
fn empty_status_equals_that_of_the_stock_proxy() {
    let planned = planned("{}", &[]);
    let status = egress_status(&planned.plan, &planned.world.egress, PodAddresses::of([ip("10.0.0.5")]), &NOTHING);
    let peer = serde_json::to_string(&EgressStatus { fingerprint: None, ..status }).expect("text");
    assert_eq!(peer, r#"{"podIPv4":"10.0.0.5","services":null}"#);
}

#[test]
fn status_echoes_the_configured_services() {
    let planned = planned(EGRESS, KNOWN);
    let status = status(&planned);
    for (name, decoded) in read(&status).services.expect("services") {
        let service = &planned.world.egress.services[name.as_str()];
        assert_eq!((&decoded.ports, &decoded.tailnet_target), (&service.ports, &service.tailnet_target), "{name}");
    }
}

#[test]
fn unresolved_service_is_withheld_for_the_grace_period() {
    let mut patience = ServeHistory::new(RESOLUTION_GRACE);
    let unresolved = planned(EGRESS, &[]);
    assert_eq!(withheld(&mut patience, &unresolved, 10), ["default-db", "sctp", "typo"]);
    assert_eq!(patience.due(Duration::from_secs(10)), Some(Duration::from_secs(55)));
    let resolved = planned(EGRESS, KNOWN);
    assert_eq!(withheld(&mut patience, &resolved, 20), ["sctp", "typo"]);
    assert_eq!(withheld(&mut patience, &resolved, 54), ["sctp", "typo"]);
    assert_eq!(withheld(&mut patience, &resolved, 55), [""; 0], "a rollout would wait for them for ever");
    assert_eq!(patience.due(Duration::from_secs(55)), None);
    let status = read(&status(&resolved));
    assert_eq!(services(&status), ["by-ip", "default-db", "sctp", "typo"], "what cannot be read cannot be echoed");
    assert_eq!(status.services.expect("services")["typo"].tailnet_target_ips, None);
}

#[test]
fn service_that_lost_its_target_is_withheld_until_resolved() {
    let mut patience = ServeHistory::new(RESOLUTION_GRACE);
    let (found, lost) = (planned(EGRESS, KNOWN), planned(EGRESS, &[]));
    withheld(&mut patience, &found, 0);
    assert!(withheld(&mut patience, &lost, 1).contains(&"default-db".to_owned()));
    assert!(withheld(&mut patience, &lost, 9999).contains(&"default-db".to_owned()));
    assert_eq!(withheld(&mut patience, &found, 10_000), [""; 0]);
    let other = planned(&EGRESS.replace("DB.tail.lab.", "db2.tail.lab"), KNOWN);
    assert_eq!(withheld(&mut patience, &other, 20_000), ["default-db"]);
    assert_eq!(withheld(&mut patience, &other, 20_045), [""; 0], "another target is another service");
}

#[test]
fn oversized_status_omits_optional_fields_first() {
    let planned = planned(EGRESS, KNOWN);
    let status = status(&planned);
    let whole = encode(status.clone(), ROOM).plain.len();
    let mut omissions = Vec::new();
    for room in (1..=whole).rev() {
        let Encoded { plain, packed, omitted: omission } = encode(status.clone(), room);
        omissions.push(omission);
        let decoded: EgressStatus = serde_json::from_slice(&plain).expect("a status");
        assert_eq!(decoded.rejected.keys().collect::<Vec<_>>(), read(&status).rejected.keys().collect::<Vec<_>>());
        assert_eq!((decoded.services.is_some(), &decoded.fingerprint), (omission != Omitted::Services, &status.fingerprint));
        assert!(omission == Omitted::Services || plain.len() + packed.map_or(0, |packed| packed.len()) <= room);
    }
    assert!(
        [Omitted::Nothing, Omitted::Reasons, Omitted::Addresses, Omitted::Services].iter().all(|omission| omissions.contains(omission))
    );
}

#[test]
fn status_of_ten_thousand_services_fits() {
    let entry = |number: u32| {
        format!(
            r#""default-service-{number}":{{"tailnetTarget":{{"fqdn":"db.tail.lab"}},"ports":[{{"protocol":"TCP","matchPort":{},"targetPort":443}}]}}"#,
            10_000 + number
        )
    };
    let config = format!("{{{}}}", (0..10_000).map(entry).collect::<Vec<_>>().join(","));
    let planned = planned(&config, KNOWN);
    let status = status(&planned);
    let Encoded { plain, packed, .. } = encode(status.clone(), ROOM);
    let packed = packed.expect("it does not fit as it is");
    assert!(plain.len() + packed.len() <= ROOM, "{} and {}", plain.len(), packed.len());
    let decoded: EgressStatus = serde_json::from_slice(&gzip::unpack(&packed, gzip::MAX_CONFIG_SIZE).expect("packed")).expect("a status");
    assert_eq!(decoded, read(&status));
}

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Secret;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::model::base::backoff::Backoff;
use crate::model::base::net::InterfaceName;
use crate::model::base::netmap::Fqdn;
use crate::model::config::{EgressConfig, IngressConfig};
use crate::model::controller::workload::observed::replica::ReplicaState;
use crate::model::plan::world::{Single, World};
use crate::model::tailnet::serve_config::FunnelError;
use crate::model::tailnet::state::Start;
use crate::model::tailnet::status::{RESOLUTION_GRACE, ROOM};
use crate::proxy::state_secret::writer::{self, Store};

const LONG: Duration = Duration::from_hours(1);

/// A simulated kernel and tailnet, and the state file.
struct Play {
    place: TempDir,
    ledger: Ledger,
    programmed: watch::Sender<Programmed>,
    netmap: watch::Sender<Option<Arc<NetMap>>>,
    serving: watch::Sender<ServeStatus>,
    advertise_status: watch::Sender<AdvertiseStatus>,
    overlaps: watch::Sender<Option<RouteOverlaps>>,
}

fn play() -> Play {
    play_with(true)
}

fn play_with(forwards: bool) -> Play {
    let place = TempDir::new().expect("a directory");
    let (ledger, reporter) = writer::new(
        Store::File(place.path().join("state.json")),
        Start::default(),
        writer::WriteIntervals { retry: Backoff::DAEMON, look: writer::POLL_INTERVAL },
    );
    let (programmed, programmed_rx) = watch::channel(Programmed::default());
    let (netmap, netmap_rx) = watch::channel(None);
    let (serving, serving_rx) = watch::channel(ServeStatus::default());
    let (advertise_status, advertise_status_rx) = watch::channel(AdvertiseStatus::default());
    let (overlaps, overlaps_rx) = watch::channel(None);
    let pod = PodAddresses::of(["10.244.2.3".parse::<IpAddr>().expect("an address")]);
    let about = ReportInputs { pod, egress: forwards, ingress: forwards, forwards, grace: RESOLUTION_GRACE, room: ROOM };
    tokio::spawn(reporter.run());
    let inputs = Inputs {
        programmed: programmed_rx,
        netmap: netmap_rx,
        serving: serving_rx,
        advertise_status: advertise_status_rx,
        overlaps: overlaps_rx,
    };
    tokio::spawn(run(inputs, about, ledger.clone()));
    Play { place, ledger, programmed, netmap, serving, advertise_status, overlaps }
}

#[tokio::test(start_paused = true)]
async fn device_in_userspace_is_reported_without_rules() {
    for forwards in [false, true] {
        let play = play_with(forwards);
        play.netmap.send_replace(Some(netmap(false)));
        let reported = play.reported().await;
        assert_eq!(reported["device_id"], "n1");
        let wanted = (!forwards).then_some("eg-0.tail.lab.");
        assert_eq!(reported.get("device_fqdn").map(String::as_str), wanted, "{reported:?}");
        assert_eq!(reported.contains_key("device_ips"), !forwards);
    }
}

/// A netmap with this node and, if `peer`, with a peer `db.tail.lab`.
fn netmap(peer: bool) -> Arc<NetMap> {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let node = SelfNode {
        stable_id: "n1".into(),
        name: "eg-0.tail.lab".into(),
        addresses: vec![ip("100.64.0.1"), ip("fd7a::1")],
        ..SelfNode::default()
    };
    let peers = peer.then(|| (Fqdn::new("db.tail.lab").expect("a name"), BTreeSet::from([ip("100.64.0.2")])));
    Arc::new(NetMap { node: Some(node), peers: peers.into_iter().collect(), ..NetMap::default() })
}

impl Play {
    /// Applies the plan of a config with one service, whose match port is `port`.
    fn accept(&self, port: u16, peer: bool) {
        let egress = format!(
            r#"{{"db":{{"tailnetTarget":{{"fqdn":"db.tail.lab"}},"ports":[{{"protocol":"TCP","matchPort":{port},"targetPort":80}}]}}}}"#
        );
        let ingress = br#"{"svc:web":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.9"}}}"#;
        let world = World {
            egress: Arc::new(EgressConfig::parse(egress.as_bytes()).expect("a config")),
            ingress: Arc::new(IngressConfig::parse(ingress).expect("a config")),
            netmap: Some(netmap(peer)),
            ..World::empty(InterfaceName::tailscale0(), [].into())
        };
        let planned = Some(Arc::new(Planned::new(&world)));
        self.programmed.send_replace(Programmed { planned, current: true, ..Programmed::default() });
    }

    /// The file's content after all changes so far are written.
    async fn reported(&self) -> BTreeMap<String, String> {
        tokio::time::sleep(2 * MIN_WRITE_INTERVAL).await;
        timeout(LONG, self.ledger.written()).await.expect("written");
        let file = std::fs::read(self.place.path().join("state.json")).unwrap_or_else(|_| b"{}".to_vec());
        serde_json::from_slice(&file).expect("an object of text")
    }

    async fn status(&self) -> egress::EgressStatus {
        serde_json::from_str(&self.reported().await["egress-services"]).expect("a status")
    }
}

#[tokio::test(start_paused = true)]
async fn device_id_is_reported_before_the_ruleset_and_its_name_after() {
    let play = play();
    play.netmap.send_replace(Some(netmap(true)));
    assert_eq!(play.reported().await, [("device_id".to_owned(), "n1".to_owned())].into());
    play.programmed.send_modify(|programmed| programmed.current = false);
    assert_eq!(play.reported().await.len(), 1, "nothing was accepted yet");
    play.accept(10000, true);
    let secret = play.reported().await;
    assert_eq!((secret["device_fqdn"].as_str(), secret["device_ips"].as_str()), ("eg-0.tail.lab.", r#"["100.64.0.1","fd7a::1"]"#));
    let web = r#"{"configs":{"svc:web":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.96.0.9"}}},"podIPv4":"10.244.2.3","fingerprint":"9a41044f779765f8"}"#;
    assert_eq!(secret["ingress-config.json"], web);
    assert_eq!(play.status().await.services.expect("services")["db"].tailnet_target_ips, Some(vec!["100.64.0.2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn https_endpoint_is_reported_once_served() {
    let play = play();
    let serve = |text: &str| {
        let config = Some(Arc::new(serde_json::from_str(text).expect("a config")));
        play.serving.send_replace(ServeStatus { config, ..ServeStatus::default() });
    };
    play.netmap.send_replace(Some(netmap(true)));
    serve("{}");
    assert!(!play.reported().await.contains_key("https_endpoint"), "nothing is served");
    serve(r#"{"TCP":{"80":{"HTTP":true}}}"#);
    assert_eq!(play.reported().await["https_endpoint"], "no-https");
    let certified = NetMap { cert_domains: vec!["eg-0.tail.lab".to_owned(), "web.tail.lab".to_owned()], ..NetMap::clone(&netmap(true)) };
    play.netmap.send_replace(Some(Arc::new(certified)));
    assert_eq!(play.reported().await["https_endpoint"], "eg-0.tail.lab");
    play.serving.send_replace(ServeStatus::default());
    assert_eq!(play.reported().await["https_endpoint"], "eg-0.tail.lab", "a tailscaled that starts again takes nothing back");
}

#[tokio::test(start_paused = true)]
async fn funnel_errors_are_reported_until_resolved() {
    let play = play();
    let stand = |funnel_errors| play.advertise_status.send_replace(AdvertiseStatus { funnel_errors, ..AdvertiseStatus::default() });
    stand(Some([("svc:web".to_owned(), FunnelError::NotAllowed)].into()));
    let secret = play.reported().await["tailyard-funnel-errors.json"].clone();
    assert!(secret.starts_with(r#"{"svc:web":"the tailnet does not let this node be"#), "{secret}");
    stand(None);
    assert_eq!(play.reported().await["tailyard-funnel-errors.json"], secret, "a tailscaled that starts again takes nothing back");
    stand(Some(BTreeMap::new()));
    assert!(!play.reported().await.contains_key("tailyard-funnel-errors.json"));
}

#[tokio::test(start_paused = true)]
async fn service_without_approval_is_reported_until_it_is_approved() {
    let play = play();
    let stand = |unapproved| play.advertise_status.send_replace(AdvertiseStatus { unapproved, ..AdvertiseStatus::default() });
    stand(Some(["svc:web".to_owned()].into()));
    assert_eq!(play.reported().await["tailyard-unapproved-services.json"], r#"["svc:web"]"#);
    stand(None);
    assert_eq!(play.reported().await["tailyard-unapproved-services.json"], r#"["svc:web"]"#, "nothing is known while tailscaled is away");
    stand(Some([].into()));
    assert!(!play.reported().await.contains_key("tailyard-unapproved-services.json"));
}

#[tokio::test(start_paused = true)]
async fn overlapping_routes_are_reported_until_they_are_gone() {
    let play = play();
    let overlap = ("10.244.0.0/16".parse().expect("a prefix"), "10.244.2.3".parse().expect("an address"));
    play.overlaps.send_replace(Some([overlap].into()));
    assert_eq!(play.reported().await[state::ROUTE_OVERLAPS], r#"{"10.244.0.0/16":"10.244.2.3"}"#);
    let many = (0..200_u8).map(|net| (IpNet::new([10, net, 0, 0].into(), 16).expect("a prefix"), IpAddr::from([10, net, 0, 1])));
    play.overlaps.send_replace(Some(many.collect()));
    let report: Secret = serde_json::from_value(serde_json::json!({"data": {state::ROUTE_OVERLAPS:
        k8s_openapi::ByteString(play.reported().await[state::ROUTE_OVERLAPS].clone().into_bytes())}}))
    .expect("a Secret");
    assert_eq!(ReplicaState::read(&report).overlaps.len(), state::MAX_ROUTE_OVERLAPS, "the reconciler reads as many");
    play.overlaps.send_replace(Some([].into()));
    assert!(!play.reported().await.contains_key(state::ROUTE_OVERLAPS));
}

#[tokio::test(start_paused = true)]
async fn early_status_does_not_delay_the_status_after_connecting() {
    let play = play();
    let planned = Some(Arc::new(Planned::new(&World::empty(InterfaceName::tailscale0(), [].into()))));
    play.programmed.send_replace(Programmed { planned, current: true, ..Programmed::default() });
    assert_eq!(play.reported().await, BTreeMap::new());
    let begin = Instant::now();
    play.netmap.send_replace(Some(netmap(true)));
    tokio::time::sleep(MIN_WRITE_INTERVAL / 10).await;
    play.accept(10000, true);
    tokio::time::sleep(MIN_WRITE_INTERVAL / 10).await;
    timeout(LONG, play.ledger.written()).await.expect("written");
    assert!(play.ledger.wanted.borrow().changes.contains_key(egress::KEY), "it is said within a tenth of the pace");
    assert!(begin.elapsed() < 2 * MIN_WRITE_INTERVAL, "and written within the writer's own: {:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unapplied_plan_is_not_reported() {
    let play = play();
    play.accept(10000, true);
    let before = play.reported().await;
    play.programmed.send_modify(|programmed| {
        programmed.planned = None;
        programmed.current = false;
    });
    assert_eq!(play.reported().await, before);
}

#[tokio::test(start_paused = true)]
async fn unresolved_service_is_reported_after_its_grace_period() {
    let play = play();
    let begin = Instant::now();
    play.accept(10000, false);
    assert_eq!(play.status().await.services, None);
    let mut published = None;
    while published.is_none() && begin.elapsed() < LONG {
        published = play.status().await.services;
    }
    assert_eq!(published.expect("published in the end")["db"].tailnet_target_ips, None);
    assert!(begin.elapsed() >= RESOLUTION_GRACE && begin.elapsed() < RESOLUTION_GRACE + 5 * MIN_WRITE_INTERVAL, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn frequent_plans_are_reported_once_a_second() {
    let play = play();
    let writes = |play: &Play| play.ledger.health().borrow().writes;
    let begin = Instant::now();
    for port in 10000..10300 {
        play.accept(port, true);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(play.status().await.services.expect("services")["db"].ports[0].match_port, 10299);
    assert!(writes(&play) <= begin.elapsed().as_secs() + 2, "{} writes in {:?}", writes(&play), begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn rejected_target_of_a_standalone_proxy_is_reported_until_it_is_served() {
    let play = play();
    let apply = |peer: bool| {
        let single = Single::TailnetFqdn(Fqdn::new("db.tail.lab").expect("a name"));
        let pod_ips = ["10.244.2.3".parse().expect("an address")].into();
        let world = World { single, pod_ips, netmap: Some(netmap(peer)), ..World::empty(InterfaceName::tailscale0(), [].into()) };
        play.programmed.send_replace(Programmed { planned: Some(Arc::new(Planned::new(&world))), current: true, ..Programmed::default() });
    };
    apply(false);
    let text = play.reported().await[state::REJECTED_TARGET].clone();
    assert!(text.contains("check the name"), "{text}");
    apply(true);
    assert!(!play.reported().await.contains_key(state::REJECTED_TARGET));
}

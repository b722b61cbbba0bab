use std::collections::BTreeSet;
use std::net::IpAddr;

use super::*;
use crate::model::api_server::request_info::StreamKind;
use crate::model::base::net::InterfaceName;
use crate::model::base::netmap::NetMap;
use crate::model::config::EgressConfig;
use crate::model::firewall::Counters;
use crate::model::plan::world::World;
use crate::model::tailnet::resolve::{LookupFailure, NameStatus};
use crate::model::tailnet::supervise::DaemonPhase;
use crate::proxy::forwarding::ruleset_sync::SyncFault;
use crate::proxy::state_secret::writer::WriteFault;
use crate::runtime::metrics::{Description, HistogramSample};

const CONFIG: &str = r#"{
  "db":   {"tailnetTarget":{"ip":"100.64.0.2"},"ports":[{"protocol":"TCP","matchPort":10001,"targetPort":5432},{"protocol":"TCP","matchPort":10002,"targetPort":5433}]},
  "gone": {"tailnetTarget":{"fqdn":"gone.tail.lab"},"ports":[{"protocol":"TCP","matchPort":10003,"targetPort":80}]}}"#;

fn planned(config: &str, last: Option<&Planned>) -> Arc<Planned> {
    let mut world = World::empty(InterfaceName::tailscale0(), [].into());
    world.egress = Arc::new(EgressConfig::parse(config.as_bytes()).expect("a config"));
    let routes = [ipnet::IpNet::from(IpAddr::from([100, 64, 0, 2]))].into_iter().collect();
    world.netmap = Some(Arc::new(NetMap { routes, ..NetMap::default() }));
    Arc::new(last.map_or_else(|| Planned::new(&world), |last| last.next(&world)))
}

fn snapshot(now: Instant) -> Snapshot {
    Snapshot {
        now,
        unix_time: Duration::from_secs(1_000),
        behind: None,
        blockers: Vec::new(),
        stalled: Vec::new(),
        planned: None,
        programmed: Programmed::default(),
        traffic: None,
        pressure: None,
        ended: TerminatedFlows::default(),
        configs: BTreeMap::new(),
        names: Arc::default(),
        daemon: None,
        report: None,
        sites: None,
        api_server: ApiServerSample::default(),
        crashes: 0,
        funnel_errors: BTreeMap::new(),
        certs: None,
    }
}

fn has(page: &str, line: &str) -> bool {
    page.lines().any(|found| found == line)
}

/// All series of a page whose names begin with one of these prefixes, without header lines, in order.
fn series<'a>(page: &'a str, prefixes: &[&str]) -> Vec<&'a str> {
    let mut lines: Vec<&str> = page.lines().filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix))).collect();
    lines.sort_unstable();
    lines
}

/// Asserts that a page has exactly these series whose names begin with one of the prefixes.
#[track_caller]
fn exactly(page: &str, prefixes: &[&str], expected: &[&str]) {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(series(page, prefixes), expected, "of {prefixes:?} in\n{page}");
}

/// Asserts that a page has exactly the readiness series of these unmet conditions.
#[track_caller]
fn blocked(page: &str, unmet: &[&str]) {
    let names = [
        "api-server",
        "config",
        "draining",
        "forwarding",
        "interface",
        "netmap",
        "peer-connectivity",
        "ruleset",
        "services",
        "tailnet-ip",
        "tailscaled",
        "unreachable",
    ];
    let series = names.map(|name| format!(r#"tailyard_readiness_blocked{{reason="{name}"}} {}"#, u8::from(unmet.contains(&name))));
    exactly(page, &["tailyard_readiness"], &series.each_ref().map(String::as_str));
}

#[tokio::test(start_paused = true)]
async fn page_has_exactly_the_series_of_each_service() {
    let metrics = Metrics::new().expect("families");
    let planned = planned(CONFIG, None);
    let key = |port: u16| planned.plan.egress["db"].ports.keys().find(|key| key.port.get() == port).copied().expect("a port");
    let count = |flows, bytes| Counters { flows, packets: 1, bytes };
    let traffic = Traffic::from([(key(10001), count(3, 100)), (key(10002), count(4, 11))]);
    let shown = Snapshot { planned: Some(Arc::clone(&planned)), traffic: Some(traffic), ..snapshot(Instant::now()) };
    metrics.planned(&planned, Instant::now());
    let page = metrics.page(&shown, Some("tailscaled_health_messages 0"));
    let expected = [
        r#"tailyard_services{type="egress"} 2"#,
        r#"tailyard_services{type="ingress"} 0"#,
        r#"tailyard_services_rejected{reason="Unresolved"} 1"#,
        r#"tailyard_service_mappings{proxied_service="db"} 2"#,
        r#"tailyard_service_mappings{proxied_service="gone"} 1"#,
        r#"tailyard_service_targets{proxied_service="db"} 1"#,
        r#"tailyard_service_targets{proxied_service="gone"} 0"#,
        r#"tailyard_service_flows_total{proxied_service="db"} 7"#,
        r#"tailyard_service_bytes_total{proxied_service="db"} 111"#,
        r#"tailyard_service_flows_total{proxied_service="gone"} 0"#,
        r#"tailyard_service_bytes_total{proxied_service="gone"} 0"#,
        r#"tailyard_service_rejected{proxied_service="gone",reason="Unresolved"} 1"#,
        r#"tailyard_service_last_error_timestamp_seconds{proxied_service="gone",reason="Unresolved"} 1000"#,
        "tailyard_ready 1",
        "tailscaled_health_messages 0",
    ];
    exactly(&page, &["tailyard_service", "tailyard_ready", "tailscaled_"], &expected);
    blocked(&page, &[]);
}

#[tokio::test(start_paused = true)]
async fn last_error_timestamp_stays_until_its_service_is_removed() {
    let metrics = Metrics::new().expect("families");
    let broken = planned(CONFIG, None);
    metrics.planned(&broken, Instant::now());
    let repaired = planned(&CONFIG.replace(r#""fqdn":"gone.tail.lab""#, r#""ip":"100.64.0.2""#), Some(&broken));
    tokio::time::advance(Duration::from_mins(1)).await;
    metrics.planned(&repaired, Instant::now());
    tokio::time::advance(Duration::from_secs(30)).await;
    let page = metrics.page(&Snapshot { planned: Some(Arc::clone(&repaired)), ..snapshot(Instant::now()) }, None);
    assert!(has(&page, r#"tailyard_service_last_error_timestamp_seconds{proxied_service="gone",reason="Unresolved"} 970"#), "{page}");
    assert!(!page.contains("tailyard_service_rejected{"), "{page}");
    let removed = planned(r#"{"other":{"ports":[]}}"#, Some(&repaired));
    metrics.planned(&removed, Instant::now());
    let page = metrics.page(&Snapshot { planned: Some(removed), ..snapshot(Instant::now()) }, None);
    assert!(!page.contains("gone"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn writes_and_failures_are_counted_as_they_happen() {
    let metrics = Arc::new(Metrics::new().expect("families"));
    let (_plans, planned) = watch::channel(None);
    let (state, programmed) = watch::channel(Programmed::default());
    let following = tokio::spawn(follow(Arc::clone(&metrics), planned, programmed));
    let fault = SyncFault { reason: "Refused", message: String::new() };
    state.send_modify(|state| (state.writes, state.took) = (2, Duration::from_millis(3)));
    tokio::task::yield_now().await;
    state.send_modify(|state| (state.failures, state.fault) = (1, Some((fault, Instant::now()))));
    tokio::task::yield_now().await;
    let page = metrics.page(&Snapshot { programmed: state.borrow().clone(), ..snapshot(Instant::now()) }, None);
    assert!(has(&page, "tailyard_ruleset_apply_duration_seconds_count 2"), "{page}");
    assert!(has(&page, r#"tailyard_ruleset_apply_errors_total{reason="Refused"} 1"#), "{page}");
    assert!(has(&page, r#"tailyard_ruleset_apply_last_error_timestamp_seconds{reason="Refused"} 1000"#), "{page}");
    drop(state);
    following.await.expect("it ends with its senders");
}

#[tokio::test(start_paused = true)]
async fn page_has_exactly_the_series_of_inputs() {
    let metrics = Metrics::new().expect("families");
    let start = Instant::now();
    let name = |answered, failure| NameStatus { answered, failure };
    let names = [("a.test".into(), name(Some(start.into_std()), None)), ("b.test".into(), name(None, Some(LookupFailure::Server)))];
    tokio::time::advance(Duration::from_secs(7)).await;
    let config = |source, fault| ConfigState { source, age: Duration::from_secs(9), fault };
    let (since, last_error) = (Some(Instant::now() - Duration::from_secs(2)), Some(("exit", String::new())));
    let daemon = DaemonState { phase: DaemonPhase::Running, since, restarts: 4, last_error, ..DaemonState::default() };
    let fault = WriteFault { reason: "Unreachable", message: String::new(), since: Instant::now() - Duration::from_secs(8) };
    let mut health = WriterHealth::default();
    (health.writes, health.fault) = (5, Some(fault));
    let shown = Snapshot {
        blockers: vec![Blocker::Leaving],
        configs: [("egress", config(Some("api"), None)), ("ingress", config(Some("file"), Some("Json")))].into(),
        names: Arc::new(ResolveReport { names: names.into(), failures: [(LookupFailure::Server, 3)].into() }),
        daemon: Some(daemon),
        report: Some(health),
        ..snapshot(Instant::now())
    };
    let page = metrics.page(&shown, None);
    let expected = [
        "tailyard_ready 0",
        r#"tailyard_config_source{config="egress",source="api"} 1"#,
        r#"tailyard_config_source{config="ingress",source="file"} 1"#,
        r#"tailyard_config_last_change_timestamp_seconds{config="egress"} 991"#,
        r#"tailyard_config_last_change_timestamp_seconds{config="ingress"} 991"#,
        r#"tailyard_config_error{config="ingress",reason="Json"} 1"#,
        "tailyard_dns_names 2",
        r#"tailyard_dns_last_success_timestamp_seconds{name="a.test"} 993"#,
        r#"tailyard_dns_failing{name="b.test",reason="ServFail"} 1"#,
        r#"tailyard_dns_failures_total{reason="ServFail"} 3"#,
        r#"tailyard_tailscaled_state{state="Running"} 1"#,
        "tailyard_tailscaled_state_timestamp_seconds 998",
        "tailyard_tailscaled_restarts_total 4",
        r#"tailyard_tailscaled_error{reason="exit"} 1"#,
        "tailyard_state_secret_writes_total 5",
        r#"tailyard_state_secret_error_timestamp_seconds{reason="Unreachable"} 992"#,
    ];
    blocked(&page, &["draining"]);
    exactly(&page, &["tailyard_ready", "tailyard_config", "tailyard_dns", "tailyard_tailscaled", "tailyard_state"], &expected);
}

#[test]
fn requests_to_the_api_server_have_series() {
    let metrics = Metrics::new().expect("families");
    let latency = HistogramSample { bounds: &[0.1], counts: vec![2, 1], sum: 0.75 };
    let api_server = ApiServerSample {
        requests: [(("list", "pods", 200), 2), (("get", "other", 0), 1)].into(),
        latency: [("list", latency)].into(),
        refusals: [("Grants", 4)].into(),
        streams: [(StreamKind::Exec, 1)].into(),
    };
    let page = metrics.page(&Snapshot { api_server, ..snapshot(Instant::now()) }, None);
    let expected = [
        r#"tailyard_api_server_requests_total{verb="get",resource="other",code="other"} 1"#,
        r#"tailyard_api_server_requests_total{verb="list",resource="pods",code="200"} 2"#,
        r#"tailyard_api_server_request_duration_seconds_bucket{verb="list",le="0.1"} 2"#,
        r#"tailyard_api_server_request_duration_seconds_bucket{verb="list",le="+Inf"} 3"#,
        r#"tailyard_api_server_request_duration_seconds_sum{verb="list"} 0.75"#,
        r#"tailyard_api_server_request_duration_seconds_count{verb="list"} 3"#,
        r#"tailyard_api_server_requests_refused_total{reason="Grants"} 4"#,
        r#"tailyard_api_server_streams{kind="exec"} 1"#,
    ];
    exactly(&page, &["tailyard_api_server"], &expected);
}

/// A family on a page that the documentation lacks would have been written without the registry.
#[tokio::test(start_paused = true)]
async fn every_family_of_a_page_is_described_with_its_type() {
    let metrics = Metrics::new().expect("families");
    let planned = planned(CONFIG, None);
    metrics.planned(&planned, Instant::now());
    let page = metrics.page(&Snapshot { planned: Some(planned), ..snapshot(Instant::now()) }, None);
    let described: BTreeSet<_> = metrics.registry().descriptions().iter().map(|family| (family.name, family.kind.name())).collect();
    let shown: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert!(shown.len() > 10 && shown.iter().all(|family| described.contains(family)), "{shown:?}");
    let families: BTreeSet<_> = shown.iter().map(|(name, _)| *name).collect();
    assert_eq!(families.len(), shown.len(), "each family has one head: {shown:?}");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part)).filter(|base| families.contains(base));
        assert!(families.contains(base.unwrap_or(name)), "{line} is of no family");
    }
}

#[test]
fn metric_names_and_help_follow_the_conventions() {
    let metrics = Metrics::new().expect("families");
    let mut names = BTreeSet::new();
    for Description { name, kind, help, .. } in metrics.registry().descriptions() {
        assert!(name.starts_with("tailyard_") && names.insert(*name), "{name}");
        assert_eq!(name.ends_with("_total"), kind.name() == "counter", "{name}");
        assert!(!help.ends_with('.') && help.chars().next().is_some_and(|first| !first.is_lowercase()), "{name}: {help}");
    }
}

#[tokio::test(start_paused = true)]
async fn page_has_exactly_the_site_and_backend_series() {
    use crate::api::routes::Backend;
    use crate::model::tailnet::advertise::SiteStatus;
    use crate::proxy::front_end::{FrontEndSample, stats};
    let metrics = Metrics::new().expect("families");
    assert!(!metrics.page(&snapshot(Instant::now()), None).contains("tailyard_http_"), "a replica without sites has none");
    let counts = stats::ListenerCounts {
        codes: [0, 7, 0, 0, 1],
        latency: HistogramSample { bounds: &[0.1, 2.0], counts: vec![5, 2, 1], sum: 4.5 },
        handshakes: [("ok", 3), ("UnknownName", 1)].into(),
        failures: [("Connect", 2)].into(),
        aborted: [("Client", 5)].into(),
        open: 4,
        ..stats::ListenerCounts::default()
    };
    let placed = SiteStatus { missing: ["a.ts.net".to_owned()].into(), faults: [(80, "taken".to_owned())].into(), ..SiteStatus::default() };
    let backend = Backend { namespace: "ns".into(), service: "web".into(), port_name: "http".into(), ..Backend::default() };
    let sample = FrontEndSample {
        sites: [("svc:a".to_owned(), counts)].into(),
        in_place: Arc::new([("svc:a".to_owned(), placed)].into()),
        refused: Arc::new([("b.ts.net".to_owned(), "Pair")].into()),
        endpoints: [(Arc::new(backend), (3, 1))].into(),
        unfollowed: [("ns".to_owned(), "Forbidden")].into(),
    };
    let funnel_errors = [("svc:a".to_owned(), crate::model::tailnet::serve_config::FunnelError::NotAllowed)].into();
    let page = metrics.page(&Snapshot { sites: Some(sample), funnel_errors, ..snapshot(Instant::now()) }, None);
    let expected = [
        r#"tailyard_http_requests_total{proxied_service="svc:a",code="1xx"} 0"#,
        r#"tailyard_http_requests_total{proxied_service="svc:a",code="2xx"} 7"#,
        r#"tailyard_http_requests_total{proxied_service="svc:a",code="3xx"} 0"#,
        r#"tailyard_http_requests_total{proxied_service="svc:a",code="4xx"} 0"#,
        r#"tailyard_http_requests_total{proxied_service="svc:a",code="5xx"} 1"#,
        r#"tailyard_http_upstream_latency_seconds_bucket{proxied_service="svc:a",le="0.1"} 5"#,
        r#"tailyard_http_upstream_latency_seconds_bucket{proxied_service="svc:a",le="2"} 7"#,
        r#"tailyard_http_upstream_latency_seconds_bucket{proxied_service="svc:a",le="+Inf"} 8"#,
        r#"tailyard_http_upstream_latency_seconds_sum{proxied_service="svc:a"} 4.5"#,
        r#"tailyard_http_upstream_latency_seconds_count{proxied_service="svc:a"} 8"#,
        r#"tailyard_http_connections{proxied_service="svc:a"} 4"#,
        r#"tailyard_tls_handshakes_total{proxied_service="svc:a",result="ok"} 3"#,
        r#"tailyard_tls_handshakes_total{proxied_service="svc:a",result="UnknownName"} 1"#,
        r#"tailyard_http_clusterip_fallbacks_total{proxied_service="svc:a"} 0"#,
        r#"tailyard_http_upgrades_total{proxied_service="svc:a"} 0"#,
        r#"tailyard_http_upstream_errors_total{proxied_service="svc:a",reason="Connect"} 2"#,
        r#"tailyard_http_requests_aborted_total{proxied_service="svc:a",reason="Client"} 5"#,
        r#"tailyard_certificate_missing{proxied_service="svc:a",name="a.ts.net"} 1"#,
        r#"tailyard_http_listener_error{proxied_service="svc:a",port="80"} 1"#,
        r#"tailyard_funnel_unavailable{proxied_service="svc:a",reason="NotAllowed"} 1"#,
        r#"tailyard_certificate_invalid{name="b.ts.net",reason="Pair"} 1"#,
        r#"tailyard_upstream_endpoints{upstream="ns/web:http"} 3"#,
        r#"tailyard_upstream_endpoints_ejected{upstream="ns/web:http"} 1"#,
        r#"tailyard_endpointslice_watch_error{backend_namespace="ns",reason="Forbidden"} 1"#,
    ];
    exactly(
        &page,
        &["tailyard_http", "tailyard_tls", "tailyard_funnel", "tailyard_certificate", "tailyard_upstream", "tailyard_endpoint"],
        &expected,
    );
}

#[test]
fn page_has_exactly_the_certificate_series_of_each_name() {
    use crate::model::ingress::cert_orders::Certificate;
    use crate::model::ingress::cert_store::{CertStoreState, NameState};
    use k8s_openapi::jiff::{SignedDuration, Timestamp};

    let now = Timestamp::now();
    let certificate =
        Certificate { id: "a.b".into(), from: now - SignedDuration::from_hours(1), until: now + SignedDuration::from_hours(1) };
    let expiry = certificate.until.as_second();
    let good = NameState { issue: true, permitted: true, certificate: Some(certificate.clone()), ..NameState::default() };
    let mut late = NameState { issue: true, fault: Some("Empty"), ..NameState::default() };
    (late.note.failures, late.note.reason) = (2, "RateLimited".into());
    let old = Certificate { from: now - SignedDuration::from_hours(400), ..certificate };
    let theirs = NameState { certificate: Some(old), ..NameState::default() };
    let names = [("good", good), ("late", late), ("theirs", theirs)].map(|(name, state)| (name.to_owned(), state));
    let state = CertStoreState { names: names.into(), orders: [("issued", 3), ("RateLimited", 2)].into(), restored: 1 };
    let certs = Some(CertState { state: Arc::new(state), leads: true });
    let page = Metrics::new().expect("families").page(&Snapshot { certs, ..snapshot(Instant::now()) }, None);
    let expected = [
        r#"tailyard_certificate_loaded{name="good"} 1"#,
        r#"tailyard_certificate_loaded{name="late"} 0"#,
        r#"tailyard_certificate_loaded{name="theirs"} 1"#,
        &format!(r#"tailyard_certificate_expiry_timestamp_seconds{{name="good"}} {expiry}"#),
        &format!(r#"tailyard_certificate_expiry_timestamp_seconds{{name="theirs"}} {expiry}"#),
        r#"tailyard_certificate_order_failures{name="good"} 0"#,
        r#"tailyard_certificate_order_failures{name="late"} 2"#,
        r#"tailyard_certificate_error{name="late",reason="Empty"} 1"#,
        r#"tailyard_certificate_error{name="late",reason="RateLimited"} 1"#,
        r#"tailyard_certificate_error{name="late",reason="Unpermitted"} 1"#,
        r#"tailyard_certificate_orders_total{result="issued"} 3"#,
        r#"tailyard_certificate_orders_total{result="RateLimited"} 2"#,
        "tailyard_certificates_restored_total 1",
        "tailyard_certificates_issued_last_week 1",
        "tailyard_certificate_leader 1",
    ];
    exactly(&page, &["tailyard_certificate"], &expected);
}

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::api::replica::{PeerCounts, Rejects, ReplicaStatus};
use crate::model::base::net::{InterfaceName, Port, PortKey, Proto};
use crate::model::base::netmap::{NetMap, SelfNode};
use crate::model::config::EgressConfig;
use crate::model::config::source::{EgressDocument, InForce as Document};
use crate::model::firewall::{Counters, Traffic};
use crate::model::flows::prestop_hook::HealthProbe;
use crate::proxy::forwarding::flow_cleanup::TerminatedFlows;
use crate::proxy::forwarding::resolve::ResolveReport;
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::metrics::Metrics;
use crate::runtime::admin::{AdminServer, Limits};
use crate::runtime::tasks::{Heartbeats, Stopper, stop};

const CONFIG: &str = r#"{
  "a": {"healthCheckEndpoint":"http://a/healthz","tailnetTarget":{"ip":"100.64.0.2"},"ports":[{"protocol":"TCP","matchPort":10001,"targetPort":80}]},
  "b": {"healthCheckEndpoint":"http://b/healthz","tailnetTarget":{"ip":"100.64.0.3"},"ports":[{"protocol":"TCP","matchPort":10002,"targetPort":80}]},
  "c": {"tailnetTarget":{"ip":"100.64.0.4"},"ports":[]}}"#;

/// Sources whose parts are all set by the test.
struct Lab {
    sources: Arc<SnapshotSources>,
    stopper: Stopper,
    netmap: watch::Sender<Option<Arc<NetMap>>>,
    planned: watch::Sender<Option<Arc<Planned>>>,
    programmed: watch::Sender<Programmed>,
    egress: watch::Sender<Document<EgressDocument>>,
    flows: Arc<AtomicU64>,
    answers: Arc<Mutex<HealthProbe>>,
    _rest: (watch::Sender<Arc<ResolveReport>>, watch::Sender<TerminatedFlows>, watch::Sender<Vec<String>>),
}

fn lab() -> Lab {
    lab_with(None)
}

fn lab_with(unreachable_note: Option<PathBuf>) -> Lab {
    let (stopper, leaving) = stop();
    let ((netmap, netmap_seen), (planned, planned_seen)) = (watch::channel(None), watch::channel(None));
    let ((programmed, programmed_seen), (egress, egress_seen)) =
        (watch::channel(Programmed::default()), watch::channel(Document::default()));
    let ((names, names_seen), (ended, ended_seen), (switches, switches_seen)) =
        (watch::channel(Arc::default()), watch::channel(TerminatedFlows::default()), watch::channel(Vec::new()));
    let (flows, answers) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(from(&[]))));
    let (counted, answering) = (Arc::clone(&flows), Arc::clone(&answers));
    let key = PortKey { proto: Proto::Tcp, port: Port::new(10001).expect("a port") };
    let sources = SnapshotSources {
        metrics: Arc::new(Metrics::new().expect("families")),
        crashes: 0,
        pod_ips: ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().expect("an address")).into(),
        forwards: true,
        start: Instant::now(),
        leaving,
        unreachable_note,
        heartbeats: Heartbeats::default(),
        egress: Some(egress_seen),
        ingress: None,
        serve: None,
        daemon: None,
        netmap: netmap_seen,
        names: names_seen,
        planned: planned_seen,
        programmed: programmed_seen,
        ended: ended_seen,
        interface: crate::model::base::net::InterfaceName::tailscale0(),
        link: None,
        paths: None,
        advertise_status: None,
        switches: switches_seen,
        report: None,
        sites: None,
        api_server: None,
        certs: None,
        traffic: Arc::new(move || {
            let flows = counted.load(Ordering::SeqCst);
            let traffic = Traffic::from([(key, Counters { flows, packets: 0, bytes: 0 })]);
            Box::pin(std::future::ready(Some(traffic)))
        }),
        pressure: Arc::new(|| Box::pin(std::future::pending())),
        peers: Arc::new(|| Box::pin(std::future::ready(Some(PeerCounts { direct: 2, relayed: 1 })))),
        rejects: Arc::new(|| Box::pin(std::future::ready(Some(Rejects::default())))),
        usermetrics: Arc::new(|| Box::pin(std::future::ready(Some("tailscaled_up 1".to_owned())))),
        ping: Arc::new(move |_| Box::pin(std::future::ready(answering.lock().expect("not poisoned").clone()))),
        patience: Duration::from_secs(25),
        hook_callers: Mutex::default(),
        lag: Mutex::default(),
        reception: Mutex::default(),
    };
    Lab { sources: Arc::new(sources), stopper, netmap, planned, programmed, egress, flows, answers, _rest: (names, ended, switches) }
}

fn from(ips: &[&str]) -> HealthProbe {
    HealthProbe::Answered(ips.iter().map(|ip| ip.parse().expect("an address")).collect())
}

impl Lab {
    /// Makes every part ready.
    fn ready(&self) {
        let node = SelfNode { addresses: vec!["100.64.0.1".parse().expect("an address")], ..SelfNode::default() };
        let netmap = Arc::new(NetMap { node: Some(node), ..NetMap::default() });
        self.netmap.send_replace(Some(Arc::clone(&netmap)));
        let config = Arc::new(EgressConfig::parse(CONFIG.as_bytes()).expect("a config"));
        let document = EgressDocument { config: Arc::clone(&config), hep_pings: 3 };
        self.egress.send_modify(|state| state.document = Some(Arc::new(document)));
        let mut world = World::empty(InterfaceName::tailscale0(), BTreeSet::new());
        (world.netmap, world.egress) = (Some(netmap), config);
        let planned = Arc::new(Planned::new(&world));
        self.planned.send_replace(Some(Arc::clone(&planned)));
        self.write(&planned);
    }

    fn write(&self, planned: &Arc<Planned>) {
        self.programmed.send_modify(|state| {
            (state.planned, state.current, state.at) = (Some(Arc::clone(planned)), true, Some(Instant::now()));
            state.writes += 1;
        });
    }

    fn newest(&self) -> Arc<Planned> {
        self.planned.borrow().clone().expect("a plan")
    }
}

fn hook(lab: &Lab, from: &str) -> impl Future<Output = AdminResponse> + use<> {
    prestop_hook::hook(Arc::clone(&lab.sources), from.parse().expect("an address"))
}

async fn body(answer: AdminResponse) -> String {
    let bytes: Bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.into()).expect("text")
}

#[tokio::test(start_paused = true)]
async fn readyz_names_blockers_until_ready() {
    let lab = lab();
    assert_eq!(healthz(&lab.sources).status(), StatusCode::SERVICE_UNAVAILABLE);
    let answer = readyz(&lab.sources);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let lines = body(answer).await;
    let names: Vec<_> = lines.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(names, ["config", "netmap", "ruleset"]);
    lab.ready();
    assert_eq!((readyz(&lab.sources).status(), healthz(&lab.sources).status()), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test(start_paused = true)]
async fn replica_that_is_noted_as_lost_is_unready_until_a_probe_arrives() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("unreachable");
    let lab = lab_with(Some(file.clone()));
    lab.ready();
    assert_eq!(readyz(&lab.sources).status(), StatusCode::OK, "there is no file");
    let note = r#"{"stage":"lost","process":"r-1","time":"2026-01-01T00:10:03.4Z","since":"2026-01-01T00:10:01Z","connected":true}"#;
    std::fs::write(&file, note).expect("written");
    let answer = readyz(&lab.sources);
    assert_eq!((answer.status(), healthz(&lab.sources).status()), (StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK));
    let line = "unreachable: no health probe of r-1 arrives since 2026-01-01T00:10:01Z, and another replica is ready; \
                check the Pod network of the node\n";
    assert_eq!(body(answer).await, line);
    assert_eq!(reachable(&lab.sources).status(), StatusCode::OK);
    assert_eq!(readyz(&lab.sources).status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn healthz_has_pod_addresses_while_draining() {
    let lab = lab();
    lab.ready();
    lab.stopper.stop();
    assert_eq!(body(readyz(&lab.sources)).await, "draining: this replica is shutting down\n");
    let answer = healthz(&lab.sources);
    assert_eq!(answer.headers().get("Pod-IPv4").map(HeaderValue::as_bytes), Some(&b"10.0.0.5"[..]));
    assert_eq!(answer.headers().get("Pod-IPv6").map(HeaderValue::as_bytes), Some(&b"fd00::5"[..]));
    assert_eq!((answer.status(), body(answer).await.as_str()), (StatusCode::OK, "ok"));
}

#[tokio::test(start_paused = true)]
async fn failed_ruleset_write_is_reported_and_replica_stays_ready() {
    let lab = lab();
    lab.ready();
    let following = tokio::spawn(Arc::clone(&lab.sources).follow());
    tokio::task::yield_now().await;
    let newer = Arc::new(lab.newest().as_ref().clone());
    lab.planned.send_replace(Some(Arc::clone(&newer)));
    tokio::task::yield_now().await;
    assert_eq!(body(readyz(&lab.sources)).await, "ready\n", "a write takes a moment");
    tokio::time::advance(health::MAX_RULESET_LAG + Duration::from_millis(1)).await;
    let answer = readyz(&lab.sources);
    assert_eq!(answer.status(), StatusCode::OK, "the older plan forwards");
    assert_eq!(body(answer).await, "ready\nruleset-lag: the ruleset has been older than the newest plan for 2 s\n");
    let page = body(metrics(Arc::clone(&lab.sources)).await).await;
    let behind = |page: &str| page.lines().find_map(|line| line.strip_prefix("tailyard_ruleset_lag_seconds ")?.parse::<f64>().ok());
    assert!(behind(&page).is_some_and(|seconds| seconds > 2.0), "{page}");
    lab.write(&newer);
    assert_eq!(body(readyz(&lab.sources)).await, "ready\n");
    assert_eq!(behind(&body(metrics(Arc::clone(&lab.sources)).await).await), Some(0.0));
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn replica_is_ready_after_the_plan_of_its_start_is_written() {
    let lab = lab();
    lab.ready();
    let [second, third] = [(); 2].map(|()| Arc::new(lab.newest().as_ref().clone()));
    lab.planned.send_replace(Some(Arc::clone(&second)));
    assert_eq!(readyz(&lab.sources).status(), StatusCode::SERVICE_UNAVAILABLE, "the first write holds what was asked for before it");
    assert_eq!(healthz(&lab.sources).status(), StatusCode::OK);
    lab.planned.send_replace(Some(third));
    lab.write(&second);
    assert_eq!(readyz(&lab.sources).status(), StatusCode::OK, "behind by one write, as any replica while changes come without pause");
}

#[tokio::test(start_paused = true)]
async fn frequent_plans_do_not_affect_readiness() {
    let lab = lab();
    lab.ready();
    let following = tokio::spawn(Arc::clone(&lab.sources).follow());
    for _ in 0..10 {
        tokio::task::yield_now().await;
        let (old, newer) = (lab.newest(), Arc::new(lab.newest().as_ref().clone()));
        lab.planned.send_replace(Some(newer));
        tokio::time::advance(health::MAX_RULESET_LAG / 2).await;
        lab.write(&old);
        assert_eq!(readyz(&lab.sources).status(), StatusCode::OK);
    }
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn unrepairable_ruleset_makes_the_replica_unready() {
    let lab = lab();
    lab.ready();
    lab.programmed.send_modify(|state| (state.current, state.damaged) = (true, true));
    assert_eq!(readyz(&lab.sources).status(), StatusCode::OK, "they are written again in a moment");
    let fault = crate::proxy::forwarding::ruleset_sync::SyncFault { reason: "Missing", message: "cannot run nft".to_owned() };
    lab.programmed.send_modify(|state| (state.current, state.fault) = (false, Some((fault, Instant::now()))));
    let answer = readyz(&lab.sources);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(body(answer).await.starts_with("ruleset: "), "named");
    assert_eq!(healthz(&lab.sources).status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn metrics_skip_hanging_sources_and_append_those_of_tailscaled() {
    let lab = lab();
    lab.ready();
    lab.flows.store(9, Ordering::SeqCst);
    let before = Instant::now();
    let text = body(metrics(Arc::clone(&lab.sources)).await).await;
    assert!(before.elapsed() <= Duration::from_secs(2), "the connection table never answers here");
    assert!(text.contains("tailyard_service_flows_total{proxied_service=\"a\"} 9\n"), "{text}");
    let table = ["tailyard_conntrack_entries", "tailyard_conntrack_limit", "tailyard_conntrack_dropped_total"];
    assert!(table.iter().all(|family| !text.contains(family)), "{text}");
    assert!(text.ends_with("tailscaled_up 1\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn debug_plan_shows_the_current_plan() {
    let lab = lab();
    assert_eq!(body(debug_plan(&lab.sources)).await, "null");
    lab.ready();
    let shown: serde_json::Value = serde_json::from_str(&body(debug_plan(&lab.sources)).await).expect("JSON");
    assert_eq!(shown["current"], true);
    assert_eq!(shown["world"]["interface"], "tailscale0");
    assert!(shown["plan"]["egress"]["a"].is_object() && shown["ruleset"]["ports"]["tcp/10001"].is_array(), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn prestop_hook_ends_when_services_are_rerouted() {
    let lab = lab();
    assert_eq!(body(hook(&lab, "192.0.2.1").await).await, "safe to terminate", "no config");
    lab.ready();
    *lab.answers.lock().expect("not poisoned") = from(&["10.0.0.5"]);
    let hook = tokio::spawn(hook(&lab, "192.0.2.1"));
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!hook.is_finished(), "services are still routed here");
    *lab.answers.lock().expect("not poisoned") = from(&["10.0.0.6"]);
    lab.flows.store(1, Ordering::SeqCst);
    let before = Instant::now();
    let answer = hook.await.expect("the hook");
    assert_eq!((answer.status(), body(answer).await.as_str()), (StatusCode::OK, "safe to terminate"));
    let waited = before.elapsed();
    assert!((Duration::from_secs(3)..Duration::from_secs(5)).contains(&waited), "until no new flow came for a while: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn prestop_hook_times_out_and_names_routed_services() {
    let lab = lab();
    lab.ready();
    *lab.answers.lock().expect("not poisoned") = from(&["fd00::5"]);
    let before = Instant::now();
    let answer = hook(&lab, "192.0.2.1").await;
    assert!(before.elapsed() <= lab.sources.patience);
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(body(answer).await, "services that may still be routed here:\na\nb\n");
}

#[tokio::test(start_paused = true)]
async fn prestop_hook_ends_at_its_limit_however_many_services_are_silent() {
    // Services, and the seconds until each probe of one fails.
    for (services, seconds, status) in [(2, 0, 200), (64, 3, 200), (1000, 0, 200), (1000, 3, 504), (1, 600, 504)] {
        let mut lab = lab();
        lab.ready();
        let service = |n: u32| (format!("s{n}"), serde_json::json!({"healthCheckEndpoint": "http://s/healthz", "ports": []}));
        let config: serde_json::Map<_, _> = (0..services).map(service).collect();
        let config = EgressConfig::parse(serde_json::Value::from(config).to_string().as_bytes()).expect("a config");
        lab.egress.send_modify(|state| state.document = Some(Arc::new(EgressDocument { config: Arc::new(config), hep_pings: 3 })));
        let ping = move |_| -> futures_util::future::BoxFuture<'static, HealthProbe> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                HealthProbe::Silent
            })
        };
        Arc::get_mut(&mut lab.sources).expect("one owner").ping = Arc::new(ping);
        let began = Instant::now();
        let answer = hook(&lab, "192.0.2.1").await;
        assert!(began.elapsed() <= lab.sources.patience, "{services} services: {:?}", began.elapsed());
        assert_eq!(answer.status().as_u16(), status, "{services} services, {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn address_has_one_prestop_hook_call_at_a_time() {
    let lab = lab();
    lab.ready();
    *lab.answers.lock().expect("not poisoned") = from(&["10.0.0.5"]);
    let first = tokio::spawn(hook(&lab, "192.0.2.1"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(hook(&lab, "192.0.2.1").await.status(), StatusCode::TOO_MANY_REQUESTS);
    let began = Instant::now();
    assert_eq!(hook(&lab, "192.0.2.2").await.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(began.elapsed() > lab.sources.patience / 2, "another address's call takes nothing away: {:?}", began.elapsed());
    assert_eq!(first.await.expect("the hook").status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(timeout(Duration::from_secs(1), hook(&lab, "192.0.2.1")).await.is_err(), "its client goes away");
    assert!(timeout(Duration::from_secs(1), hook(&lab, "192.0.2.1")).await.is_err(), "the next call is answered");
}

#[tokio::test(start_paused = true)]
async fn sources_without_forwarding_keep_running() {
    let Lab { sources, planned, programmed, .. } = lab();
    drop((planned, programmed));
    let following = timeout(Duration::from_mins(1), Arc::clone(&sources).follow());
    assert!(following.await.is_err(), "the task ended although nothing asked it to");
}

#[tokio::test]
async fn debug_plan_is_served_on_the_admin_address_only() {
    let lab = lab();
    lab.ready();
    let listen = async |routes: Routes| {
        let server = AdminServer::bind("127.0.0.1:0".parse().expect("an address"), routes, Limits::default()).await.expect("a free port");
        let address = server.address();
        tokio::spawn(server.serve(std::future::pending()));
        address
    };
    let pod = listen(with_preshutdown(with_metrics(health_routes(&lab.sources), &lab.sources), &lab.sources)).await;
    let admin = listen(admin_routes(&lab.sources)).await;
    for (path, on_pod) in [("/livez", 200), ("/healthz", 200), ("/readyz", 200), ("/debug/plan", 404), ("/debug/pprof", 404), ("/", 404)] {
        assert_eq!(get(pod, path).await, on_pod, "{path}");
    }
    assert_eq!((get(admin, "/debug/plan").await, get(admin, "/metrics").await), (200, 200));
}

#[tokio::test]
async fn bind_is_retried_until_the_address_is_free() {
    let lab = lab();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = taken.local_addr().expect("an address");
    let (_stopper, stop) = stop();
    let serving = tokio::spawn(serve("http", address, health_routes(&lab.sources), stop));
    drop(taken);
    let up = timeout(Duration::from_secs(10), async {
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    up.await.expect("it listens once the address is free");
    assert_eq!(get(address, "/livez").await, 200);
    serving.abort();
}

async fn get(address: SocketAddr, path: &str) -> u16 {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

#[tokio::test(start_paused = true)]
async fn status_has_totals_and_blockers() {
    let lab = lab();
    let status_page =
        async || -> ReplicaStatus { serde_json::from_str(&body(status::page(Arc::clone(&lab.sources)).await).await).expect("a status") };
    let before = status_page().await;
    assert!(before.blockers.iter().any(|blocker| blocker.starts_with("netmap: ")), "{before:?}");
    assert_eq!(
        (before.flows, before.peers),
        (None, Some(PeerCounts { direct: 2, relayed: 1 })),
        "a table that does not answer is not waited for"
    );
    lab.ready();
    let after = status_page().await;
    assert_eq!((after.blockers, after.last_error, after.version.as_str()), (Vec::new(), None, env!("CARGO_PKG_VERSION")));
    lab.programmed.send_modify(|state| {
        let fault = crate::proxy::forwarding::ruleset_sync::SyncFault { reason: "Refused", message: "service default-db".into() };
        state.fault = Some((fault, Instant::now()));
    });
    assert_eq!(status_page().await.last_error.as_deref(), Some("the kernel does not take the rules: Refused"), "no name of a service");
}

//! Endpoints of a replica: for its operator's prober, Prometheus, the kubelet and users.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tailyard::model::base::net::Family;

use super::replica::PATIENCE;
use crate::proxy::replica::{HEALTH_PORT, Replica, Start, netmap, service};
use kit::netns::{Lab, Shape};
use kit::wait::until;

/// Time limit for quick operations on a busy machine.
const QUICK: Duration = Duration::from_secs(5);

fn config() -> Value {
    json!({"default-db": service(&json!({"fqdn": "target0.tail.lab"}), 10_080, 80),
           "default-typo": service(&json!({"fqdn": "nobody.tail.lab"}), 10_081, 80)})
}

#[test]
fn health_names_the_pod_and_readiness_names_blockers() {
    let lab = Lab::build(&Shape::default());
    let mut replica = Replica::launch(&lab.proxies[0], &config().to_string(), &json!({}), &Start::default());
    until("unready, for want of an address in the tailnet", PATIENCE, || {
        replica.get("/readyz").is_ok_and(|answer| answer.status == 503 && answer.body.contains("tailnet-ip"))
    });
    assert_eq!(replica.get("/livez").expect("an answer").status, 200, "unready is not dead");
    assert_eq!(replica.get("/healthz").expect("an answer").status, 503, "it cannot forward yet");
    replica.tailnet(&netmap(&lab.proxies[0], &lab.targets));
    replica.wait_ready();
    let health = replica.get("/healthz").expect("an answer");
    assert_eq!((health.status, health.body.as_str()), (200, "ok"));
    for (header, family) in [("pod-ipv4", Family::V4), ("pod-ipv6", Family::V6)] {
        assert!(health.head.contains(&format!("{header}: {}", replica.pod(family))), "{}", health.head);
    }
}

#[test]
fn service_metrics_equal_kernel_counters() {
    let lab = Lab::build(&Shape::default());
    let client = &lab.clients[0];
    let _server = lab.targets[0].serve(80);
    let replica = Replica::start(&lab.proxies[0], &config(), &netmap(&lab.proxies[0], &lab.targets));
    for _ in 0..7 {
        client.ask_tcp(SocketAddr::new(replica.pod(Family::V4), 10_080), QUICK).expect("served");
    }
    let of = |family: &str| replica.metric(&format!("{family}{{proxied_service=\"default-db\""));
    until("the flows are counted", PATIENCE, || of("tailyard_service_flows_total") == Some(7.0));
    assert!(of("tailyard_service_bytes_total").is_some_and(|bytes| bytes > 1_000.0));
    assert_eq!(of("tailyard_service_targets"), Some(2.0));
    let page = replica.get("/metrics").expect("an answer").body;
    assert!(page.lines().any(|line| line.contains("default-typo") && line.contains("Unresolved")), "{page}");
}

#[test]
fn debug_plan_is_served_on_the_admin_address_only() {
    let lab = Lab::build(&Shape::default());
    let replica = Replica::start(&lab.proxies[0], &config(), &netmap(&lab.proxies[0], &lab.targets));
    let shown: Value = serde_json::from_str(&replica.admin("/debug/plan").expect("an answer").body).expect("JSON");
    assert_eq!(shown["current"], true);
    assert!(shown["plan"]["egress"]["default-db"]["targets"].as_array().is_some_and(|targets| targets.len() == 2), "{shown}");
    assert!(shown["ruleset"]["ports"]["tcp/10080"].is_array(), "{shown}");
    assert_eq!(replica.get("/debug/plan").expect("an answer").status, 404);
}

/// Environment of a Tailscale operator's group, whose Pods have the preStop hook.
pub(super) fn with_hook() -> Vec<(String, String)> {
    vec![("TS_INTERNAL_APP".to_owned(), "k8s-operator-proxygroup-egress".to_owned())]
}

pub(super) const HOOK: &str = "/internal-egress-services-preshutdown";

#[test]
fn prestop_hook_answers_at_once_without_services() {
    let lab = Lab::build(&Shape::default());
    let start = Start { env: with_hook(), ..Start::default() };
    let mut replica = Replica::launch(&lab.proxies[0], "{}", &netmap(&lab.proxies[0], &lab.targets), &start);
    replica.wait_ready();
    let started = Instant::now();
    assert_eq!(replica.get(HOOK).expect("an answer").status, 200);
    assert!(started.elapsed() < QUICK);
}

#[test]
fn prestop_hook_is_not_served_outside_operator_pods() {
    let lab = Lab::build(&Shape::default());
    let replica = Replica::start(&lab.proxies[0], &config(), &netmap(&lab.proxies[0], &lab.targets));
    assert_eq!(replica.get(HOOK).expect("an answer").status, 404);
    assert_eq!(replica.admin(HOOK).expect("an answer").status, 404);
}

#[test]
fn hundreds_of_silent_connections_do_not_delay_a_probe() {
    let lab = Lab::build(&Shape::default());
    let mut replica = Replica::start(&lab.proxies[0], &config(), &netmap(&lab.proxies[0], &lab.targets));
    let (stranger, probes) = (&lab.clients[0], SocketAddr::new(replica.pod(Family::V4), HEALTH_PORT));
    for round in 0..5 {
        let _open: Vec<_> = (0..400).map(|_| stranger.connect(probes, QUICK).expect("the listener accepts")).collect();
        for path in ["/readyz", "/livez"] {
            let started = Instant::now();
            assert_eq!(replica.get(path).expect("an answer").status, 200);
            assert!(started.elapsed() < QUICK, "round {round}: {path} took {:?}", started.elapsed());
        }
    }
    assert!(replica.exited().is_none());
}

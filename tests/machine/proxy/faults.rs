//! Faults that need neither an API server nor tailscaled; each row of docs/failures.md names its test here.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tailyard::model::base::net::Family;

use crate::proxy::replica::{PATIENCE, Replica, Start, netmap, service};
use kit::netns::{Lab, Node, Shape};
use kit::wait::until;

/// Time limit for quick operations on a busy machine.
const QUICK: Duration = Duration::from_secs(5);

struct Scene {
    lab: Lab,
    _servers: Vec<kit::netns::Server>,
}

impl Scene {
    fn build() -> Self {
        let lab = Lab::build(&Shape { targets: 2, ..Shape::default() });
        let servers = lab.targets.iter().map(|target| target.serve(80)).collect();
        Self { lab, _servers: servers }
    }

    fn proxy(&self) -> &Node {
        &self.lab.proxies[0]
    }

    fn netmap(&self) -> Value {
        netmap(self.proxy(), &self.lab.targets)
    }

    fn replica(&self, config: &Value) -> Replica {
        Replica::start(self.proxy(), config, &self.netmap())
    }

    /// Name of the target that answers on a port of the Pod.
    fn answers(&self, port: u16) -> std::io::Result<String> {
        let to = SocketAddr::new(self.proxy().cluster[&Family::V4], port);
        self.lab.clients[0].ask_tcp(to, QUICK).map(|greeting| greeting.name)
    }

    fn refused(&self, port: u16) -> bool {
        self.answers(port).is_err_and(|fault| fault.kind() == ErrorKind::ConnectionRefused)
    }
}

fn to_target(i: usize) -> Value {
    json!({"fqdn": format!("target{i}.tail.lab")})
}

fn one() -> Value {
    json!({"svc": service(&to_target(0), 10_080, 80)})
}

#[test]
fn malformed_config_changes_nothing_and_is_reported() {
    let scene = Scene::build();
    let replica = scene.replica(&one());
    for text in ["{nonsense", &one().to_string()[..40], "[]"] {
        replica.configure_text(text);
        until("the error is reported", PATIENCE, || replica.metric("tailyard_config_error").is_some_and(|value| value > 0.0));
        assert_eq!(scene.answers(10_080).expect("last good stays"), "target0", "{text:?}");
        assert_eq!(replica.get("/readyz").expect("an answer").status, 200, "a bad config makes no replica unready");
    }
    replica.configure(&json!({"svc": service(&to_target(1), 10_080, 80)}));
    until("the next good config counts", PATIENCE, || scene.answers(10_080).is_ok_and(|name| name == "target1"));
}

#[test]
fn invalid_service_does_not_affect_a_thousand_others() {
    let scene = Scene::build();
    let mut config: serde_json::Map<String, Value> =
        (0..1_000_u16).map(|i| (format!("svc-{i}"), service(&to_target(0), 10_000 + i, 80))).collect();
    config["svc-500"] =
        json!({"tailnetTarget": {"ip": "not an address"}, "ports": [{"protocol": "TCP", "matchPort": 10_500, "targetPort": 80}]});
    let replica = scene.replica(&Value::Object(config));
    for port in [10_000, 10_499, 10_501, 10_999] {
        assert_eq!(scene.answers(port).expect("unaffected"), "target0");
    }
    assert!(scene.refused(10_500), "what cannot be served is refused, not dropped");
    until("the reason is reported", PATIENCE, || {
        let status = replica.status();
        status["rejected"]["svc-500"][0].as_str().is_some_and(|reason| reason.contains("not an address"))
    });
}

#[test]
fn duplicate_match_port_is_served_once_and_reported() {
    let scene = Scene::build();
    let config =
        json!({"a": service(&to_target(0), 10_080, 80), "b": service(&to_target(1), 10_080, 80), "c": service(&to_target(1), 10_081, 80)});
    let replica = scene.replica(&config);
    assert_eq!(scene.answers(10_080).expect("served"), "target0", "the first in the alphabet");
    assert_eq!(scene.answers(10_081).expect("served"), "target1");
    assert!(replica.metric("tailyard_services_rejected{").is_some_and(|count| count >= 1.0), "{:?}", replica.get("/metrics"));
}

#[test]
fn reserved_port_is_not_mapped() {
    let scene = Scene::build();
    let replica = scene.replica(&json!({"bad": service(&to_target(0), 9_002, 80), "good": service(&to_target(0), 10_080, 80)}));
    assert_eq!(replica.get("/healthz").expect("the health port answers").status, 200);
    assert_eq!(scene.answers(10_080).expect("served"), "target0");
}

#[test]
fn flushed_rules_are_restored() {
    let scene = Scene::build();
    let replica = scene.replica(&one());
    scene.proxy().feed(&["nft", "-f", "-"], "flush ruleset\n");
    until("repaired", PATIENCE, || scene.answers(10_080).is_ok());
    assert!(replica.metric("tailyard_ruleset_drift_repairs_total").is_some_and(|count| count >= 1.0));
}

#[test]
fn missing_firewall_program_blocks_readiness_until_installed() {
    let scene = Scene::build();
    let empty = tempfile::TempDir::new().expect("a directory");
    let start =
        Start { args: vec!["--firewall-mode".into(), "nftables".into()], env: vec![("PATH".into(), empty.path().display().to_string())] };
    let mut replica = Replica::launch(scene.proxy(), &one().to_string(), &scene.netmap(), &start);
    until("the blocker is named", PATIENCE, || {
        replica.get("/readyz").is_ok_and(|answer| answer.status == 503 && answer.body.contains("ruleset: "))
    });
    assert!(replica.exited().is_none());
    let nft = ["/usr/sbin/nft", "/sbin/nft"].into_iter().find(|path| std::path::Path::new(path).exists()).expect("nft is installed");
    std::os::unix::fs::symlink(nft, empty.path().join("nft")).expect("a link");
    replica.wait_ready();
    assert_eq!(scene.answers(10_080).expect("served"), "target0");
}

#[test]
fn failed_ruleset_update_keeps_the_old_rules_and_readiness() {
    let scene = Scene::build();
    let programs = tempfile::TempDir::new().expect("a directory");
    let names =
        ["iptables-nft", "iptables-nft-restore", "iptables-nft-save", "ip6tables-nft", "ip6tables-nft-restore", "ip6tables-nft-save"];
    let install = || {
        for name in names {
            std::os::unix::fs::symlink(format!("/usr/sbin/{name}"), programs.path().join(name)).expect("a link");
        }
    };
    install();
    let start = Start {
        args: vec!["--firewall-mode".into(), "iptables-nft".into()],
        env: vec![("PATH".into(), programs.path().display().to_string())],
    };
    let mut replica = Replica::launch(scene.proxy(), &one().to_string(), &scene.netmap(), &start);
    replica.wait_ready();
    for name in names {
        std::fs::remove_file(programs.path().join(name)).expect("removed");
    }
    replica.configure(&json!({"svc": service(&to_target(0), 10_080, 80), "new": service(&to_target(1), 10_081, 80)}));
    until("the replica says that it is behind", PATIENCE, || {
        replica
            .get("/readyz")
            .is_ok_and(|answer| answer.status == 200 && answer.body.contains("ruleset-lag: ") && answer.body.contains("Missing"))
    });
    assert!(replica.metric("tailyard_ruleset_lag_seconds").is_some_and(|seconds| seconds > 0.0));
    assert_eq!(scene.answers(10_080).expect("the rules before go on serving"), "target0");
    assert!(replica.status()["services"]["new"].is_null(), "a service without rules is not reported");
    install();
    until("the change arrives", PATIENCE, || scene.answers(10_081).is_ok_and(|name| name == "target1"));
    until("the replica is ready", PATIENCE, || replica.get("/readyz").is_ok_and(|answer| answer.body == "ready\n"));
}

#[test]
fn recreated_tailnet_interface_with_another_address_is_used() {
    let scene = Scene::build();
    let mut replica = scene.replica(&one());
    scene.proxy().ip("link set tailscale0 down\n");
    scene.proxy().ip("link set tailscale0 name gone0\n");
    until("unready, and it says why", PATIENCE, || {
        replica
            .get("/readyz")
            .is_ok_and(|answer| answer.status == 503 && answer.body.contains("interface: there is no interface tailscale0"))
    });
    assert!(replica.exited().is_none());
    scene
        .proxy()
        .ip("link set gone0 name tailscale0\naddr flush dev tailscale0\naddr add 100.64.0.77/24 dev tailscale0\nlink set tailscale0 up\n");
    let mut tailnet = scene.netmap();
    tailnet["self"]["addresses"] = json!(["100.64.0.77"]);
    replica.tailnet(&tailnet);
    let to = SocketAddr::new(scene.proxy().cluster[&Family::V4], 10_080);
    until("served from the new address", PATIENCE, || {
        scene.lab.clients[0].ask_tcp(to, QUICK).is_ok_and(|greeting| greeting.peer.ip().to_string() == "100.64.0.77")
    });
}

/// The first write to the kernel, stopped at one of its nft runs: the first run probes the kernel's features, the second loads the rules.
/// Each run records its process id on a line; the run `stop_at` reports that it has stopped, then sleeps in place of nft, or after it if
/// `loaded`.
fn signalled_in_the_first_sync(stop_at: usize, loaded: bool) {
    let scene = Scene::build();
    let place = tempfile::TempDir::new().expect("a directory");
    let file = |name: &str| place.path().join(name).display().to_string();
    let real = ["/usr/sbin/nft", "/sbin/nft"].into_iter().find(|path| std::path::Path::new(path).exists()).expect("nft is installed");
    let script = format!(
        "#!/bin/sh
        echo $$ >> {runs}
        [ $(wc -l < {runs}) = {stop_at} ] || exec {real} \"$@\"
        if {loaded}; then {real} \"$@\"; fi
        echo stopped > {stopped}
        exec sleep 600\n",
        runs = file("runs"),
        stopped = file("stopped"),
    );
    std::fs::write(place.path().join("nft"), script).expect("a file");
    std::fs::set_permissions(place.path().join("nft"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a program");
    let config: serde_json::Map<String, Value> =
        (0..5_000_u16).map(|i| (format!("svc-{i}"), service(&to_target(0), 10_000 + i, 80))).collect();
    let path = format!("{}:{}", place.path().display(), std::env::var("PATH").expect("PATH"));
    let start = Start { args: vec!["--firewall-mode".into(), "nftables".into()], env: vec![("PATH".into(), path)] };
    let mut replica = Replica::launch(scene.proxy(), &Value::Object(config).to_string(), &scene.netmap(), &start);
    until("nft is stopped", PATIENCE, || place.path().join("stopped").exists());
    // The listener of probes starts beside the first sync.
    until("unready, as the first sync is under way", PATIENCE, || replica.get("/readyz").is_ok_and(|answer| answer.status == 503));
    replica.signal(Signal::SIGTERM);
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
    let runs = std::fs::read_to_string(file("runs")).expect("runs");
    let runs: Vec<i32> = runs.lines().map(|pid| pid.parse().expect("a number")).collect();
    assert_eq!(runs.len(), stop_at, "nothing is written after the signal");
    let nft = nix::unistd::Pid::from_raw(runs[stop_at - 1]);
    until("nft is ended with the replica", PATIENCE, || nix::sys::signal::kill(nft, None).is_err());
    replica.restart();
    replica.wait_ready();
    for port in [10_000, 14_999] {
        assert_eq!(scene.answers(port).expect("served after a restart"), "target0");
    }
}

#[test]
fn signal_during_nft_probe_exits_with_status_0() {
    signalled_in_the_first_sync(1, false);
}

#[test]
fn signal_before_the_first_ruleset_exits_with_status_0() {
    signalled_in_the_first_sync(2, false);
}

#[test]
fn signal_between_rules_and_elements_exits_with_status_0() {
    signalled_in_the_first_sync(2, true);
}

#[test]
fn restart_in_the_same_namespace_converges_without_dropping_connections() {
    let scene = Scene::build();
    let mut replica = scene.replica(&json!({"old": service(&to_target(0), 10_080, 80), "kept": service(&to_target(1), 10_081, 80)}));
    replica.signal(Signal::SIGKILL);
    replica.wait_exit(PATIENCE);
    assert_eq!(scene.answers(10_081).expect("a dead supervisor forwards on"), "target1");
    replica.configure(&json!({"kept": service(&to_target(1), 10_081, 80)}));
    scope(|scope| {
        let load = scope.spawn(|| (0..100).filter(|_| scene.answers(10_081).is_err()).count());
        replica.restart();
        replica.wait_ready();
        assert_eq!(load.join().expect("a load"), 0);
    });
    until("what is configured no more is refused", PATIENCE, || scene.refused(10_080));
}

#[test]
fn frequent_config_changes_end_at_the_newest() {
    let scene = Scene::build();
    let replica = scene.replica(&one());
    let started = Instant::now();
    for i in 0..200_u16 {
        replica.configure(&json!({"svc": service(&to_target(0), 10_080, 80), "moving": service(&to_target(1), 11_000 + i, 80)}));
        sleep((started + Duration::from_millis(10) * u32::from(i)).saturating_duration_since(Instant::now()));
        if i % 20 == 0 {
            assert_eq!(scene.answers(10_080).expect("untouched"), "target0");
        }
    }
    until("the newest is in force", PATIENCE, || scene.answers(11_199).is_ok_and(|name| name == "target1"));
    assert!(scene.refused(11_198) || scene.answers(11_198).is_err());
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let scene = Scene::build();
    let start = Start {
        args: vec![],
        env: vec![
            ("TS_DEST_IP".into(), "nonsense".into()),
            ("POD_IPS".into(), "10.0.0.1,x".into()),
            ("TAILYARD_DRAIN_TIMEOUT".into(), "soon".into()),
        ],
    };
    let mut replica = Replica::launch(scene.proxy(), &one().to_string(), &scene.netmap(), &start);
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(64));
    for name in ["TS_DEST_IP", "POD_IPS", "TAILYARD_DRAIN_TIMEOUT"] {
        assert!(replica.log().contains(name), "{name}: {}", replica.log());
    }
}

#[test]
fn connection_table_metrics_are_reported() {
    let scene = Scene::build();
    let replica = scene.replica(&one());
    let to = SocketAddr::new(scene.proxy().cluster[&Family::V4], 10_080);
    let mut flow = scene.lab.clients[0].connect(to, QUICK).expect("served");
    kit::netns::Greeting::read(&mut flow).expect("a greeting");
    let full = scene.proxy().ns.run(|| std::fs::write("/proc/sys/net/netfilter/nf_conntrack_max", "1")).expect("the namespace");
    if full.is_err() {
        // Only the machine's own namespace may set the limit on this kernel; the metric must then report the existing limit.
        assert!(replica.metric("tailyard_conntrack_limit").is_some_and(|limit| limit > 0.0));
    }
    assert!(replica.metric("tailyard_conntrack_entries").is_some_and(|count| count >= 1.0));
    std::io::Write::write_all(&mut flow, b"x").expect("an established flow lives");
    std::io::Read::read_exact(&mut flow, &mut [0; 1]).expect("an established flow lives");
}

#[test]
fn disabled_ip_forwarding_is_enabled() {
    let scene = Scene::build();
    scene.proxy().sysctl("net.ipv4.ip_forward", "0");
    let mut replica = Replica::launch(scene.proxy(), &one().to_string(), &scene.netmap(), &Start::default());
    replica.wait_ready();
    assert_eq!(scene.answers(10_080).expect("it sets what it may set"), "target0");
}

/// Options of a replica that finds only these programs of the machine, with this firewall mode.
fn with_programs(programs: &[&str], backend: &str) -> (tempfile::TempDir, Start) {
    let place = tempfile::TempDir::new().expect("a directory");
    for name in programs {
        let real = ["/usr/sbin", "/sbin"].map(|dir| format!("{dir}/{name}")).into_iter().find(|path| std::path::Path::new(path).exists());
        std::os::unix::fs::symlink(real.expect("installed"), place.path().join(name)).expect("a link");
    }
    let env = vec![("PATH".to_owned(), place.path().display().to_string())];
    (place, Start { args: vec!["--firewall-mode".to_owned(), backend.to_owned()], env })
}

fn programs_of(make: &str) -> Vec<String> {
    ["iptables", "ip6tables"]
        .into_iter()
        .flat_map(|family| ["", "-restore", "-save"].map(|tool| format!("{family}-{make}{tool}")))
        .collect()
}

#[test]
fn auto_falls_back_through_every_firewall() {
    let (nft_make, legacy) = (programs_of("nft"), programs_of("legacy"));
    let all: Vec<&str> = nft_make.iter().chain(&legacy).map(String::as_str).collect();
    let legacy: Vec<&str> = legacy.iter().map(String::as_str).collect();
    // nft is missing, or refused by the kernel; then iptables-nft is missing, too.
    for (programs, refuses, firewall) in [(&all, false, "iptables-nft"), (&all, true, "iptables-nft"), (&legacy, false, "iptables-legacy")]
    {
        let scene = Scene::build();
        let (place, start) = with_programs(programs, "auto");
        if refuses {
            std::fs::write(place.path().join("nft"), "#!/bin/sh\necho 'Operation not supported' >&2\nexit 1\n").expect("a file");
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(place.path().join("nft"), executable).expect("a program");
        }
        let mut replica = Replica::launch(scene.proxy(), &one().to_string(), &scene.netmap(), &start);
        replica.wait_ready();
        assert_eq!(scene.answers(10_080).expect("served"), "target0");
        assert!(replica.log().contains(&format!("firewall={firewall}")), "{}", replica.log());
    }
}

#[test]
fn rules_of_another_backend_are_removed_at_start() {
    let scene = Scene::build();
    let start = |backend: &str| Start { args: vec!["--firewall-mode".to_owned(), backend.to_owned()], ..Start::default() };
    let has_rules = |backend: &str| match backend {
        "nftables" => scene.proxy().feed(&["nft", "list", "tables"], "").contains("inet tailyard"),
        make => [format!("{make}-save"), format!("{}-save", make.replace("ip", "ip6"))]
            .iter()
            .any(|save| scene.proxy().feed(&[save], "").contains("TAILYARD")),
    };
    let mut replica = Replica::launch(scene.proxy(), &one().to_string(), &scene.netmap(), &start("nftables"));
    replica.wait_ready();
    let mut before = "nftables";
    for backend in ["iptables-nft", "nftables", "iptables-legacy", "nftables"] {
        assert!(has_rules(before), "{before} holds rules");
        replica.signal(Signal::SIGKILL);
        replica.wait_exit(PATIENCE);
        replica.restart_with(&start(backend));
        replica.wait_ready();
        until(&format!("nothing is left in {before}"), PATIENCE, || !has_rules(before));
        assert_eq!(scene.answers(10_080).expect("served"), "target0", "{before} to {backend}");
        before = backend;
    }
}

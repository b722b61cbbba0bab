//! Modes of a replica. Those that forward nothing, each with a scripted tailscaled, stay up, answer probes and report their device; the
//! proxy of one Service drops connections before it forwards.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kit::netns::{Lab, Node, Shape};
use kit::wait::until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tailyard::model::base::net::Family;
use tempfile::TempDir;

use crate::proxy::replica::{PATIENCE, Replica, Start, fetch, netmap};

/// Time of observation: tasks that end by themselves do so within seconds of the start.
const OBSERVATION: Duration = Duration::from_secs(10);
const PROBES: &str = "127.0.0.1:9002";

/// A `tailyard proxy` with only the environment of a mode; killed when dropped.
struct Mode {
    node: Node,
    files: TempDir,
    child: Child,
}

impl Mode {
    fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        let (node, files) = (Node::make(name.to_owned()), script());
        let path = |name: &str| files.path().join(name).display().to_string();
        let log = fs::File::create(path("log")).expect("a file");
        let mut command = Command::new(kit::tailyard());
        command
            .args(["proxy", "--http-addr", PROBES, "--state-file", &path("state.json"), "--tailscaled", &path("tailscaled")])
            .args(["--tailscale", &path("tailscaled")])
            .env("TS_SOCKET", path("ts.sock"))
            .envs(environment.iter().map(|(name, value)| (name, value.replace("DIR", &files.path().display().to_string()))))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log);
        let child = node.ns.run(|| command.spawn()).expect("the namespace").expect("the compiled binary");
        Self { node, files, child }
    }

    fn answers(&self, path: &str) -> bool {
        fetch(&self.node, PROBES.parse().expect("an address"), path).is_ok_and(|answer| answer.status == 200)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.files.path().join(name)).unwrap_or_default()
    }

    /// Checks that the replica stays up, answers probes throughout and reports its device.
    fn stays_up(mut self) {
        until("healthy", PATIENCE, || self.answers("/healthz"));
        let start = Instant::now();
        while start.elapsed() < OBSERVATION {
            let exited = self.child.try_wait().expect("our child");
            assert!(exited.is_none(), "ended after {:?}: {exited:?}\n{}", start.elapsed(), self.read("log"));
            assert!(self.answers("/livez") && self.answers("/healthz"), "{}", self.read("log"));
            sleep(Duration::from_millis(200));
        }
        assert!(self.answers("/readyz"), "{}", self.read("log"));
        let state: Value = serde_json::from_str(&self.read("state.json")).expect("a state");
        assert_eq!(state["device_id"], "nMe", "{state}");
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Directory of a scripted tailscaled that is connected at once, with a login config and an empty serve config.
fn script() -> TempDir {
    let files = TempDir::new().expect("a directory");
    let path = |name: &str| files.path().join(name);
    let program = format!(
        "#!/bin/sh\n[ \"$1\" = version ] && exec echo '{{\"cap\":142}}'\nFAKE_DIR={} FAKE_ARGS=\"$*\" exec {}\n",
        files.path().display(),
        kit::program("scripted-tailscaled").display()
    );
    fs::write(path("tailscaled"), program).expect("written");
    fs::set_permissions(path("tailscaled"), fs::Permissions::from_mode(0o755)).expect("executable");
    let node = json!({"ID": "nMe", "DNSName": "me.lab.", "TailscaleIPs": ["100.64.0.1"]});
    let initial = json!({"Version": "1.102", "State": 6, "InitialStatus": {"BackendState": "Running", "Self": node, "Peer": {}}});
    fs::write(path("initial"), initial.to_string()).expect("written");
    fs::create_dir(path("conf")).expect("made");
    fs::write(path("conf/cap-106.hujson"), r#"{"Version":"alpha0","AuthKey":"old"}"#).expect("written");
    fs::write(path("serve-config.json"), "{}").expect("written");
    files
}

#[test]
fn serve_config_mode_stays_up() {
    let environment = [("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "DIR/conf"), ("TS_SERVE_CONFIG", "DIR/serve-config.json")];
    Mode::start("serve", &environment).stays_up();
}

#[test]
fn plain_node_mode_stays_up() {
    Mode::start("plain", &[("TS_AUTHKEY", "tskey-x"), ("TS_AUTH_ONCE", "true"), ("TS_HOSTNAME", "me")]).stays_up();
}

#[test]
fn connector_mode_stays_up() {
    let environment =
        [("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "DIR/conf"), ("TS_USERSPACE", "false"), ("TS_INTERNAL_APP", "k8s-operator-connector")];
    Mode::start("connector", &environment).stays_up();
}

/// tailscaled is connected before the rules exist. A client repeats a connection that is dropped, and gives up one that is refused.
#[test]
fn proxy_of_one_service_drops_new_connections_until_it_forwards() {
    let lab = Lab::build(&Shape::default());
    let (backend, proxy, client) = (&lab.clients[0], &lab.proxies[0], &lab.targets[0]);
    let _server = backend.serve(80);
    let start = Start { env: vec![("TS_DEST_IP".to_owned(), backend.cluster[&Family::V4].to_string())], ..Start::default() };
    let mut replica = Replica::launch(proxy, "{}", &json!("no netmap yet"), &start);
    let to = SocketAddr::new(proxy.tailnet[&Family::V4], 80);
    let failure = || client.ask_tcp(to, Duration::from_millis(500)).map_err(|fault| fault.kind());
    until("dropped", PATIENCE, || matches!(failure(), Err(ErrorKind::TimedOut | ErrorKind::WouldBlock)));
    replica.tailnet(&netmap(proxy, &lab.targets));
    assert_eq!(client.ask_tcp(to, PATIENCE).expect("the connection waits for the rules").name, backend.name);
    // Rules of the former process forward at once.
    replica.signal(Signal::SIGKILL);
    replica.wait_exit(PATIENCE);
    replica.tailnet(&json!("no netmap yet"));
    replica.restart_with(&start);
    until("started", PATIENCE, || replica.get("/livez").is_ok());
    assert_eq!(failure().expect("served").name, backend.name);
}

#[test]
fn proxy_of_one_service_forwards_both_families() {
    let lab = Lab::build(&Shape::default());
    let (backend, proxy, client) = (&lab.clients[0], &lab.proxies[0], &lab.targets[0]);
    let _server = backend.serve(80);
    for (first, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let variable = |name: &str, family| (name.to_owned(), backend.cluster[&family].to_string());
        let env = vec![variable("TS_DEST_IP", first), variable("TAILYARD_OTHER_DEST_IP", other)];
        let mut replica = Replica::launch(proxy, "{}", &netmap(proxy, &lab.targets), &Start { env, ..Start::default() });
        for family in Family::ALL {
            let to = SocketAddr::new(proxy.tailnet[&family], 80);
            until("forwarded", PATIENCE, || client.ask_tcp(to, PATIENCE).is_ok_and(|answer| answer.name == backend.name));
        }
        replica.signal(Signal::SIGKILL);
        replica.wait_exit(PATIENCE);
    }
}

#[test]
fn replica_has_routing_rules_for_routes_that_cover_its_own_addresses() {
    let lab = Lab::build(&Shape::default());
    let proxy = &lab.proxies[0];
    let mut tailnet = netmap(proxy, &lab.targets);
    let replica = Replica::launch(proxy, "{}", &tailnet, &Start::default());
    let rules = |family: &str| proxy.feed(&["ip", family, "rule"], "");
    for family in ["-4", "-6"] {
        until("a rule", PATIENCE, || rules(family).contains("iif tailscale0 lookup main"));
    }
    tailnet["peers"][0]["routes"] = json!(["10.42.0.0/16", "10.99.0.0/16"]);
    replica.tailnet(&tailnet);
    until("a rule for the route", PATIENCE, || rules("-4").contains("to 10.42.0.0/16 iif lo lookup main"));
    assert!(!rules("-4").contains("10.99.0.0/16"), "it covers nothing of the cluster: {}", rules("-4"));
    tailnet["peers"][0]["routes"] = json!([]);
    replica.tailnet(&tailnet);
    until("the rule goes with the route", PATIENCE, || !rules("-4").contains("10.42.0.0/16"));
}

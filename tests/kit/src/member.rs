//! A replica of a group of type ingress in a machine, with its supervised tailscaled.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tailyard::api::localapi::Prefs;
use tailyard::api::names::ACCOUNTS;
use tailyard::edge::localapi::LocalApi;

use crate::machine::DEADLINE;
use crate::machine::{Machine, Process};
use crate::tailnet::{Tailnet, conf_with};
use crate::wait::eventually;

const HTTP: u16 = 9002;
/// A replica with this variable in its own environment forwards nothing and has no capability.
const USERSPACE: &str = "TS_USERSPACE";
/// Command prefix that drops every capability.
const CONFINED: [&str; 5] = ["/usr/bin/setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"];

pub struct Member {
    pub machine: Machine,
    process: Option<Process>,
    serves: bool,
    env: Vec<(&'static str, String)>,
}

/// Makes a Tailscale Service; returns its addresses, IPv4 first.
pub fn service(tailnet: &Tailnet, name: &str) -> Vec<IpAddr> {
    let wanted = json!({"name": name, "ports": ["do-not-validate"], "tags": ["tag:k8s"]});
    let made = tailnet.call("PUT", &format!("/tailnet/-/vip-services/{name}"), &wanted);
    let addresses = made["addrs"].as_array().expect("addresses").iter();
    addresses.map(|address| address.as_str().expect("text").parse().expect("an address")).collect()
}

/// Prepares a machine like a Pod: API server address, service account, and config in this `ConfigMap`. Returns the environment.
pub fn in_pod(machine: &Machine, account: &Path, configs: &str) -> Vec<(&'static str, String)> {
    let dir = "/var/run/secrets/kubernetes.io";
    let script = format!("mkdir -p {dir} && ln -s {} {dir}/serviceaccount", account.display());
    assert!(machine.command(Path::new("sh")).args(["-c", &script]).status().expect("nsenter").success());
    vec![
        ("KUBERNETES_SERVICE_HOST", "10.99.0.2".to_owned()),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "6443".to_owned()),
        ("POD_NAME", machine.node.name.clone()),
        ("TAILYARD_INGRESS_CONFIGMAP", configs.to_owned()),
        ("TS_ACME_ACCOUNT_SECRET_NAME", ACCOUNTS.to_owned()),
        ("TS_ACME_ACCOUNT_FIELD", "_default.acme-account.key.pem".to_owned()),
    ]
}

impl Member {
    /// Starts a replica with these services in its config, an L4 config and optionally a serve config.
    pub fn start(tailnet: &Tailnet, name: &str, services: &[&str], ingress: &Value, serve: Option<&Value>) -> Self {
        Self::launch(tailnet, name, &json!({"AdvertiseServices": services}), ingress, serve, |_| Vec::new()).joined()
    }

    /// Waits until its tailscaled answers.
    pub fn joined(self) -> Self {
        eventually("its tailscaled", DEADLINE, || self.prefs());
        self
    }

    /// As [`Self::start`], with more tailscaled config, and with an environment from the prepared machine. Does not wait for its tailscaled.
    pub fn launch(
        tailnet: &Tailnet,
        name: &str,
        conf: &Value,
        ingress: &Value,
        serve: Option<&Value>,
        prepare: impl FnOnce(&Machine) -> Vec<(&'static str, String)>,
    ) -> Self {
        let machine = tailnet.machine(name);
        let env = prepare(&machine);
        machine.node.sysctl("net.ipv4.ip_forward", "1");
        machine.node.sysctl("net.ipv6.conf.all.forwarding", "1");
        let mut member = Self { machine, process: None, serves: serve.is_some(), env };
        for dir in ["conf", "proxies"] {
            fs::create_dir_all(member.machine.own_dir().join(dir)).expect("made");
        }
        let mut whole: Value = serde_json::from_str(&conf_with(name, tailnet.key(), false)).expect("JSON");
        whole.as_object_mut().expect("an object").extend(conf.as_object().expect("an object").clone());
        member.configure(&whole);
        member.ingress(ingress);
        if let Some(serve) = serve {
            member.serve(serve);
        }
        member.run();
        member
    }

    /// Starts the process, with the state that it left.
    pub fn run(&mut self) {
        let (dir, bin) = (self.machine.own_dir(), self.machine.bin().to_owned());
        let path = |name: &str| dir.join(name).display().to_string();
        let program = |name: &str| bin.join(name).display().to_string();
        let (ip, socket) = (self.machine.address.to_string(), self.machine.socket().display().to_string());
        let (ingress, state) = (path("proxies/ingress-config.json"), path("state.json"));
        let (tailscaled, tailscale) = (program("tailscaled"), program("tailscale"));
        let sets = |variable: &str| self.env.iter().any(|(name, _)| *name == variable);
        let confined = if sets(USERSPACE) { &CONFINED[..] } else { &[] };
        let forwards = if sets(USERSPACE) { &[][..] } else { &["--ingress-config", &ingress] };
        let store = if sets("TS_KUBE_SECRET") { &[][..] } else { &["--state-file", &state] };
        let argv = [confined, &[crate::tailyard(), "proxy", "--pod-ips", &ip], forwards, store].concat();
        let flags = ["--tailscaled", &tailscaled, "--tailscale", &tailscale, "--firewall-mode", "nftables"];
        let (conf, serve) = (path("conf"), if self.serves { path("proxies/serve-config.json") } else { String::new() });
        let env = [
            (USERSPACE, "false"),
            ("TS_SOCKET", &socket),
            ("TS_STATE_DIR", "/run/ts"),
            ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", &conf),
            ("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
            ("TS_SERVE_CONFIG", &serve),
            ("TS_ENABLE_HEALTH_CHECK", "true"),
            ("TS_ENABLE_METRICS", "true"),
        ];
        let own = self.env.iter().map(|(name, value)| (*name, value.as_str()));
        let env: Vec<_> = env.into_iter().chain(own).collect();
        self.process = Some(self.machine.spawn("tailyard", &[&argv[..], &flags[..]].concat(), &env));
    }

    /// Replaces tailscaled's config.
    pub fn configure(&self, conf: &Value) {
        self.write("conf/cap-106.hujson", conf);
    }

    /// Replaces the L3 config.
    pub fn ingress(&self, config: &Value) {
        self.write("proxies/ingress-config.json", config);
    }

    /// Replaces the serve config.
    pub fn serve(&self, config: &Value) {
        self.write("proxies/serve-config.json", config);
    }

    fn write(&self, file: &str, value: &Value) {
        let path = self.machine.own_dir().join(file);
        let fresh = path.with_extension("new");
        fs::write(&fresh, value.to_string()).expect("written");
        fs::rename(&fresh, &path).expect("renamed");
    }

    /// The services that tailscaled advertises.
    pub fn advertised(&self) -> BTreeSet<String> {
        self.prefs().expect("a tailscaled that answers").advertise_services.into_iter().collect()
    }

    /// Whether tailscaled has `ShieldsUp` set.
    pub fn shields_up(&self) -> Option<bool> {
        self.prefs().map(|prefs| prefs.shields_up)
    }

    fn prefs(&self) -> Option<Prefs> {
        let api = LocalApi::new(self.machine.socket());
        // A thread of its own: the test may be asynchronous itself.
        let ask = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { api.prefs().await }).ok()
        };
        thread::spawn(ask).join().expect("no panic")
    }

    /// Sends a GET request; returns the whole response with its head.
    pub fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = self.machine.node.connect(SocketAddr::new(self.machine.address, HTTP), Duration::from_secs(2))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: replica\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Waits until it is ready.
    pub fn wait_ready(&self) {
        eventually(&format!("{} being ready", self.machine.node.name), DEADLINE, || {
            self.get("/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")).then_some(())
        });
    }

    /// Sends SIGTERM and waits; the exit status must be 0. Returns the time it took.
    pub fn shut_down(&mut self) -> Duration {
        self.process.take().expect("a running replica").shut_down()
    }

    /// Sends SIGTERM, then SIGKILL to replica and tailscaled as soon as a condition holds.
    pub fn killed_once(&mut self, what: &str, so: impl Fn(&Self) -> bool) {
        self.process.as_ref().expect("a running replica").signal(Signal::SIGTERM);
        eventually(what, DEADLINE, || so(self).then_some(()));
        let mut process = self.process.take().expect("a running replica");
        process.signal(Signal::SIGKILL);
        process.wait();
        if self.machine.pid_of("tailscaled").is_some() {
            self.machine.kill("tailscaled", Signal::SIGKILL);
        }
    }

    /// The value of a key of its state file.
    pub fn state(&self, key: &str) -> Option<String> {
        let state = fs::read(self.machine.own_dir().join("state.json")).ok()?;
        Some(serde_json::from_slice::<Value>(&state).ok()?.get(key)?.as_str()?.to_owned())
    }

    /// The log output.
    pub fn output(&self) -> String {
        let log = self.machine.own_dir().with_file_name(format!("{}-tailyard.log", self.machine.node.name));
        fs::read_to_string(Path::new(&log)).unwrap_or_default()
    }
}

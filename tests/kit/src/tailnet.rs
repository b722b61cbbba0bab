//! A real tailnet on one machine: headscale with its own DERP server, or the stand-in of Tailscale's hosted control plane, and machines
//! with real tailscaleds. Logs are preserved if a test fails.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tailyard::model::base::net::Family;

use crate::cluster::pki::{Leaf, Pki, dns_name, ip_name};
use crate::hosted::CLIENT;
use crate::logs::print_ends;
use crate::machine::{Boot, DEADLINE, Machine, Process};
use crate::made_once::made_once;
use crate::netns::Node;
use crate::servers::servers;
use crate::wait::{eventually, report_boot};

/// The last byte of the control server's address.
const CONTROL: u8 = 20;

/// The control server of a tailnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// A real headscale.
    Headscale,
    /// The stand-in of Tailscale's hosted control plane, `tests/servers/hosted`.
    Hosted,
}

/// The tailnet.
pub struct Tailnet {
    dir: Option<tempfile::TempDir>,
    bin: PathBuf,
    net: [u8; 3],
    switch: Node,
    next: AtomicU8,
    kind: Control,
    control: Option<(Machine, Process)>,
    key: String,
}

impl Tailnet {
    /// Starts headscale on a network `a.b.c.0/24` outside the tailnet.
    pub fn start(net: [u8; 3]) -> Self {
        Self::start_with(net, Control::Headscale)
    }

    /// Starts a control server on a network `a.b.c.0/24` outside the tailnet.
    pub fn start_with(net: [u8; 3], kind: Control) -> Self {
        let begin = Instant::now();
        let dir = tempfile::Builder::new().prefix("tailyard-tailnet-").tempdir().expect("a directory");
        let switch = Node::make("switch".to_owned());
        switch.ip("link add sw type bridge\nlink set sw up\n");
        let mut tailnet = Self {
            dir: Some(dir),
            bin: servers(&[kind.program(), "tailscaled", "tailscale"]),
            net,
            kind,
            switch,
            next: AtomicU8::new(30),
            control: None,
            key: String::new(),
        };
        certificates(tailnet.dir(), tailnet.address(CONTROL));
        let machine = tailnet.boot(Boot::plain("control", CONTROL));
        match kind {
            Control::Headscale => tailnet.start_headscale(machine),
            Control::Hosted => tailnet.start_hosted(machine),
        }
        report_boot("control server", begin);
        tailnet
    }

    fn start_headscale(&mut self, machine: Machine) {
        let config = self.dir().join("headscale.yaml");
        fs::write(&config, control_config(self.dir(), machine.address)).expect("written");
        let headscale = self.bin.join("headscale").display().to_string();
        let process = machine.spawn("headscale", &[&headscale, "serve", "-c", &config.display().to_string()], &[]);
        self.control = Some((machine, process));
        eventually("the control server", DEADLINE, || self.try_headscale(&["users", "create", "lab"]).status.success().then_some(()));
        self.key = self.new_key();
    }

    fn start_hosted(&mut self, machine: Machine) {
        let file = |name: &str| self.dir().join(name).display().to_string();
        let (program, address) = (self.bin.join("hosted").display().to_string(), machine.address.to_string());
        let argv = [&program, "-address", &address, "-domain", self.kind.domain(), "-cert", &file("hs.crt"), "-cert-key", &file("hs.key")];
        let process =
            machine.spawn("hosted", &[&argv[..], &["-client", CLIENT.0, "-secret", CLIENT.1, "-dns", "127.0.0.1:8055"]].concat(), &[]);
        self.control = Some((machine, process));
        eventually("the control server", DEADLINE, || self.try_api("GET", "/tailnet/-/devices", ""));
        "tskey-auth-any".clone_into(&mut self.key);
    }

    /// The response of the stand-in's API, if it succeeds.
    fn try_api(&self, method: &str, path: &str, body: &str) -> Option<serde_json::Value> {
        let (machine, _) = self.control.as_ref().expect("a control server");
        let curl = |args: &[&str]| {
            let mut command = machine.command(Path::new("curl"));
            command.args(["--silent", "--fail", "--max-time", "20", "--cacert"]).arg(self.dir().join("ca.crt"));
            let output = command.args(args).output().expect("nsenter");
            output.status.success().then_some(output.stdout)
        };
        let url = |path: &str| format!("https://hs.lab:8443/api/v2{path}");
        let login = format!("client_id={}&client_secret={}", CLIENT.0, CLIENT.1);
        let token: serde_json::Value = serde_json::from_slice(&curl(&["--data", &login, &url("/oauth/token")])?).expect("JSON");
        let bearer = format!("Authorization: Bearer {}", token["access_token"].as_str().expect("a token"));
        let content = if body.is_empty() { &[][..] } else { &["--data", body] };
        let answer = curl(&[&["--request", method, "--header", &bearer, &url(path)], content].concat())?;
        Some(if answer.is_empty() { serde_json::Value::Null } else { serde_json::from_slice(&answer).expect("JSON") })
    }

    /// Calls the stand-in's API; a failure panics.
    pub fn api(&self, method: &str, path: &str) -> serde_json::Value {
        self.try_api(method, path, "").unwrap_or_else(|| panic!("{method} {path} is refused"))
    }

    /// Sends a change to the stand-in's API; a failure panics.
    pub fn call(&self, method: &str, path: &str, body: &serde_json::Value) -> serde_json::Value {
        self.try_api(method, path, &body.to_string()).unwrap_or_else(|| panic!("{method} {path} is refused"))
    }

    /// Approves exactly these routes of a node in the stand-in's tailnet.
    pub fn approve_routes(&self, name: &str, routes: &[&str]) {
        let node = self.listed(name).unwrap_or_else(|| panic!("the control server knows no {name}"));
        self.call("POST", &format!("/device/{}/routes", node["nodeId"].as_str().expect("an ID")), &serde_json::json!({"routes": routes}));
    }

    /// Sets the certificate domains of every node in the stand-in's tailnet.
    pub fn set_cert_domains(&self, names: &[&str]) {
        let body = serde_json::to_string(names).expect("JSON");
        self.lab("cert-domains", &["--request", "PUT", "--data", &body]);
    }

    /// Sets the grants of app capabilities in the policy of the stand-in's tailnet, which has `recorderAddrs` in place of tags of recorders.
    pub fn set_grants(&self, grants: &serde_json::Value) {
        self.lab("grants", &["--request", "PUT", "--data", &grants.to_string()]);
    }

    /// Gives the node of this name, which may join later, to a user of its own in the stand-in's tailnet.
    pub fn set_login(&self, node: &str, login: &str) {
        self.lab(&format!("logins/{node}"), &["--request", "PUT", "--data", &serde_json::Value::from(login).to_string()]);
    }

    /// Number of auth keys that the stand-in has created.
    pub fn minted_keys(&self) -> usize {
        serde_json::from_str::<Vec<serde_json::Value>>(&self.lab("key-requests", &[])).expect("a list").len()
    }

    /// Requests a path under `/lab/` of the stand-in, with these arguments of curl; a failure panics.
    fn lab(&self, path: &str, args: &[&str]) -> String {
        let mut curl = self.control_machine().command(Path::new("curl"));
        curl.args(["--silent", "--fail", "--max-time", "20", "--cacert"]).arg(self.dir().join("ca.crt"));
        let output = curl.args(args).arg(format!("https://hs.lab:8443/lab/{path}")).output().expect("nsenter");
        assert!(output.status.success(), "the stand-in refuses /lab/{path}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The machine of the control server.
    pub fn control_machine(&self) -> &Machine {
        &self.control.as_ref().expect("a control server").0
    }

    /// Runs a network cable from the switch into the calling thread's network, at this last byte.
    pub fn plug_in(&self, host: u8) {
        let own = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        self.switch.ip(&format!("link add p{host} type veth peer name lab0 netns {own}\nlink set p{host} master sw up\n"));
        let address = format!("{}/24", self.address(host));
        for arguments in [&["address", "add", &address, "dev", "lab0"][..], &["link", "set", "lab0", "up"]] {
            assert!(Command::new("ip").args(arguments).status().expect("the ip command").success());
        }
    }

    /// The directory that machines share with the test: logs, certificates, sockets, configs.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("there until it is dropped").path()
    }

    /// The control server's base URL by address: its name resolves only in machines.
    pub fn control_url(&self) -> String {
        format!("https://{}:8443", self.address(CONTROL))
    }

    /// Whether the control server has a node of this name.
    pub fn knows(&self, name: &str) -> bool {
        self.listed(name).is_some()
    }

    /// The kind of control server.
    pub fn kind(&self) -> Control {
        self.kind
    }

    /// A key with which any number of nodes can join.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Another such key.
    pub fn new_key(&self) -> String {
        let output = self.headscale(&["preauthkeys", "create", "-u", "1", "--reusable", "-e", "1h"]);
        output.lines().last().expect("a key").trim().to_owned()
    }

    /// Runs a headscale command and returns its output; a failure panics.
    pub fn headscale(&self, args: &[&str]) -> String {
        let output = self.try_headscale(args);
        assert!(output.status.success(), "headscale {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Sets headscale's policy; before that everything is permitted.
    pub fn set_policy(&self, policy: &serde_json::Value) {
        let file = self.dir().join("policy.json");
        fs::write(&file, policy.to_string()).expect("written");
        self.headscale(&["policy", "set", "-f", &file.display().to_string()]);
    }

    fn try_headscale(&self, args: &[&str]) -> Output {
        let (machine, _) = self.control.as_ref().expect("a control server");
        let config = self.dir().join("headscale.yaml");
        machine.command(&self.bin.join("headscale")).arg("-c").arg(config).args(args).output().expect("nsenter")
    }

    /// The control server's id of a node.
    pub fn node_id(&self, name: &str) -> u64 {
        let node = self.listed(name).unwrap_or_else(|| panic!("the control server knows no {name}"));
        node["id"].as_u64().or_else(|| node["id"].as_str()?.parse().ok()).unwrap_or_else(|| panic!("no id in {node}"))
    }

    /// The addresses of a node, as the control server has them.
    pub fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        let node = self.listed(name).unwrap_or_else(|| panic!("the control server knows no {name}"));
        let addresses =
            node.get("ip_addresses").unwrap_or(&node["addresses"]).as_array().unwrap_or_else(|| panic!("no addresses in {node}"));
        addresses.iter().map(|address| address.as_str().and_then(|text| text.parse().ok()).expect("an address")).collect()
    }

    /// The name of a node, in full.
    pub fn name_of(&self, node: &str) -> String {
        format!("{node}.{}", self.kind.domain())
    }

    fn listed(&self, name: &str) -> Option<serde_json::Value> {
        let named = |node: &serde_json::Value| ["hostname", "given_name", "name"].iter().any(|field| node[field] == name);
        self.devices().into_iter().find(named)
    }

    /// Number of devices of the tailnet.
    pub fn device_count(&self) -> usize {
        self.devices().len()
    }

    /// Devices of the tailnet, as the control server lists them.
    pub fn devices(&self) -> Vec<serde_json::Value> {
        let list = if self.kind == Control::Hosted {
            self.api("GET", "/tailnet/-/devices")["devices"].take()
        } else {
            serde_json::from_str(&self.headscale(&["nodes", "list", "-o", "json"])).expect("JSON")
        };
        list.as_array().cloned().unwrap_or_default()
    }

    /// A machine that is not (yet) in the tailnet.
    pub fn machine(&self, name: &str) -> Machine {
        let host = self.next.fetch_add(1, Ordering::Relaxed);
        self.boot(Boot::plain(name, host))
    }

    /// A machine that is a node of the tailnet, with its tailscaled.
    pub fn node(&self, name: &str) -> (Machine, Process) {
        let machine = self.machine(name);
        let tailscaled = machine.tailscaled();
        self.join(&machine, &[]);
        (machine, tailscaled)
    }

    /// Makes a machine with a running tailscaled a node of the tailnet.
    pub fn join(&self, machine: &Machine, args: &[&str]) {
        let (key, name) = (format!("--auth-key={}", self.key), format!("--hostname={}", machine.node.name));
        let mut up = vec!["up", "--login-server=https://hs.lab:8443", &key, &name, "--accept-dns=false", "--timeout=90s"];
        up.extend(args);
        machine.tailscale(&up);
    }

    /// The address of the control server outside the tailnet, where it has the name `hs.lab`.
    pub fn control(&self) -> IpAddr {
        self.address(CONTROL)
    }

    /// The first process of the control server's machine, by its id outside.
    pub fn control_pid(&self) -> i32 {
        self.control.as_ref().expect("a control server").0.pid()
    }

    fn address(&self, host: u8) -> IpAddr {
        let [a, b, c] = self.net;
        Ipv4Addr::new(a, b, c, host).into()
    }

    /// Disconnects a machine from the switch. Its link stays up; packets are lost.
    pub fn cut(&self, machine: &Machine) {
        self.switch.ip(&format!("link set {} nomaster\n", port_of(machine)));
    }

    /// Connects it again.
    pub fn repair(&self, machine: &Machine) {
        self.switch.ip(&format!("link set {} master sw\n", port_of(machine)));
    }

    /// Drops all packets to a machine; packets from it still arrive.
    pub fn cut_inward(&self, machine: &Machine) {
        let rule = format!(
            "add table bridge cut\nadd chain bridge cut forward {{ type filter hook forward priority 0; }}\n\
            add rule bridge cut forward oifname {} drop\n",
            port_of(machine)
        );
        self.switch.feed(&["nft", "-f", "-"], &rule);
    }

    /// Delivers them again.
    pub fn mend_inward(&self) {
        self.switch.feed(&["nft", "-f", "-"], "delete table bridge cut\n");
    }

    /// Starts a machine and runs its cable.
    pub fn boot(&self, boot: Boot<'_>) -> Machine {
        let (host, address) = (boot.host, self.address(boot.host));
        let mut node = Node::make(boot.name.to_owned());
        let path = node.ns.path();
        self.switch.ip(&format!("link add p{host} type veth peer name eth0 netns {}\nlink set p{host} master sw up\n", path.display()));
        node.ip(&format!("addr add {address}/24 dev eth0\nlink set eth0 up\nroute add default dev eth0\n"));
        node.cluster.insert(Family::V4, address);
        Machine::start(boot, node, address, self.control(), self.dir(), &self.bin)
    }
}

impl Control {
    fn program(self) -> &'static str {
        match self {
            Self::Headscale => "headscale",
            Self::Hosted => "hosted",
        }
    }

    /// The domain of the tailnet's names. The Tailscale operator accepts only names of two labels under `ts.net`.
    fn domain(self) -> &'static str {
        match self {
            Self::Headscale => "tail.lab",
            Self::Hosted => crate::hosted::DOMAIN,
        }
    }
}

/// The switch's end of a machine's cable.
fn port_of(machine: &Machine) -> String {
    let IpAddr::V4(address) = machine.address else { unreachable!("machines are given IPv4 addresses") };
    format!("p{}", address.octets()[3])
}

impl Drop for Tailnet {
    fn drop(&mut self) {
        drop(self.control.take());
        if thread::panicking() {
            print_ends(self.dir(), ".log", |_| true);
            let kept_dir = self.dir.take().map(tempfile::TempDir::keep);
            eprintln!("logs of the tailnet are kept in {}", kept_dir.unwrap_or_default().display());
        }
    }
}

/// The config file of a node, and whether it uses the subnet routes of others.
pub fn conf_with(name: &str, key: &str, routes: bool) -> String {
    format!(
        r#"{{"Version":"alpha0","Locked":false,"ServerURL":"https://hs.lab:8443","Hostname":"{name}","acceptDNS":false,"acceptRoutes":{routes},"AuthKey":"{key}"}}"#
    )
}

/// The directory of the authority of all tailnets, `ca.key` and `ca.crt`: a new one each day, as images that trust it are made once.
pub fn authority() -> PathBuf {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() / 86400;
    made_once("authority", &day, |dir| Pki::new(dir.to_owned()).authority("ca"))
}

/// Copies of the authority's files, and a certificate of it for the control server.
fn certificates(dir: &Path, control: IpAddr) {
    let authority = authority();
    for file in ["ca.key", "ca.crt"] {
        fs::copy(authority.join(file), dir.join(file)).expect("copied");
    }
    let names = [dns_name("hs.lab"), ip_name(control)];
    Pki::new(dir.to_owned()).leaf(&Leaf { file: "hs", authority: "ca", subject: "/CN=hs.lab", names: &names });
}

/// headscale's config: names under `tail.lab`, its own DERP server, nothing public.
fn control_config(dir: &Path, address: IpAddr) -> String {
    let dir = dir.display();
    format!(
        "server_url: https://hs.lab:8443
listen_addr: 0.0.0.0:8443
metrics_listen_addr: 127.0.0.1:9090
grpc_listen_addr: 127.0.0.1:50443
grpc_allow_insecure: false
noise: {{private_key_path: /run/noise.key}}
prefixes: {{v4: 100.64.0.0/10, v6: 'fd7a:115c:a1e0::/48', allocation: sequential}}
derp:
  server: {{enabled: true, region_id: 999, region_code: lab, region_name: lab, verify_clients: true, stun_listen_addr: '0.0.0.0:3478',
    private_key_path: /run/derp.key, automatically_add_embedded_derp_region: true, ipv4: {address}, ipv6: none}}
  urls: []
  paths: []
  auto_update_enabled: false
disable_check_updates: true
node: {{ephemeral: {{inactivity_timeout: 30m}}}}
database: {{type: sqlite, sqlite: {{path: /run/hs.sqlite, write_ahead_log: true}}}}
tls_cert_path: {dir}/hs.crt
tls_key_path: {dir}/hs.key
log: {{level: info, format: text}}
policy: {{mode: database}}
dns: {{magic_dns: true, base_domain: tail.lab, override_local_dns: false, nameservers: {{global: [], split: {{}}}}, search_domains: [], extra_records: []}}
unix_socket: /run/headscale.sock
unix_socket_permission: '0770'
logtail: {{enabled: false}}
"
    )
}

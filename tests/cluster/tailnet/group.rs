//! Replicas of a group in machines, each with its supervised tailscaled, and a client load that follows their readiness.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tailyard::model::base::net::Family;

use kit::machine::DEADLINE;
use kit::machine::{Machine, Process, child};
use kit::netns::Node;
use kit::tailnet::{Tailnet, conf_with};
use kit::wait::eventually;

/// Port of the health endpoints.
const HTTP: u16 = 9002;
/// Timeout of a connection and its greeting.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Replica {
    pub(crate) machine: Machine,
    process: Option<Process>,
    manner: Manner,
}

/// Options of a replica.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// It accepts the subnet routes of other nodes.
    pub(crate) routes: bool,
    /// `NODE_IP`.
    pub(crate) node_ip: &'static str,
    /// It has only the capabilities of a Pod with `tunDeviceResource`.
    pub(crate) confined: bool,
}

/// Command prefix that drops the privileges that a Pod with `tunDeviceResource` does not have.
const CONFINED: [&str; 5] =
    ["/usr/bin/setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,+net_admin,+net_bind_service,+net_raw", "--"];

/// New connections without pause, each to a ready replica.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Outcome of one connection.
#[derive(Clone)]
pub(crate) struct Outcome {
    /// Start of the connection.
    pub(crate) at: Instant,
    /// Service address of the replica.
    pub(crate) to: SocketAddr,
    /// Name of the node that answered, or the error.
    pub(crate) answer: Result<String, io::ErrorKind>,
}

impl Replica {
    /// Starts a replica with this egress config and waits until it is ready.
    pub(crate) fn start(tailnet: &Tailnet, name: &str, egress: &serde_json::Value) -> Self {
        Self::start_with(tailnet, name, egress, Manner::default())
    }

    /// Like `start`, with options.
    pub(crate) fn start_with(tailnet: &Tailnet, name: &str, egress: &serde_json::Value, manner: Manner) -> Self {
        let machine = tailnet.machine(name);
        machine.node.sysctl("net.ipv4.ip_forward", "1");
        machine.node.sysctl("net.ipv6.conf.all.forwarding", "1");
        for (dir, file, text) in
            [("conf", "cap-106.hujson", conf_with(name, tailnet.key(), manner.routes)), ("egress", "egress-services", egress.to_string())]
        {
            let dir = machine.own_dir().join(dir);
            fs::create_dir_all(&dir).expect("made");
            fs::write(dir.join(file), text).expect("written");
        }
        let mut replica = Self { machine, process: None, manner };
        replica.run();
        replica.wait_ready();
        replica.machine.tailnet_addresses();
        replica
    }

    /// Starts the process, with the state of the previous one.
    pub(crate) fn run(&mut self) {
        let (dir, bin) = (self.machine.own_dir(), self.machine.bin().to_owned());
        let path = |name: &str| dir.join(name).display().to_string();
        let (conf, egress, state) = (path("conf"), path("egress"), path("state.json"));
        let (tailscaled, tailscale) = (bin.join("tailscaled").display().to_string(), bin.join("tailscale").display().to_string());
        let (ip, socket) = (self.machine.address.to_string(), self.machine.socket().display().to_string());
        let argv = [kit::tailyard(), "proxy", "--egress-config", &egress, "--state-file", &state, "--pod-ips", &ip];
        let flags = ["--tailscaled", &tailscaled, "--tailscale", &tailscale, "--drain-timeout", "3s", "--firewall-mode", "nftables"];
        let env = [
            ("TS_USERSPACE", "false"),
            ("NODE_IP", self.manner.node_ip),
            ("TS_SOCKET", &socket),
            ("TS_STATE_DIR", "/run/ts"),
            ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", &conf),
            ("TS_ENABLE_HEALTH_CHECK", "true"),
            ("TS_ENABLE_METRICS", "true"),
        ];
        let confined = if self.manner.confined { &CONFINED[..] } else { &[] };
        self.process = Some(self.machine.contain("tailyard", &[confined, &argv[..], &flags[..]].concat(), &env));
    }

    /// Id of the worker process, outside of its namespaces; `None` if there is none.
    pub(crate) fn worker(&self) -> Option<i32> {
        child(self.process.as_ref().expect("a running replica").id(), "tailyard")
    }

    pub(crate) fn log(&self) -> String {
        self.process.as_ref().expect("a running replica").output()
    }

    /// Address of one of its services.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.machine.address, port)
    }

    /// Source address that its targets see.
    pub(crate) fn source(&self) -> IpAddr {
        self.machine.node.tailnet[&Family::V4]
    }

    /// Requests a page over HTTP: the whole response, head and body.
    pub(crate) fn get(&self, path: &str) -> io::Result<String> {
        get(&self.machine.node, self.at(HTTP), path)
    }

    pub(crate) fn ready(&self) -> bool {
        self.get("/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// Waits until it is ready; returns the elapsed time.
    pub(crate) fn wait_ready(&self) -> Duration {
        let begin = Instant::now();
        eventually(&format!("{} being ready", self.machine.node.name), DEADLINE, || self.ready().then_some(()));
        begin.elapsed()
    }

    /// Waits until it is not ready any more; returns the elapsed time.
    pub(crate) fn wait_unready(&self) -> Duration {
        let begin = Instant::now();
        eventually(&format!("{} being unready", self.machine.node.name), DEADLINE, || (!self.ready()).then_some(()));
        begin.elapsed()
    }

    /// Sends SIGTERM; the exit status must be 0. Returns the elapsed time.
    pub(crate) fn shut_down(&mut self) -> Duration {
        self.process.take().expect("a running replica").shut_down()
    }
}

impl Load {
    /// Starts about 50 connections per second from a client to a port of the ready replicas.
    pub(crate) fn start(client: &Node, replicas: &[&Replica], port: u16) -> Self {
        let (stop, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<Outcome>>>::default());
        let mut threads = Vec::new();
        let mut endpoints = Vec::new();
        for replica in replicas {
            let ready = Arc::new(AtomicBool::new(true));
            endpoints.push((replica.at(port), ready.clone()));
            let (node, http, stop) = (client.clone(), replica.at(HTTP), stop.clone());
            threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    ready.store(get(&node, http, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(20));
                }
            }));
        }
        let (node, ended, results) = (client.clone(), stop.clone(), outcomes.clone());
        threads.push(thread::spawn(move || {
            for turn in (0..).take_while(|_| !ended.load(Ordering::Relaxed)) {
                let at = Instant::now();
                let ready: Vec<_> = endpoints.iter().filter(|(_, ready)| ready.load(Ordering::Relaxed)).collect();
                if let Some((to, _)) = ready.get(turn % ready.len().max(1)) {
                    let answer = node.ask_tcp(*to, PATIENCE).map(|greeting| greeting.name).map_err(|fault| fault.kind());
                    results.lock().expect("not poisoned").push(Outcome { at, to: *to, answer });
                }
                thread::sleep(Duration::from_millis(20).saturating_sub(at.elapsed())); // rate limit, not a wait for an event
            }
        }));
        Self { stop, outcomes, threads }
    }

    /// Number of connections begun since then, and those that none of these nodes answered.
    pub(crate) fn failed_since(&self, begin: Instant, by: &[&str]) -> (usize, Vec<Outcome>) {
        let outcomes = self.outcomes.lock().expect("not poisoned");
        let since: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.at >= begin).collect();
        let good = |outcome: &Outcome| outcome.answer.as_ref().is_ok_and(|name| by.contains(&name.as_str()));
        (since.len(), since.into_iter().filter(|outcome| !good(outcome)).cloned().collect())
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} ago by {}: {:?}", self.at.elapsed(), self.to, self.answer)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Requests a page over HTTP: the whole response, head and body.
pub(crate) fn get(from: &Node, to: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = from.connect(to, PATIENCE)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: replica\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

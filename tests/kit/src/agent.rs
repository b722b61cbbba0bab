//! The supervision task alone in a machine: the program `agent` of the kit and its handle for tests.
//!
//! The agent writes to files of `AGENT_DIR`: `state` (one line: phase, process id, restarts, login) and `netmap` (JSON). SIGTERM stops the
//! daemon and ends the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tailyard::model::tailnet::supervise::state_backup::StateBackup;
use tailyard::model::tailnet::supervise::{DaemonSettings, Login, Secret, StateStore, TwoStep};
use tailyard::proxy::tailnet::daemon::{DaemonInputs, daemon};
use tailyard::runtime::tasks;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::machine::DEADLINE;
use crate::machine::{Machine, Process};
use crate::tailnet::conf_with;
use crate::wait::eventually;

/// The agent as the test sees it.
pub struct Agent {
    dir: PathBuf,
    process: Process,
}

/// The last state that the agent wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentState {
    pub phase: String,
    pub pid: String,
    pub restarts: u64,
    pub login: String,
}

impl Agent {
    /// Starts it; with a key it logs in by two steps, without by the config in `conf`.
    pub fn start(machine: &Machine, conf: &str, two_step_key: Option<&str>) -> Self {
        let dir = machine.own_dir();
        fs::create_dir_all(dir.join("conf")).expect("made");
        fs::write(dir.join("conf/cap-106.hujson"), conf).expect("written");
        let exe = crate::program("agent").display().to_string();
        let ip = machine.address.to_string();
        let (bin, place) = (machine.bin().display().to_string(), dir.display().to_string());
        let env = [("AGENT_DIR", place.as_str()), ("AGENT_BIN", &bin), ("AGENT_IP", &ip), ("AGENT_KEY", two_step_key.unwrap_or_default())];
        let process = machine.spawn("agent", &[&exe], &env);
        Self { dir, process }
    }

    pub fn status(&self) -> AgentState {
        let text = fs::read_to_string(self.dir.join("state")).unwrap_or_default();
        let mut words = text.splitn(4, ' ').map(str::to_owned);
        let mut next = || words.next().unwrap_or_default();
        AgentState { phase: next(), pid: next(), restarts: next().parse().unwrap_or_default(), login: next().trim().to_owned() }
    }

    /// Waits for a state; returns it and the time it took.
    pub fn until(&self, what: &str, wanted: impl Fn(&AgentState) -> bool) -> (AgentState, Duration) {
        let begin = Instant::now();
        let agent_state = eventually(&format!("{what}; it says {:?}", self.status()), DEADLINE, || Some(self.status()).filter(&wanted));
        (agent_state, begin.elapsed())
    }

    /// Whether a state occurs within a time.
    pub fn soon(&self, within: Duration, wanted: impl Fn(&AgentState) -> bool) -> Option<()> {
        let end = Instant::now() + within;
        while Instant::now() < end {
            if wanted(&self.status()) {
                return Some(());
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        None
    }

    pub fn running(&self) -> AgentState {
        self.until("running", |agent_state| agent_state.phase == "Running").0
    }

    /// The netmap as JSON.
    pub fn netmap(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.dir.join("netmap")).unwrap_or_default()).unwrap_or_default()
    }

    /// Replaces the config file.
    pub fn configure(&self, conf: &str) {
        fs::write(self.dir.join("conf/new"), conf).expect("written");
        fs::rename(self.dir.join("conf/new"), self.dir.join("conf/cap-106.hujson")).expect("renamed");
    }

    /// Sends SIGTERM; the exit status must be 0.
    pub fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        assert!(self.process.wait().success(), "{}", self.process.output());
    }
}

/// The config of a node.
pub fn conf(name: &str, key: &str) -> String {
    conf_with(name, key, false)
}

/// Entry point of the program `agent`.
pub async fn run() {
    let var = |name: &str| std::env::var(name).expect("set by the test");
    let (dir, bin) = (PathBuf::from(var("AGENT_DIR")), PathBuf::from(var("AGENT_BIN")));
    tracing_subscriber::fmt().with_ansi(false).init();
    let (_keys, keys) = watch::channel(None);
    let (requests, _nobody) = mpsc::channel(4);
    let settings = settings(&dir, &bin, var("AGENT_IP").parse().expect("an address"), &var("AGENT_KEY"));
    let (stopper, stop) = tasks::stop();
    let (daemon, task) = daemon(
        settings,
        DaemonInputs {
            keys,
            deleted: None,
            writes: requests,
            backup: watch::channel(StateBackup::default()).1,
            reach: None,
            advertise: None,
            outlives: false,
            peers: true,
        },
        stop,
    );
    let task = tokio::spawn(task);
    let (mut state, mut netmap) = (daemon.state(), daemon.netmap());
    let mut term = signal(SignalKind::terminate()).expect("a handler");
    let out = dir.clone();
    let writer = tokio::spawn(async move {
        loop {
            let latest = state.borrow_and_update().clone();
            let line = format!("{} {} {} {}", latest.phase, latest.pid.unwrap_or_default(), latest.restarts, latest.login);
            replace(&out.join("state"), line.as_bytes());
            let map = serde_json::to_vec(&*netmap.borrow_and_update()).expect("JSON");
            replace(&out.join("netmap"), &map);
            tokio::select! {
                _ = state.changed() => {}
                _ = netmap.changed() => {}
            }
        }
    });
    term.recv().await;
    daemon.stop(Duration::from_secs(5)).await;
    stopper.stop();
    task.await.expect("no panic").expect("a good end");
    writer.abort();
}

fn settings(dir: &Path, bin: &Path, ip: IpAddr, key: &str) -> DaemonSettings {
    let extra_args = vec!["--login-server=https://hs.lab:8443".to_owned()];
    let two = TwoStep { auth_key: Some(Secret::new(key)), hostname: Some("two-steps".into()), extra_args, ..TwoStep::default() };
    DaemonSettings {
        tailscaled: bin.join("tailscaled"),
        tailscale: bin.join("tailscale"),
        socket: dir.with_extension("sock"),
        state: StateStore::Dir("/run/ts".into()),
        userspace: false,
        socks5: None,
        http_proxy: None,
        debug_addr: None,
        extra_args: vec!["--port=41641".into()],
        env: BTreeMap::from([("TS_DEBUG_FIREWALL_MODE".into(), "nftables".into())]),
        login: if key.is_empty() { Login::ConfigDir(dir.join("conf")) } else { Login::TwoStep(Box::new(two)) },
        boot_timeout: Duration::from_secs(30),
        udp_gro_forwarding: true,
        fill_config: false,
        cluster_ips: BTreeSet::from([ip]),
    }
}

fn replace(path: &Path, bytes: &[u8]) {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).expect("written");
    fs::rename(&fresh, path).expect("renamed");
}

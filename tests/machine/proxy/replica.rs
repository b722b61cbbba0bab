//! One running replica: the process, its files and its endpoints.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tailyard::model::base::net::Family;
use tempfile::TempDir;

use kit::netns::{Node, TAILNET};
use kit::wait::until;

/// Time limit for quick operations.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Port of the probes' endpoints.
pub(crate) const HEALTH_PORT: u16 = 9002;
/// Address of the operator's endpoints.
pub(crate) const ADMIN: &str = "127.0.0.1:9003";

/// A `tailyard proxy` in a node's namespace; killed when dropped.
pub(crate) struct Replica {
    pub(crate) node: Node,
    pub(crate) files: TempDir,
    child: Child,
}

/// Options of a start, beyond those of every replica.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    /// Additional arguments.
    pub(crate) args: Vec<String>,
    /// Additional environment variables.
    pub(crate) env: Vec<(String, String)>,
}

/// Response of the replica's own endpoints.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Replica {
    /// Starts a replica with a config and a netmap and waits until it is ready.
    pub(crate) fn start(node: &Node, config: &Value, netmap: &Value) -> Self {
        let mut replica = Self::launch(node, &config.to_string(), netmap, &Start::default());
        replica.wait_ready();
        replica
    }

    /// Starts a replica with any text as a config, without waiting.
    pub(crate) fn launch(node: &Node, config: &str, netmap: &Value, start: &Start) -> Self {
        let files = TempDir::new().expect("a directory");
        mount(&files.path().join("proxies"), config);
        std::fs::write(files.path().join("netmap.json"), netmap.to_string()).expect("a file");
        let child = spawn(node, files.path(), start);
        Self { node: node.clone(), files, child }
    }

    /// Starts the process again, with the same files and in the same namespace, as a kubelet restarts a container.
    pub(crate) fn restart(&mut self) {
        self.restart_with(&Start::default());
    }

    /// Like `restart`, with other options.
    pub(crate) fn restart_with(&mut self, start: &Start) {
        self.child = spawn(&self.node, self.files.path(), start);
    }

    /// Replaces the config as the kubelet does: with a swap of `..data`.
    pub(crate) fn configure(&self, config: &Value) {
        self.configure_text(&config.to_string());
    }

    /// Replaces the config with any text.
    pub(crate) fn configure_text(&self, config: &str) {
        mount(&self.files.path().join("proxies"), config);
    }

    /// Replaces the netmap.
    pub(crate) fn tailnet(&self, netmap: &Value) {
        let (new, path) = (self.files.path().join("netmap.new"), self.files.path().join("netmap.json"));
        std::fs::write(&new, netmap.to_string()).expect("a file");
        std::fs::rename(new, path).expect("a rename");
    }

    /// State that it would write into its state Secret.
    pub(crate) fn state(&self) -> Value {
        let text = std::fs::read_to_string(self.files.path().join("state.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Status of its egress services.
    pub(crate) fn status(&self) -> Value {
        self.state()["egress-services"].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
    }

    /// Its address in the cluster.
    pub(crate) fn pod(&self, family: Family) -> IpAddr {
        self.node.cluster[&family]
    }

    /// Requests a page at the Pod's address, from inside its namespace.
    pub(crate) fn get(&self, path: &str) -> io::Result<Answer> {
        fetch(&self.node, SocketAddr::new(self.pod(Family::V4), HEALTH_PORT), path)
    }

    /// Requests a page at the admin address.
    pub(crate) fn admin(&self, path: &str) -> io::Result<Answer> {
        fetch(&self.node, ADMIN.parse().expect("an address"), path)
    }

    /// Value of a metric: the first line with this prefix.
    pub(crate) fn metric(&self, line: &str) -> Option<f64> {
        let page = self.get("/metrics").ok()?.body;
        page.lines().find(|text| text.starts_with(line)).and_then(|text| text.rsplit(' ').next()?.parse().ok())
    }

    /// Waits until it reports ready.
    pub(crate) fn wait_ready(&mut self) {
        let mut last = None;
        until("ready", PATIENCE, || {
            assert!(self.exited().is_none(), "the replica ended: {:?}\n{}", self.exited(), self.log());
            last = self.get("/readyz").ok();
            last.as_ref().is_some_and(|answer| answer.status == 200)
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("the process is there");
    }

    /// Exit status, if it has exited.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    /// Waits until it has exited.
    pub(crate) fn wait_exit(&mut self, patience: Duration) -> ExitStatus {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(Instant::now() < deadline, "the replica does not end\n{}", self.log());
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.node.name, self.log());
        }
    }
}

/// Sends a GET request from a node, on its own connection.
pub(crate) fn fetch(from: &Node, to: SocketAddr, path: &str) -> io::Result<Answer> {
    let mut stream: TcpStream = from.connect(to, Duration::from_secs(10))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: replica\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other(text.clone()))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| io::Error::other(head.to_owned()))?;
    Ok(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

fn spawn(node: &Node, files: &Path, start: &Start) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(files.join("log")).expect("a file");
    let mut command = Command::new(kit::tailyard());
    let pod_ips: Vec<_> = node.cluster.values().map(ToString::to_string).collect();
    command
        .arg("proxy")
        .args(["--tailnet", &format!("static:{}", files.join("netmap.json").display()), "--tailnet-interface", TAILNET])
        .args(["--egress-config", &files.join("proxies").display().to_string()])
        .args(["--state-file", &files.join("state.json").display().to_string()])
        .args(["--admin-addr", ADMIN])
        .args(&start.args)
        .env("TS_ENABLE_HEALTH_CHECK", "true")
        .env("TS_ENABLE_METRICS", "true")
        .env("TS_USERSPACE", "false")
        .env("POD_IPS", pod_ips.join(","))
        .env("POD_IP", &pod_ips[0])
        .envs(start.env.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file"))
        .stderr(log);
    node.ns.run(|| command.spawn()).expect("the namespace").expect("the compiled binary")
}

/// Writes a config as the kubelet projects it: a new directory, then a swap of the `..data` link.
fn mount(dir: &Path, config: &str) {
    let stamp = format!("..{}", std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos());
    std::fs::create_dir_all(dir.join(&stamp)).expect("a directory");
    std::fs::write(dir.join(&stamp).join("egress-services"), config).expect("a file");
    let data: PathBuf = dir.join("..data");
    let old = std::fs::read_link(&data).ok();
    symlink(&stamp, dir.join("..data_tmp")).expect("a link");
    std::fs::rename(dir.join("..data_tmp"), &data).expect("a rename");
    if old.is_none() {
        symlink("..data/egress-services", dir.join("egress-services")).expect("a link");
    }
    if let Some(old) = old {
        std::fs::remove_dir_all(dir.join(old)).expect("the old directory");
    }
}

/// An egress service with one port for each protocol.
pub(crate) fn service(target: &Value, port: u16, to: u16) -> Value {
    json!({"tailnetTarget": target, "ports": [
        {"protocol": "TCP", "matchPort": port, "targetPort": to},
        {"protocol": "UDP", "matchPort": port, "targetPort": to}]})
}

/// Netmap of a lab: this node's addresses, and its targets by their node names under `tail.lab`.
pub(crate) fn netmap(own: &Node, targets: &[Node]) -> Value {
    let addresses = |node: &Node| node.tailnet.values().map(ToString::to_string).collect::<Vec<_>>();
    let peers: Vec<_> =
        targets.iter().map(|node| json!({"name": format!("{}.tail.lab.", node.name), "addresses": addresses(node)})).collect();
    json!({"self": {"name": format!("{}.tail.lab.", own.name), "addresses": addresses(own)}, "peers": peers})
}

//! tailscaleds of the replicas: the scripted one of the supervision tests, with the demo's tailnet.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};
use tailyard::demo::TARGETS;
use tailyard::demo::services::target_name;
use tailyard::demo::topology::{FIRST_REPLICA, FIRST_TARGET, tailnet_nets};

use kit::scripted_tailscaled::append;

/// Number in the tailnet of the first peer that no service targets.
const FIRST_OTHER: u8 = 150;
/// Maximum number of these peers.
pub(crate) const OTHERS: u8 = 100;

/// Peers of a replica in the tailnet.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Number of peers that no service targets.
    pub(crate) others: u8,
    /// For each target name, the number of its target.
    pub(crate) names: Vec<u16>,
}

impl Default for Peers {
    fn default() -> Self {
        Self { others: 0, names: (0..TARGETS).map(u16::from).collect() }
    }
}

impl Peers {
    /// Targets: number in the tailnet, and name.
    fn targets(&self) -> impl Iterator<Item = (u8, String)> {
        let number = |target: u16| FIRST_TARGET + u8::try_from(target).expect("few targets");
        (0..).zip(&self.names).map(move |(name, target)| (number(*target), target_name(name)))
    }
}

/// Writes the program that replicas start as their tailscaled: the scripted one, with the files beside its socket as its script.
pub(crate) fn program(directory: &Path) -> PathBuf {
    // Its errors go into a file: it exits with its replica, and a write to a pipe without a reader would prevent that.
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = version ] && exec echo '{{\"cap\":142}}'\nfor arg; do case $arg in --socket=*) dir=${{arg#--socket=}} ;; esac; done\n\
         FAKE_DIR=${{dir%/*}} FAKE_ARGS=\"$*\" exec {} 2>>${{dir%/*}}/errors\n",
        kit::program("scripted-tailscaled").display()
    );
    executable(directory.join("tailscaled"), &script)
}

/// Writes an executable script.
pub(crate) fn executable(path: PathBuf, script: &str) -> PathBuf {
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

/// Creates a replica's files: its config, and a tailnet of itself and the targets.
pub(crate) fn prepare(directory: &Path, replica: u8) {
    fs::create_dir_all(directory.join("conf")).expect("a directory");
    fs::write(directory.join("conf/cap-106.hujson"), r#"{"Version":"alpha0","AuthKey":"key"}"#).expect("written");
    describe(directory, replica, &Peers::default());
}

/// Writes the bus' initial message: the tailnet for new watchers.
pub(crate) fn describe(directory: &Path, replica: u8, peers: &Peers) {
    let node = |number: u8, name: String| {
        let addresses = tailnet_nets(number).map(|net| net.addr());
        json!({"ID": format!("n{number}"), "NodeID": number, "DNSName": format!("{name}."), "TailscaleIPs": addresses})
    };
    let targets = peers.targets().map(|(number, name)| node(number, name));
    let others = (0..peers.others).map(|number| node(FIRST_OTHER + number, format!("other-{number}.demo.ts.net")));
    let peers: Map<String, Value> = targets.chain(others).map(|peer| (format!("key-{}", peer["NodeID"]), peer)).collect();
    let own = node(FIRST_REPLICA + replica, format!("replica-{replica}.demo.ts.net"));
    let status = json!({"BackendState": "Running", "Self": own, "Peer": peers});
    let message = json!({"Version": "1.102", "State": 6, "InitialStatus": status});
    let new = directory.join("initial.new");
    fs::write(&new, message.to_string()).expect("written");
    fs::rename(new, directory.join("initial")).expect("put into place");
}

/// Sends the targets' names to all watchers, as after the control server has renamed peers.
pub(crate) fn write_names(directory: &Path, peers: &Peers) {
    let node = |(number, name): (u8, String)| {
        let addresses = tailnet_nets(number).map(|net| IpNet::from(net.addr()));
        json!({"ID": number, "StableID": format!("n{number}"), "Name": format!("{name}."), "Addresses": addresses})
    };
    let targets: Vec<Value> = peers.targets().map(node).collect();
    write_line(directory, &json!({"PeersChanged": targets}).to_string());
}

/// Sets whether a replica's starting tailscaled can read its state from the Secret.
pub(crate) fn lead_to_secret(directory: &Path, is_there: bool) {
    fs::write(directory.join("mode"), if is_there { "" } else { "away" }).expect("written");
}

/// Sends a line to all watchers, or executes a command of the script.
pub(crate) fn write_line(directory: &Path, line: &str) {
    append(&directory.join("bus"), line);
}

/// Suspends the tailscaled of a replica for a while; other child processes, such as the firewall's program, continue.
pub(crate) async fn hang(replica: u32, lasts: Duration) {
    let tasks = fs::read_dir(format!("/proc/{replica}/task")).into_iter().flatten().flatten();
    let children: Vec<String> = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    let children = children.iter().flat_map(|list| list.split_whitespace()).filter(|child| {
        let command = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        command.contains("scripted-tailscaled")
    });
    let children: Vec<Pid> = children.filter_map(|child| child.parse().ok()).map(Pid::from_raw).collect();
    let signal = |signal: Signal| {
        for child in &children {
            // The process may have exited.
            let _ = kill(*child, signal);
        }
    };
    signal(Signal::SIGSTOP);
    tokio::time::sleep(lasts).await;
    signal(Signal::SIGCONT);
}

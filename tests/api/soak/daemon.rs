//! The tailscaleds of the replicas: the scripted one of the tests of supervision, with the demo's tailnet.

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

/// The number of the first peer whom no service concerns, in the tailnet.
const FIRST_OTHER: u8 = 150;
/// More of them there cannot be.
pub(crate) const OTHERS: u8 = 100;

/// Who is in the tailnet beside the replica itself.
#[derive(Debug)]
pub(crate) struct Peers {
    /// How many peers there are whom no service concerns.
    pub(crate) others: u8,
    /// The number of the target that each target's name leads to.
    pub(crate) names: Vec<u16>,
}

impl Default for Peers {
    fn default() -> Self {
        Self { others: 0, names: (0..TARGETS).map(u16::from).collect() }
    }
}

impl Peers {
    /// The targets: number in the tailnet, name there.
    fn targets(&self) -> impl Iterator<Item = (u8, String)> {
        let number = |target: u16| FIRST_TARGET + u8::try_from(target).expect("few targets");
        (0..).zip(&self.names).map(move |(name, target)| (number(*target), target_name(name)))
    }
}

/// Writes the program that replicas start as their tailscaled: the scripted one, with the files beside its socket as its script.
pub(crate) fn program(directory: &Path) -> PathBuf {
    // Its errors go into a file: it ends with its replica, and could not say so to a pipe that nobody reads any more, nor end.
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = version ] && exec echo '{{\"cap\":142}}'\nfor arg; do case $arg in --socket=*) dir=${{arg#--socket=}} ;; esac; done\n\
         FAKE_DIR=${{dir%/*}} FAKE_ARGS=\"$*\" exec {} 2>>${{dir%/*}}/errors\n",
        kit::program("scripted-tailscaled").display()
    );
    executable(directory.join("tailscaled"), &script)
}

/// Writes a script that can be started.
pub(crate) fn executable(path: PathBuf, script: &str) -> PathBuf {
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

/// Makes the files of a replica: its config, and a tailnet of itself and the targets.
pub(crate) fn prepare(directory: &Path, replica: u8) {
    fs::create_dir_all(directory.join("conf")).expect("a directory");
    fs::write(directory.join("conf/cap-106.hujson"), r#"{"Version":"alpha0","AuthKey":"key"}"#).expect("written");
    describe(directory, replica, &Peers::default());
}

/// Says what the tailnet is, for those who ask from now on.
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

/// Tells all who listen what the targets are called, as the control server tells of peers that were renamed.
pub(crate) fn tell_names(directory: &Path, peers: &Peers) {
    let node = |(number, name): (u8, String)| {
        let addresses = tailnet_nets(number).map(|net| IpNet::from(net.addr()));
        json!({"ID": number, "StableID": format!("n{number}"), "Name": format!("{name}."), "Addresses": addresses})
    };
    let targets: Vec<Value> = peers.targets().map(node).collect();
    tell(directory, &json!({"PeersChanged": targets}).to_string());
}

/// Whether the tailscaled of a replica can have what it keeps in the state Secret, when it starts.
pub(crate) fn lead_to_secret(directory: &Path, is_there: bool) {
    fs::write(directory.join("mode"), if is_there { "" } else { "away" }).expect("written");
}

/// Has a line told to all who listen, or an order of the script done.
pub(crate) fn tell(directory: &Path, line: &str) {
    append(&directory.join("bus"), line);
}

/// Has the tailscaled of a replica's process do nothing for a while; nobody else, such as the firewall's program.
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
            // It may have ended meanwhile.
            let _ = kill(*child, signal);
        }
    };
    signal(Signal::SIGSTOP);
    tokio::time::sleep(lasts).await;
    signal(Signal::SIGCONT);
}

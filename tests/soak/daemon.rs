//! The tailscaleds of the replicas: the scripted one of the tests of supervision, with the demo's tailnet.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};
use tailyard::demo::TARGETS;
use tailyard::demo::services::target_name;
use tailyard::demo::topology::{FIRST_REPLICA, FIRST_TARGET, tailnet_nets};

use crate::fake::append;

/// The number of the first peer whom no service concerns, in the tailnet.
const FIRST_OTHER: u8 = 150;
/// More of them there cannot be.
pub(crate) const OTHERS: u8 = 100;

/// Writes the program that replicas start as their tailscaled: this binary, with the files beside its socket as its script.
pub(crate) fn program(directory: &Path) -> PathBuf {
    let this = std::env::current_exe().expect("this program");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = version ] && exec echo '{{\"cap\":142}}'\nfor arg; do case $arg in --socket=*) dir=${{arg#--socket=}} ;; esac; done\n\
         FAKE_DIR=${{dir%/*}} FAKE_ARGS=\"$*\" exec {} --ignored --exact --nocapture scripted_tailscaled\n",
        this.display()
    );
    let path = directory.join("tailscaled");
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

/// Makes the files of a replica: its config, and a tailnet of itself and the targets.
pub(crate) fn prepare(directory: &Path, replica: u8) {
    fs::create_dir_all(directory.join("conf")).expect("a directory");
    fs::write(directory.join("conf/cap-106.hujson"), r#"{"Version":"alpha0","AuthKey":"key"}"#).expect("written");
    describe(directory, replica, 0);
}

/// Says what the tailnet is, for those who ask from now on: with so many peers whom no service concerns.
pub(crate) fn describe(directory: &Path, replica: u8, others: u8) {
    let node = |number: u8, name: String| {
        let addresses = tailnet_nets(number).map(|net| net.addr());
        json!({"ID": format!("n{number}"), "NodeID": number, "DNSName": format!("{name}."), "TailscaleIPs": addresses})
    };
    let targets = (0..TARGETS).map(|number| node(FIRST_TARGET + number, target_name(number.into())));
    let others = (0..others).map(|number| node(FIRST_OTHER + number, format!("other-{number}.demo.ts.net")));
    let peers: Map<String, Value> = targets.chain(others).map(|peer| (format!("key-{}", peer["NodeID"]), peer)).collect();
    let own = node(FIRST_REPLICA + replica, format!("replica-{replica}.demo.ts.net"));
    let status = json!({"BackendState": "Running", "Self": own, "Peer": peers});
    let message = json!({"Version": "1.102", "State": 6, "InitialStatus": status});
    let new = directory.join("initial.new");
    fs::write(&new, message.to_string()).expect("written");
    fs::rename(new, directory.join("initial")).expect("put into place");
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
        command.contains("scripted_tailscaled")
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

//! The images of a cluster, built from programs of this machine by `config/image/build`, each once: nothing is pulled from
//! anywhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::text;
use crate::made_once::{made_once, stamp};
use crate::tailnet::authority;

/// Image of test Pods: a shell with its tools, a server for clients, and the pause container of the Pods.
pub const TOOLS: &str = "localhost/tools:1";
/// The cluster's DNS server.
pub const COREDNS: &str = "localhost/coredns:1";
/// The image under test.
pub const TAILYARD: &str = "localhost/tailyard:lab";

/// The Tailscale operator's proxy; its path ends as that of the published one does.
pub const STOCK: &str = "localhost/tailscale:1";
/// The Tailscale operator's proxy of type kube-apiserver.
pub const K8S_PROXY: &str = "localhost/k8s-proxy:1";
/// The Tailscale operator.
pub const OPERATOR: &str = "localhost/k8s-operator:1";

/// Busybox applets of the shell image.
const APPLETS: [&str; 27] = [
    "sh", "cat", "date", "echo", "env", "false", "grep", "head", "hostname", "httpd", "id", "ip", "ls", "mkdir", "nc", "nslookup", "ping",
    "ps", "rm", "sed", "sleep", "sysctl", "tar", "timeout", "true", "wc", "wget",
];

/// Images that every node has.
pub fn common(servers: &Path) -> [PathBuf; 2] {
    let mut tools = plain(TOOLS);
    tools.args(["--program", "/usr/bin/busybox", "--program", "/usr/bin/curl"]);
    tools.args(["--program", &format!("{}=/usr/bin/greeter", text(&crate::program("greeter")))]);
    for applet in APPLETS {
        tools.args(["--link", &format!("/usr/bin/{applet}=busybox")]);
    }
    tools.args(["--cmd", "/usr/bin/busybox", "--cmd", "sleep", "--cmd", "2147483647"]);
    let mut coredns = plain(COREDNS);
    coredns.args(["--program", &format!("{}=/coredns", text(&servers.join("coredns"))), "--cmd", "/coredns"]);
    [archive("tools", tools), archive("coredns", coredns)]
}

/// The image of a stripped tailyard binary that trusts the CA of the tailnet's control server, under this name.
pub fn tailyard(servers: &Path, name: &str, binary: &Path) -> PathBuf {
    let stripped = made_once("stripped", &(binary, stamp(binary)), |dir| {
        let status =
            Command::new("strip").arg("-o").arg(dir.join("tailyard")).arg(binary).status().expect("strip, which is beside the linker");
        assert!(status.success(), "strip {}", binary.display());
    });
    let mut command = program();
    command.args(["tailyard", "--plain-layers", "--name", name, "--servers", &text(servers)]);
    command.args(["--binary", &text(&stripped.join("tailyard"))]);
    archive("tailyard", trusting(command))
}

/// The image of the Tailscale operator's proxy from its programs, with the same CA.
pub fn stock(servers: &Path) -> PathBuf {
    let mut command = plain(STOCK);
    for name in ["containerboot", "tailscaled", "tailscale"] {
        command.args(["--program", &format!("{}=/usr/local/bin/{name}", text(&servers.join(name)))]);
    }
    command.args(["--program", "/usr/bin/busybox", "--link", "/usr/bin/sh=busybox", "--link", "/usr/bin/sysctl=busybox", "--firewall"]);
    command.args(["--cmd", "/usr/local/bin/containerboot"]);
    archive("stock", trusting(command))
}

/// The image of the Tailscale operator, with the same CA.
pub fn operator(servers: &Path) -> PathBuf {
    only(OPERATOR, &format!("{}=/usr/local/bin/operator", text(&servers.join("k8s-operator"))))
}

/// The image of its proxy of type kube-apiserver, with the same CA.
pub fn k8s_proxy(servers: &Path) -> PathBuf {
    only(K8S_PROXY, &format!("{}=/usr/local/bin/k8s-proxy", text(&servers.join("k8s-proxy"))))
}

/// The image of one program, which it runs, with that CA.
fn only(name: &str, program: &str) -> PathBuf {
    let path = program.rsplit_once('=').expect("a path").1;
    let mut command = plain(name);
    command.args(["--program", program, "--cmd", path]);
    archive(name.rsplit('/').next().expect("a name"), trusting(command))
}

fn program() -> Command {
    Command::new(crate::root().join("config/image/build"))
}

fn plain(name: &str) -> Command {
    let mut command = program();
    command.args(["plain", "--plain-layers", "--name", name]);
    command
}

fn trusting(mut command: Command) -> Command {
    command.args(["--authority", &text(&authority().join("ca.crt"))]);
    command
}

/// Runs the command, unless it ran with the same files; returns the image's archive.
fn archive(name: &str, mut command: Command) -> PathBuf {
    let args: Vec<String> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let sources = fs::read_dir(crate::root().join("config/image")).expect("a directory").map(|entry| entry.expect("an entry").path());
    let named = args.iter().map(|arg| PathBuf::from(arg.split('=').next().unwrap_or(arg)));
    // The image has libraries of this machine's packages.
    let files: BTreeMap<PathBuf, _> =
        named.chain(sources).chain(["/var/lib/dpkg/status".into()]).map(|path| (path.clone(), stamp(&path))).collect();
    let dir = made_once(name, &(&args, files), |dir| {
        let output = command.arg("--out").arg(dir.join("image.tar")).output().expect("config/image/build, and python3");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    });
    dir.join("image.tar")
}

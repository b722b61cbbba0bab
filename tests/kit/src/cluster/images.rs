//! The images of a cluster, built from programs of this machine by `config/image/build`: nothing is pulled from anywhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::text;

/// Image of test Pods: a shell with its tools, a server for clients, and the pause container of the Pods.
pub const TOOLS: &str = "localhost/tools:1";
/// The cluster's DNS server.
pub const COREDNS: &str = "localhost/coredns:1";
/// The image under test.
pub const TAILYARD: &str = "localhost/tailyard:lab";

/// The Tailscale operator's proxy; its path ends as that of the published one does.
pub const STOCK: &str = "localhost/tailscale:1";
/// The Tailscale operator.
pub const OPERATOR: &str = "localhost/k8s-operator:1";

/// Busybox applets of the shell image.
const APPLETS: [&str; 26] = [
    "sh", "cat", "date", "echo", "env", "false", "grep", "head", "hostname", "httpd", "id", "ip", "ls", "mkdir", "nc", "nslookup", "ping",
    "ps", "rm", "sed", "sleep", "sysctl", "timeout", "true", "wc", "wget",
];

/// Builds the images that every node has; returns their files.
pub fn common(dir: &Path, servers: &Path) -> Vec<PathBuf> {
    let (tools, coredns) = (dir.join("tools.tar"), dir.join("coredns.tar"));
    let mut command = plain(TOOLS, &tools);
    command.args(["--program", "/usr/bin/busybox", "--program", "/usr/bin/curl"]);
    command.args(["--program", &format!("{}=/usr/bin/greeter", text(&crate::program("greeter")))]);
    for applet in APPLETS {
        command.args(["--link", &format!("/usr/bin/{applet}=busybox")]);
    }
    build(command.args(["--cmd", "/usr/bin/busybox", "--cmd", "sleep", "--cmd", "2147483647"]));
    let mut command = plain(COREDNS, &coredns);
    build(command.args(["--program", &format!("{}=/coredns", text(&servers.join("coredns"))), "--cmd", "/coredns"]));
    vec![tools, coredns]
}

/// Builds the image of a stripped tailyard binary that trusts the CA of the tailnet's control server; returns its archive.
pub fn tailyard(dir: &Path, servers: &Path, binary: &Path) -> PathBuf {
    let (stripped, out) = (dir.join("tailyard"), dir.join("tailyard.tar"));
    let status = Command::new("strip").arg("-o").arg(&stripped).arg(binary).status().expect("strip, which is beside the linker");
    assert!(status.success(), "strip {}", binary.display());
    let mut command = program();
    command.args(["tailyard", "--plain-layers", "--name", TAILYARD, "--servers", &text(servers), "--binary", &text(&stripped)]);
    command.args(["--authority", &text(&dir.join("ca.crt"))]);
    build(command.args(["--out", &text(&out)]));
    out
}

/// Builds the image of the Tailscale operator's proxy from its programs, with the same CA; returns its archive.
pub fn stock(dir: &Path, servers: &Path) -> PathBuf {
    let out = dir.join("stock.tar");
    let mut command = plain(STOCK, &out);
    for name in ["containerboot", "tailscaled", "tailscale"] {
        command.args(["--program", &format!("{}=/usr/local/bin/{name}", text(&servers.join(name)))]);
    }
    command.args(["--program", "/usr/bin/busybox", "--link", "/usr/bin/sh=busybox", "--link", "/usr/bin/sysctl=busybox", "--firewall"]);
    command.args(["--authority", &text(&dir.join("ca.crt"))]);
    build(command.args(["--cmd", "/usr/local/bin/containerboot"]));
    out
}

/// Builds the image of the Tailscale operator, with the same CA; returns its archive.
pub fn operator(dir: &Path, servers: &Path) -> PathBuf {
    let out = dir.join("operator.tar");
    let mut command = plain(OPERATOR, &out);
    command.args(["--program", &format!("{}=/usr/local/bin/operator", text(&servers.join("k8s-operator")))]);
    command.args(["--authority", &text(&dir.join("ca.crt"))]);
    build(command.args(["--cmd", "/usr/local/bin/operator"]));
    out
}

fn program() -> Command {
    Command::new(crate::root().join("config/image/build"))
}

fn plain(name: &str, out: &Path) -> Command {
    let mut command = program();
    command.args(["plain", "--plain-layers", "--name", name, "--out", &text(out)]);
    command
}

fn build(command: &mut Command) {
    let output = command.output().expect("config/image/build, and python3");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

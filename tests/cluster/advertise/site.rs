//! HTTP server in the cluster, and clients of its site.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::advertise::listener::Listener;
use kit::machine::Machine;
use kit::netns::Node;
use kit::tailnet::Tailnet;

/// Starts a server on a port of the node. It answers every request with its name and the received request.
pub(crate) fn backend(node: &Node, port: u16) -> Listener {
    let name = node.name.clone();
    Listener::start(node, Ipv6Addr::UNSPECIFIED.into(), port, move |stream| {
        let name = name.clone();
        thread::spawn(move || drop(answer(stream, &name)));
    })
}

fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    loop {
        let head: Vec<String> = lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let Some(first) = head.first() else { return Ok(()) };
        let from = head.iter().find(|line| line.to_ascii_lowercase().starts_with("x-forwarded-for:"));
        let body = format!("{name} {first} {}", from.map(String::as_str).unwrap_or_default());
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    }
}

/// Requests a URL with curl, resolved to an address. The error has curl's message and the response.
pub(crate) fn curl(from: &Machine, url: &str, at: IpAddr, ca: &Path) -> Result<String, String> {
    let host = url.split('/').nth(2).expect("a host");
    let (resolve, port) = if url.starts_with("https") { (format!("{host}:443:{at}"), "443") } else { (format!("{host}:80:{at}"), "80") };
    let mut command = from.command(Path::new("curl"));
    command.args(["--silent", "--show-error", "--fail-with-body", "--max-time", "10", "--resolve", &resolve, "--cacert"]).arg(ca).arg(url);
    let output = command.output().expect("nsenter");
    let body = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(body) } else { Err(format!("port {port}: {} {body}", String::from_utf8_lossy(&output.stderr))) }
}

/// Writes Pebble's root certificate to a file.
pub(crate) fn root(tailnet: &Tailnet) -> std::path::PathBuf {
    let path = tailnet.dir().join("pebble-root.crt");
    let mut command = tailnet.control_machine().command(Path::new("curl"));
    command.args(["--silent", "--fail", "--cacert"]).arg(tailnet.dir().join("ca.crt")).arg("--output").arg(&path);
    assert!(command.arg("https://hs.lab:15000/roots/0").status().expect("nsenter").success(), "Pebble's root");
    path
}

//! A client of the internet: its connection arrives at a device as Tailscale's ingress servers hand it over.
//!
//! They are peers with the capability `https://tailscale.com/cap/ingress`. They send `POST /v0/ingress` to the device's peer API with the
//! client's address and the name that it connects to; after status 101 the connection carries the client's bytes (`handleServeIngress` in
//! `ipn/ipnlocal/serve.go` of tailscaled 1.102.5). The stand-in of the control plane gives the capability to every node.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::machine::Machine;

/// Address of the client, as the ingress server reports it.
const CLIENT: &str = "203.0.113.7:40000";
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer of a device to an HTTPS request for its name.
pub(super) fn get(machine: &Machine, name: &str, roots: &Path) -> Result<String, String> {
    let status: Value = serde_json::from_str(&machine.tailscale(&["status", "--json"])).expect("JSON");
    let is_device = |peer: &&Value| peer["DNSName"] == format!("{name}.");
    let device = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values()).find(is_device);
    let url = device.and_then(|device| device["PeerAPIURL"][0].as_str()).ok_or("no such peer")?;
    let api: SocketAddr = url.trim_start_matches("http://").parse().expect("an address");
    exchange(machine, api, name, roots).map_err(|error| error.to_string())?
}

fn exchange(machine: &Machine, api: SocketAddr, name: &str, roots: &Path) -> std::io::Result<Result<String, String>> {
    let mut stream = machine.node.connect(api, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let headers = format!("Host: {api}\r\nTailscale-Ingress-Src: {CLIENT}\r\nTailscale-Ingress-Target: {name}:443\r\nContent-Length: 0");
    stream.write_all(format!("POST /v0/ingress HTTP/1.1\r\n{headers}\r\n\r\n").as_bytes())?;
    let head = read_head(&mut stream)?;
    if !head.starts_with("HTTP/1.1 101 ") {
        return Ok(Err(head));
    }
    let mut tls = StreamOwned::new(client(name, roots), stream);
    tls.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let head = read_head(&mut tls)?;
    let mut body = String::new();
    tls.read_to_string(&mut body)?;
    Ok(if head.starts_with("HTTP/1.1 200 ") { Ok(body.trim().to_owned()) } else { Err(head) })
}

/// Reads up to the empty line.
fn read_head(stream: &mut impl Read) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn client(name: &str, roots: &Path) -> ClientConnection {
    let mut trusted = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(roots).expect("a file") {
        trusted.add(root.expect("a certificate")).expect("added");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let config = builder.with_root_certificates(trusted).with_no_client_auth();
    ClientConnection::new(Arc::new(config), ServerName::try_from(name.to_owned()).expect("a name")).expect("a client")
}

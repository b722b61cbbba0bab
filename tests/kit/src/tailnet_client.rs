//! A tailnet client of published services: it connects by name and trusts the CA of the lab's ACME server.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cluster::DEADLINE;
use crate::cluster::load::LoadReport;
use crate::machine::{Machine, Process};
use crate::tailnet::Tailnet;
use crate::wait::eventually;

mod funnel;

/// The TLS port.
const HTTPS: u16 = 443;

/// A client on a machine of its own.
pub struct TailnetClient {
    machine: Machine,
    /// CA certificates for curl and load runs.
    roots: PathBuf,
    _tailscaled: Process,
    tailnet: Arc<Tailnet>,
}

/// A load run: `tailyard load` with new connections at a fixed rate.
pub struct LoadRun(Process);

impl TailnetClient {
    /// Joins the tailnet; its ACME server must be running.
    pub fn join(tailnet: &Arc<Tailnet>) -> Self {
        Self::join_as(tailnet, "user", &[])
    }

    /// As [`Self::join`], with this name and these arguments of `tailscale up`.
    pub fn join_as(tailnet: &Arc<Tailnet>, name: &str, args: &[&str]) -> Self {
        let machine = tailnet.machine(name);
        let tailscaled = machine.tailscaled();
        tailnet.join(&machine, args);
        behind_a_gateway(&machine, "100.64.0.0/10");
        let client = Self { machine, roots: tailnet.dir().join("roots.pem"), _tailscaled: tailscaled, tailnet: Arc::clone(tailnet) };
        let authority = tailnet.dir().join("ca.crt").display().to_string();
        let root = client.curl(&["--cacert", &authority, "https://hs.lab:15000/roots/0"]).expect("the root of the ACME server");
        fs::write(&client.roots, root).expect("written");
        client
    }

    /// The client's machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// CA certificates that the client trusts.
    pub fn roots(&self) -> &Path {
        &self.roots
    }

    /// A command on the client's machine that trusts the lab's ACME server.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.machine.command(program);
        command.env("SSL_CERT_FILE", &self.roots);
        command
    }

    /// Lets programs of the machine resolve the name of a Tailscale Service or device, as MagicDNS does.
    pub fn resolve(&self, service: &str) {
        let (address, name) = (self.address(service).expect("a Tailscale Service or a device"), self.name(service));
        let script = r#"grep -v " $2\$" /etc/hosts > /run/hosts; echo "$1 $2" >> /run/hosts; cat /run/hosts > /etc/hosts"#;
        let status = self.machine.command(Path::new("sh")).args(["-c", script, "sh", &address, &name]).status();
        assert!(status.expect("nsenter").success(), "{name}");
    }

    /// The answer of a name over `http` or `https`, on a new connection. The connect timeout of 3 s leaves room for a second SYN, which
    /// the kernel sends after 1 s: a busy machine may drop the first.
    pub fn get(&self, scheme: &str, service: &str) -> Result<String, String> {
        self.get_within(scheme, service, "3")
    }

    fn get_within(&self, scheme: &str, service: &str, connect: &str) -> Result<String, String> {
        let address = self.address(service).ok_or("neither a Tailscale Service nor a device")?;
        let name = self.name(service);
        let port = if scheme == "https" { HTTPS } else { 80 };
        let (roots, resolve) = (self.roots.display().to_string(), format!("{name}:{port}:{address}"));
        let answer =
            self.curl(&["--connect-timeout", connect, "--cacert", &roots, "--resolve", &resolve, &format!("{scheme}://{name}/")])?;
        Ok(answer.trim().to_owned())
    }

    /// The answer of a device to a client of the internet.
    pub fn get_by_funnel(&self, device: &str) -> Result<String, String> {
        funnel::get(&self.machine, &self.name(device), &self.roots)
    }

    /// Waits until a name answers this. The connect timeout is 1 s: a connection opened before the address has a route keeps a source
    /// address that no answer reaches, so a new one must be opened.
    pub fn wait_for_answer(&self, scheme: &str, service: &str, answer: &str) {
        let answers = || (self.get_within(scheme, service, "1").ok()? == answer).then_some(());
        eventually(&format!("{answer:?} by {scheme} of {service}"), DEADLINE, answers);
    }

    /// Starts a load run on a port of a name at a rate per second, with TLS on port 443, and waits for the first answer. An attempt without
    /// an answer of this prefix within the timeout (seconds) is a failure.
    pub fn begin(&self, (service, port): (&str, u16), expect: &str, rate: &str, timeout: &str) -> LoadRun {
        let address = self.address(service).expect("a Tailscale Service");
        let (to, roots) = (format!("{}:{port}", self.name(service)), self.roots.display().to_string());
        let mut args = vec![&*to, "--connect", &address, "--expect", expect, "--rate", rate, "--timeout", timeout];
        if port == HTTPS {
            args.extend(["--https", "--ca", &roots]);
        }
        LoadRun::begin(&self.machine, service, &args)
    }

    /// The name of a Tailscale Service or device in the tailnet.
    pub fn name(&self, service: &str) -> String {
        self.tailnet.name_of(service)
    }

    /// The IPv4 address of a Tailscale Service, or of a device.
    fn address(&self, service: &str) -> Option<String> {
        if let Some(one) = self.services().into_iter().find(|one| one["name"] == format!("svc:{service}")) {
            return Some(one["addrs"][0].as_str()?.to_owned());
        }
        let devices = self.tailnet.api("GET", "/tailnet/-/devices");
        let one = devices["devices"].as_array()?.iter().find(|device| device["hostname"] == service)?;
        Some(one["addresses"][0].as_str()?.to_owned())
    }

    /// All Tailscale Services, as the API has them.
    pub fn services(&self) -> Vec<Value> {
        let services = self.tailnet.api("GET", "/tailnet/-/vip-services");
        services["vipServices"].as_array().cloned().unwrap_or_default()
    }

    fn curl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.machine.command(Path::new("/usr/bin/curl"));
        command.args(["-sS", "--fail", "--max-time", "5"]);
        let output = command.args(args).output().expect("nsenter");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }
}

impl LoadRun {
    /// Starts `tailyard load` with these arguments on a machine and waits for the first answer.
    pub fn begin(machine: &Machine, name: &str, args: &[&str]) -> Self {
        let command = [&[crate::tailyard(), "load", "--duration", "1h"], args].concat();
        let run = Self(machine.spawn(&format!("load-{name}"), &command, &[]));
        eventually("the load being answered", DEADLINE, || (run.so_far().answered_so_far() > 0).then_some(()));
        run
    }

    /// Ends it.
    pub fn end(mut self) -> LoadReport {
        self.0.signal(Signal::SIGTERM);
        self.0.wait();
        self.so_far()
    }

    /// The report up to now.
    pub fn so_far(&self) -> LoadReport {
        LoadReport::read(&self.0.output())
    }
}

/// Adds a gateway for addresses of this network that no peer routes. It drops these packets, like a router of the internet.
///
/// While no replica serves an address, the client's tailscaled has no peer for it, and packets leave by the machine's own link. The lab's
/// default route has no gateway: without this one the kernel would wait 3 s for ARP, send no other packet of the connection, and then fail it.
pub fn behind_a_gateway(machine: &Machine, network: &str) {
    let IpAddr::V4(own) = machine.address else { panic!("{} is of the other family", machine.address) };
    let [a, b, c, _] = own.octets();
    let gateway = format!("{a}.{b}.{c}.254");
    machine
        .node
        .ip(&format!("neigh add {gateway} lladdr 02:00:00:00:00:fe dev eth0 nud permanent\nroute add {network} via {gateway} dev eth0\n"));
}

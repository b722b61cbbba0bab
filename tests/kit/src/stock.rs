//! A machine like that of the stock proxy: tailscaled terminates TLS; its LocalAPI configures services and advertisements.

use std::path::Path;

use serde_json::{Value, json};

use crate::machine::DEADLINE;
use crate::machine::{Machine, Process};
use crate::tailnet::Tailnet;
use crate::wait::eventually;

/// Starts its tailscaled, a node of the tailnet, with these environment variables.
pub fn start(tailnet: &Tailnet, machine: &Machine, env: &[(&str, &str)]) -> Process {
    let (program, socket) = (machine.bin().join("tailscaled").display().to_string(), machine.socket());
    let flag = format!("--socket={}", socket.display());
    let tailscaled = machine.spawn("stock", &[&program, "--statedir=/run/ts", "--tun=tailscale0", &flag], env);
    eventually("the socket of tailscaled", DEADLINE, || socket.exists().then_some(()));
    tailnet.join(machine, &[]);
    tailscaled
}

/// Sets its serve config, and advertises these services.
pub fn serve(machine: &Machine, config: &Value, services: &[&str]) {
    let call = |method: &str, path: &str, body: &Value| {
        let url = format!("http://local-tailscaled.sock/localapi/v0/{path}");
        let mut curl = machine.command(Path::new("curl"));
        curl.args(["--silent", "--show-error", "--fail", "--request", method, "--data", &body.to_string(), "--unix-socket"]);
        let output = curl.arg(machine.socket()).arg(&url).output().expect("nsenter");
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    };
    call("POST", "serve-config", config);
    call("PATCH", "prefs", &json!({"AdvertiseServicesSet": true, "AdvertiseServices": services}));
}

//! The limit: a node of the tailnet that forwards what the client sends, without any proxy, rule or connection tracking.

use std::net::SocketAddr;

use kit::machine::{Machine, Process};
use tailyard::demo::services::FIRST_TARGET_PORT;

use super::stage::Stage;

/// The client's address on this route: the tailnet must permit it as a source behind the node.
const CLIENT: &str = "10.50.0.5";
/// The subnet behind the node.
const ROUTE: &str = "10.50.0.0/24";

/// The node; the client reaches the target by it while it is there.
pub(crate) struct Router {
    _machine: Machine,
    _tailscaled: Process,
}

impl Router {
    /// Creates it, and the client's route over it.
    pub(crate) fn start(stage: &Stage) -> Self {
        let machine = stage.tailnet.machine("router");
        machine.node.sysctl("net.ipv4.ip_forward", "1");
        let tailscaled = machine.tailscaled();
        stage.tailnet.join(&machine, &["--netfilter-mode=off", &format!("--advertise-routes={ROUTE}")]);
        stage.tailnet.headscale(&["nodes", "approve-routes", "-i", &stage.tailnet.node_id("router").to_string(), "-r", ROUTE]);
        stage.behind.tailscale(&["set", "--accept-routes"]);
        stage.client.node.ip(&format!("addr add {CLIENT}/32 dev eth0\nroute add {} via {} src {CLIENT}\n", stage.target, machine.address));
        Self { _machine: machine, _tailscaled: tailscaled }
    }
}

/// Ports of the target, as addresses behind the router.
pub(crate) fn direct(stage: &Stage, count: u16) -> Vec<SocketAddr> {
    (0..count).map(|turn| SocketAddr::new(stage.target, FIRST_TARGET_PORT + turn)).collect()
}

//! Planner inputs of any size, from an egress config and a netmap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use tailyard::api::{egress, netmap};
use tailyard::model::base::net::InterfaceName;
use tailyard::model::base::netmap::NetMap;
use tailyard::model::config::EgressConfig;
use tailyard::model::plan::world::World;

/// An egress config with this number of mappings, two for each service (TCP and UDP); the service with number `moved` has another
/// target.
pub fn config(mappings: u32, moved: Option<u32>) -> Result<Vec<u8>> {
    let port = |protocol: &str, number: u32| egress::PortMap {
        protocol: protocol.to_owned(),
        match_port: u64::from(number) + 1_000,
        target_port: u64::from(number % 100) + 7_000,
    };
    let service = |number: u32| egress::EgressService {
        health_check_endpoint: String::new(),
        tailnet_target: egress::EgressTarget { ip: String::new(), fqdn: target((number + u32::from(moved == Some(number))) % 3) },
        ports: vec![port("TCP", number), port("UDP", number)],
    };
    let services: BTreeMap<String, _> = (0..mappings / 2).map(|number| (format!("default-service-{number}"), service(number))).collect();
    Ok(serde_json::to_vec(&services)?)
}

fn target(number: u32) -> String {
    format!("target-{number}.tail.example")
}

/// A world with nothing configured yet and three peers, each with an address of each family.
pub fn world() -> World {
    let node = |name: String, number: u32| netmap::Node {
        name,
        addresses: vec![format!("100.64.0.{number}"), format!("fd7a:115c:a1e0::{number}")],
        routes: Vec::new(),
    };
    let peers = (0..3).map(|number| node(target(number), number + 10)).collect();
    let file = netmap::File { node: node("self.tail.example".to_owned(), 1), peers, services: Vec::new() };
    let netmap = Some(Arc::new(NetMap::from_file(&file).0));
    World { netmap, ..World::empty(InterfaceName::tailscale0(), BTreeSet::new()) }
}

/// The world with this config in force.
#[must_use]
pub fn with(world: &World, config: EgressConfig) -> World {
    World { egress: Arc::new(config), ..world.clone() }
}

//! Facts of this machine or Pod. Firewalls are tested in a new network namespace: the rules in force are neither read nor changed.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;

use crate::edge::conntrack::Conntrack;
use crate::edge::iptables::{Iptables, Variant};
use crate::edge::localapi::LocalApi;
use crate::edge::netns::{Namespace, NetnsError};
use crate::edge::nft::Nft;
use crate::edge::node;
use crate::model::base::net::InterfaceName;
use crate::model::controller::workload::role::Role;
use crate::model::diagnostics::doctor::node::{NamedFirewall, NodeFacts, kubernetes_grants as kubernetes_grants_of};
use crate::model::tailnet::rejects::{RejectedFlow, recent};

/// LocalAPI sockets of tailscaled, in a Pod and on a machine.
const SOCKETS: [&str; 2] = ["/tmp/tailscaled.sock", "/var/run/tailscale/tailscaled.sock"];

/// Collects all facts.
pub(super) async fn facts() -> NodeFacts {
    let read = || {
        let firewalls = firewalls();
        let pressure = Conntrack::open().and_then(|mut table| table.pressure());
        NodeFacts {
            kernel: node::kernel().ok(),
            namespace: firewalls.as_ref().map(|_| ()).map_err(ToString::to_string),
            firewalls: firewalls.unwrap_or_default(),
            tun: node::tun().map_err(|error| error.to_string()),
            links: node::links().unwrap_or_default(),
            connections: pressure.map(|pressure| (pressure.entries, pressure.limit)).map_err(|error| error.to_string()),
            offloads: None,
            kubernetes_grants: None,
            rejects: None,
        }
    };
    let api = tailscaled();
    let api = api.as_ref();
    let (read, offloads, kubernetes_grants, rejects) =
        tokio::join!(spawn_blocking(read), offloads(api), kubernetes_grants(api), rejects(api));
    let facts = read.unwrap_or_else(|error| NodeFacts {
        kernel: None,
        namespace: Err(error.to_string()),
        firewalls: Vec::new(),
        tun: Err(error.to_string()),
        links: Vec::new(),
        connections: Err(error.to_string()),
        offloads: None,
        kubernetes_grants: None,
        rejects: None,
    });
    NodeFacts { offloads, kubernetes_grants, rejects, ..facts }
}

/// Tests which firewalls support our rules.
fn firewalls() -> Result<Vec<NamedFirewall>, NetnsError> {
    Namespace::make()?.block_on(|| async {
        let interface = InterfaceName::tailscale0();
        let nft = match Nft::open("nft") {
            Ok(mut nft) => nft.probe(&interface).await,
            Err(error) => Err(error),
        };
        let mut tried = vec![("nftables", nft.map_err(|error| error.to_string()))];
        for (name, variant) in [("iptables-nft", Variant::Nft), ("iptables-legacy", Variant::Legacy)] {
            tried.push((name, Iptables::open(variant).probe(&interface).await.map_err(|error| error.to_string())));
        }
        tried
    })
}

/// LocalAPI of tailscaled, if it runs here.
fn tailscaled() -> Option<LocalApi> {
    let own = std::env::var_os("TS_SOCKET").map(PathBuf::from);
    let socket = own.into_iter().chain(SOCKETS.map(PathBuf::from)).find(|socket| socket.exists())?;
    Some(LocalApi::new(socket))
}

/// tailscaled's check of UDP GRO forwarding.
async fn offloads(api: Option<&LocalApi>) -> Option<Result<Option<String>, String>> {
    Some(api?.check_udp_gro_forwarding().await.map_err(|error| error.to_string()))
}

/// Number of grants of the Kubernetes capability, in a Pod of a `ProxyGroup` of type kube-apiserver.
async fn kubernetes_grants(api: Option<&LocalApi>) -> Option<Result<usize, String>> {
    let api = api.filter(|_| std::env::var("TS_INTERNAL_APP").is_ok_and(|app| app == Role::ApiServerGroup.row().app))?;
    Some(api.packet_filter_rules().await.map(|rules| kubernetes_grants_of(&rules)).map_err(|error| error.to_string()))
}

/// Rejected flows that tailscaled records.
async fn rejects(api: Option<&LocalApi>) -> Option<Vec<RejectedFlow>> {
    recent(&api?.debug_rejects().await.ok()??, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

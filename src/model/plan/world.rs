//! The world: all inputs of [`crate::model::plan`] at one time. Cheap to clone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::api::is_default;
use crate::api::siblings::Siblings;
use crate::model::base::net::{InterfaceName, PortKey};
use crate::model::base::netmap::{Fqdn, NetMap, in_tailscale_range};
use crate::model::config::{EgressConfig, IngressConfig};
use crate::model::plan::targets::{TargetPolicy, behind};

/// Modes of a proxy that serves one target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Single {
    /// A replica of a `ProxyGroup`: only its configs.
    #[default]
    None,
    /// `TS_DEST_IP`: the node's tailnet address of this family forwards to this cluster address; that of the other family to
    /// `TAILYARD_OTHER_DEST_IP`, if set.
    DestIp { ip: IpAddr, other: Option<IpAddr> },
    /// `TS_EXPERIMENTAL_DEST_DNS_NAME`: the same for a DNS name (in [`World::names`]).
    DestDns(String),
    /// `TS_TAILNET_TARGET_IP`: the Pod's addresses forward to this tailnet address.
    TailnetIp(IpAddr),
    /// `TS_TAILNET_TARGET_FQDN`: the same for a tailnet name.
    TailnetFqdn(Fqdn),
}

impl Single {
    /// Variable of the mode.
    pub fn variable(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::DestIp { .. } => Some("TS_DEST_IP"),
            Self::DestDns(_) => Some("TS_EXPERIMENTAL_DEST_DNS_NAME"),
            Self::TailnetIp(_) => Some("TS_TAILNET_TARGET_IP"),
            Self::TailnetFqdn(_) => Some("TS_TAILNET_TARGET_FQDN"),
        }
    }

    /// Value of the variable, as the Tailscale operator writes it.
    pub fn value(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::DestIp { ip, .. } | Self::TailnetIp(ip) => Some(ip.to_string()),
            Self::DestDns(name) => Some(name.clone()),
            Self::TailnetFqdn(name) => Some(format!("{name}.")),
        }
    }

    /// Cluster addresses, one for each family.
    pub fn cluster_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let (ip, other) = if let Self::DestIp { ip, other } = self { (Some(*ip), *other) } else { (None, None) };
        ip.into_iter().chain(other)
    }

    /// Whether the target is in the cluster.
    pub fn is_ingress(&self) -> bool {
        matches!(self, Self::DestIp { .. } | Self::DestDns(_))
    }

    /// Whether the target is in the tailnet.
    pub fn is_egress(&self) -> bool {
        matches!(self, Self::TailnetIp(_) | Self::TailnetFqdn(_))
    }
}

/// Listeners of virtual hosts for connections that end in the kernel, by Tailscale Service.
pub type VhostListeners = BTreeMap<Arc<str>, ServiceListeners>;

/// Listeners of one Tailscale Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ServiceListeners {
    /// Addresses of the Service.
    pub addresses: BTreeSet<IpAddr>,
    /// Port of a listener of this Pod by port of the Service.
    pub ports: BTreeMap<u16, u16>,
}

/// Inputs of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct World {
    /// Tailnet interface.
    pub interface: InterfaceName,
    pub pod_ips: BTreeSet<IpAddr>,
    /// Addresses of all replicas of the group, this one included or not.
    #[serde(skip_serializing_if = "is_default")]
    pub siblings: Arc<Siblings>,
    /// Ports of the Pod itself (health, metrics): never match ports.
    pub reserved: BTreeSet<PortKey>,
    /// Single-proxy mode, if any.
    pub single: Single,
    /// The Pod's addresses forward to the node's tailnet addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub via_ingress: bool,
    pub targets: TargetPolicy,
    pub egress: Arc<EgressConfig>,
    pub ingress: Arc<IngressConfig>,
    #[serde(skip_serializing_if = "is_default")]
    pub listeners: Arc<VhostListeners>,
    /// Netmap; `None` before the first complete one.
    pub netmap: Option<Arc<NetMap>>,
    /// Last good answer of every requested DNS name.
    pub names: Arc<BTreeMap<String, BTreeSet<IpAddr>>>,
}

impl World {
    pub fn empty(interface: InterfaceName, reserved: BTreeSet<PortKey>) -> Self {
        let (pod_ips, single, netmap) = (BTreeSet::new(), Single::None, None);
        let via_ingress = false;
        Self {
            interface,
            pod_ips,
            siblings: Arc::default(),
            reserved,
            single,
            via_ingress,
            targets: TargetPolicy::default(),
            egress: Arc::default(),
            ingress: Arc::default(),
            listeners: Arc::default(),
            netmap,
            names: Arc::default(),
        }
    }

    pub fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.netmap.iter().filter_map(|netmap| netmap.node.as_ref()).flat_map(|node| node.addresses.iter().copied())
    }

    /// Tailscale Services that this node may serve, with their addresses.
    pub fn tailscale_services(&self) -> Option<&BTreeMap<String, BTreeSet<IpAddr>>> {
        Some(&self.netmap.as_ref()?.node.as_ref()?.services)
    }

    /// Whether an address is the Pod's or its node's, also IPv4-mapped, and the Pod's also translated. An IPv4 address in a 4via6 one is that of
    /// another site.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_pod = |ip: IpAddr| self.pod_ips.contains(&ip);
        is_pod(ip) || (!in_tailscale_range(ip) && behind(ip).any(is_pod)) || self.node_addresses().any(|own| own == ip)
    }
}

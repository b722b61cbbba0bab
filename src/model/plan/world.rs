//! Everything that is known at one moment: the inputs of [`crate::model::plan`]. Plain data, cheap to clone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::model::base::net::{InterfaceName, PortKey};
use crate::model::base::netmap::{Fqdn, NetMap};
use crate::model::config::{EgressConfig, IngressConfig};
use crate::model::plan::targets::TargetPolicy;

/// What a replica is there for besides its groups' configs: the modes of a proxy that serves one target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Single {
    /// A member of a `ProxyGroup`: nothing but the configs counts.
    #[default]
    None,
    /// `TS_DEST_IP`: the tailnet reaches this cluster address by the node's own tailnet address.
    DestIp(IpAddr),
    /// `TS_EXPERIMENTAL_DEST_DNS_NAME`: the same, by a DNS name (in [`World::names`]).
    DestDns(String),
    /// `TS_TAILNET_TARGET_IP`: the cluster reaches this tailnet address by the Pod's own address.
    TailnetIp(IpAddr),
    /// `TS_TAILNET_TARGET_FQDN`: the same, by a name of the tailnet.
    TailnetFqdn(Fqdn),
}

/// The inputs of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct World {
    /// The interface behind which the tailnet is.
    pub interface: InterfaceName,
    pub pod_ips: BTreeSet<IpAddr>,
    /// Ports that the Pod itself answers (health, metrics): no service may have them.
    pub reserved: BTreeSet<PortKey>,
    /// The single-proxy mode, if it is one.
    pub single: Single,
    /// The cluster reaches by the Pod's addresses what the node itself serves in the tailnet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub via_ingress: bool,
    pub targets: TargetPolicy,
    pub egress: Arc<EgressConfig>,
    pub ingress: Arc<IngressConfig>,
    /// The tailnet; nothing before the first complete snapshot.
    pub netmap: Option<Arc<NetMap>>,
    /// The last good answer for every DNS name asked for.
    pub names: Arc<BTreeMap<String, BTreeSet<IpAddr>>>,
}

impl World {
    /// A world in which nothing is configured and nothing known.
    #[must_use]
    pub fn empty(interface: InterfaceName, reserved: BTreeSet<PortKey>) -> Self {
        let (pod_ips, single, netmap) = (BTreeSet::new(), Single::None, None);
        let via_ingress = false;
        Self {
            interface,
            pod_ips,
            reserved,
            single,
            via_ingress,
            targets: TargetPolicy::default(),
            egress: Arc::default(),
            ingress: Arc::default(),
            netmap,
            names: Arc::default(),
        }
    }

    /// This node's own tailnet addresses.
    pub fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.netmap.iter().filter_map(|netmap| netmap.node.as_ref()).flat_map(|node| node.addresses.iter().copied())
    }

    /// Whether an address, be it mapped into IPv6, is the Pod's or its node's.
    #[must_use]
    pub fn is_own(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.pod_ips.contains(&ip) || self.node_addresses().any(|own| own == ip)
    }
}

//! Network namespaces of a group on one machine, and the links between them.
//!
//! ```text
//!   client ──┬── replica 0 ──┬── target 0
//!   (pods)   └── replica 1 ──┤── target 1      pods: 10.77.0.0/24, fd77::/64, MTU 1500
//!                            └── target 2      tailnet: 100.64.0.0/10, fd7a:115c:a1e0::/48, MTU 1280
//! ```
//!
//! The client's namespace has the bridge of the Pod network, another namespace that of the tailnet. A replica has `eth0` on the first and
//! `ts0` on the second; only a proxy forwards between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::DemoError;
use crate::edge::link::build::build;
use crate::edge::netns::Namespace;
use crate::model::base::net::InterfaceName;

/// Host numbers of the first replica and the first target in the tailnet.
pub const FIRST_REPLICA: u8 = 1;
pub const FIRST_TARGET: u8 = 101;
/// MTU of tailscaled's device.
const TAILNET_MTU: u32 = 1280;
const POD_MTU: u32 = 1500;

/// A namespace with an address of each family.
#[derive(Debug, Clone)]
pub struct DemoSite {
    pub namespace: Namespace,
    pub tailnet: [IpAddr; 2],
    /// Addresses on the Pod network; `None` for a target.
    pub pod: Option<[IpAddr; 2]>,
}

/// The complete topology. It is removed with this value once no process runs in it.
#[derive(Debug)]
pub struct Topology {
    pub client: Namespace,
    pub replicas: Vec<DemoSite>,
    pub targets: Vec<DemoSite>,
    tailnet: Namespace,
}

impl Topology {
    /// Creates a client, replicas and targets, with all links up and addressed.
    pub fn make(replicas: u8, targets: u8) -> Result<Self, DemoError> {
        let mut made = Self { client: Namespace::make()?, tailnet: Namespace::make()?, replicas: Vec::new(), targets: Vec::new() };
        switch(&made.client, "pods", POD_MTU)?;
        switch(&made.tailnet, "tailnet", TAILNET_MTU)?;
        add_addresses(&made.client, "pods", pod_nets(1))?;
        for number in 0..replicas {
            let site = DemoSite {
                namespace: Namespace::make()?,
                tailnet: addresses(tailnet_nets(FIRST_REPLICA + number)),
                pod: Some(addresses(pod_nets(10 + number))),
            };
            connect(&made.client, "pods", &site.namespace, "eth0", number, POD_MTU)?;
            connect(&made.tailnet, "tailnet", &site.namespace, "ts0", number, TAILNET_MTU)?;
            add_addresses(&site.namespace, "eth0", pod_nets(10 + number))?;
            add_addresses(&site.namespace, "ts0", tailnet_nets(FIRST_REPLICA + number))?;
            made.replicas.push(site);
        }
        for number in 0..targets {
            let site = DemoSite { namespace: Namespace::make()?, tailnet: addresses(tailnet_nets(FIRST_TARGET + number)), pod: None };
            connect(&made.tailnet, "tailnet", &site.namespace, "ts0", 100 + number, TAILNET_MTU)?;
            add_addresses(&site.namespace, "ts0", tailnet_nets(FIRST_TARGET + number))?;
            made.targets.push(site);
        }
        Ok(made)
    }
}

/// Turns a replica into a plain router between client and targets, without a proxy: the baseline of comparisons.
pub fn forward_plainly(topology: &Topology, replica: usize) -> Result<(), DemoError> {
    let Some((site, pod)) = topology.replicas.get(replica).and_then(|site| Some((site, site.pod?))) else { return Ok(()) };
    let forward = || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
    };
    site.namespace.run(forward)?.map_err(DemoError::io("set forwarding in a namespace"))?;
    let routes = tailnet_nets(0).into_iter().zip(pod_nets(0)).zip(pod.into_iter().zip(site.tailnet));
    for ((tailnet, pods), (from_pods, from_tailnet)) in routes {
        route(&topology.client, tailnet.trunc(), from_pods)?;
        for target in &topology.targets {
            route(&target.namespace, pods.trunc(), from_tailnet)?;
        }
    }
    Ok(())
}

/// Adds a route to a destination by a gateway.
pub fn route(namespace: &Namespace, destination: IpNet, gateway: IpAddr) -> Result<(), DemoError> {
    Ok(namespace.block_on(|| build(async move |b| b.route(destination, gateway).await))??)
}

/// Pod network addresses of a host number, with prefix lengths.
pub fn pod_nets(number: u8) -> [IpNet; 2] {
    [net(Ipv4Addr::new(10, 77, 0, number).into(), 24), net(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()).into(), 64)]
}

/// Tailnet addresses of a host number, with prefix lengths.
pub fn tailnet_nets(number: u8) -> [IpNet; 2] {
    let v6 = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, number.into());
    [net(Ipv4Addr::new(100, 64, 0, number).into(), 10), net(v6.into(), 48)]
}

/// All lengths used here are valid for their family; the fallback is a host prefix.
fn net(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(address, length).unwrap_or_else(|_| address.into())
}

fn addresses(nets: [IpNet; 2]) -> [IpAddr; 2] {
    nets.map(|net| net.addr())
}

/// Creates a bridge and sets the namespace's loopback up.
fn switch(namespace: &Namespace, bridge: &str, mtu: u32) -> Result<(), DemoError> {
    let (bridge, lo): (InterfaceName, InterfaceName) = (bridge.parse()?, "lo".parse()?);
    let made = namespace.block_on(|| {
        build(async move |b| {
            b.up(&lo).await?;
            b.bridge(&bridge).await?;
            b.mtu(&bridge, mtu).await?;
            b.up(&bridge).await
        })
    });
    Ok(made??)
}

/// Creates a veth pair between a port of the switch's bridge and `far` in the site's namespace, both up.
fn connect(switch: &Namespace, bridge: &str, site: &Namespace, far: &str, number: u8, mtu: u32) -> Result<(), DemoError> {
    let (bridge, far): (InterfaceName, InterfaceName) = (bridge.parse()?, far.parse()?);
    let (port, lo): (InterfaceName, InterfaceName) = (format!("port{number}").parse()?, "lo".parse()?);
    let near = switch.block_on(|| {
        build(async |b| {
            b.veth(&port, &far, site).await?;
            b.mtu(&port, mtu).await?;
            b.attach(&port, &bridge).await?;
            b.up(&port).await
        })
    });
    near??;
    let there = site.block_on(|| {
        build(async |b| {
            b.mtu(&far, mtu).await?;
            b.up(&lo).await?;
            b.up(&far).await
        })
    });
    Ok(there??)
}

fn add_addresses(namespace: &Namespace, link: &str, nets: [IpNet; 2]) -> Result<(), DemoError> {
    let link: InterfaceName = link.parse()?;
    let given = namespace.block_on(|| {
        build(async move |b| {
            for net in nets {
                b.address(&link, net).await?;
            }
            Ok(())
        })
    });
    Ok(given??)
}

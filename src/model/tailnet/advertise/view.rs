//! Serve config and advertised services of tailscaled, computed from configs, ruleset and listeners.
//!
//! Handlers exist before and after traffic: a service is advertised once tailscaled serves it, and served for as long as tailscaled
//! reports that it advertises it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::api::routes::Listener;
use crate::api::serve::ServeConfig;
use crate::model::base::netmap::{NetMap, SelfNode};
use crate::model::config::IngressConfig;
use crate::model::config::source::ServeContent;
use crate::model::front_end::vhosts::{Vhost, shared_host};
use crate::model::plan::Planned;
use crate::model::plan::world::{ServiceListeners, VhostListeners, World};
use crate::model::tailnet::serve_config::{self, FunnelError, SitePorts};

use super::{AdvertiseInputs, Placement, WithdrawalProgress};

/// Reason why a tailscaled without config file advertises nothing.
const NO_CONFIG_FILE: &str = "tailscaled has no config file in which to advertise: give it one (TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR), or advertise nothing (TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT=false)";

/// Parts of advertising that this process controls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdvertiseMode {
    /// Writes tailscaled's serve config.
    pub serves: bool,
    /// Serves virtual hosts on the node's own addresses: the control plane has no Tailscale Services.
    pub on_node: bool,
    /// Advertises services of the serve config that tailscaled's config does not name.
    pub auto_advertise: bool,
}

/// Status of the configured services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdvertiseStatus {
    /// Services that are not advertised and approved, with reasons.
    pub waiting: BTreeMap<String, String>,
    pub approved: BTreeSet<String>,
    /// Advertised services without the control server's approval for this node; `None` while unknown.
    pub unapproved: Option<BTreeSet<String>>,
    pub active: BTreeSet<String>,
    /// Funnel errors; `None` while unknown.
    pub funnel_errors: Option<BTreeMap<String, FunnelError>>,
    /// The start of tailscaled for which all were approved once, or the wait timed out.
    pub settled: Option<u64>,
    /// tailscaled drops new connections.
    pub shields_up: bool,
}

/// Status of each virtual host that has listeners, by Tailscale Service.
pub type PlacedSites = Arc<BTreeMap<String, SiteStatus>>;

/// Status of a virtual host's listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteStatus {
    /// Listener addresses by port: tailscaled's upstreams.
    pub ports: BTreeMap<u16, SocketAddr>,
    /// Ports of listeners for connections that end in the kernel, by port. Empty if these are not enabled.
    pub kernel: BTreeMap<u16, u16>,
    /// Names without their certificate: TLS handshakes for them are rejected.
    pub missing: BTreeSet<String>,
    /// At least one name has its certificate, or none needs one: TLS ports may be advertised.
    pub certified: bool,
    /// Listener errors by port.
    pub faults: BTreeMap<u16, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonReport {
    /// Connected to the tailnet.
    pub running: bool,
    /// Tailscale Services in its config; `None` before the first valid config, or without one.
    pub configured: Option<Arc<BTreeSet<String>>>,
    pub advertised: Arc<BTreeSet<String>>,
    /// Shields-up is on.
    pub shields_up: bool,
}

#[derive(Debug, Clone, Default)]
pub struct AppliedRuleset {
    /// Its plan; `None` before the first write.
    pub planned: Option<Arc<Planned>>,
    /// Changed by another program and not repaired yet.
    pub damaged: bool,
    /// Error of the last write, if it failed.
    pub fault: Option<String>,
}

/// All inputs at one time. Configs are absent until the first readable copy.
#[derive(Debug, Clone, Default)]
pub struct AdvertiseView {
    pub mode: AdvertiseMode,
    pub withdrawal: WithdrawalProgress,
    pub daemon: DaemonReport,
    pub netmap: Option<Arc<NetMap>>,
    pub served: Option<Arc<ServeContent>>,
    pub ingress: Option<Arc<IngressConfig>>,
    pub ruleset: AppliedRuleset,
    /// Listeners of each virtual host.
    pub sites: PlacedSites,
    /// Serve config that tailscaled reports; `None` before the first read.
    pub serving: Option<Arc<ServeConfig>>,
}

impl AdvertiseView {
    /// Whether every config was read: before that, no advertised service is withdrawn.
    pub fn is_complete(&self) -> bool {
        self.served.is_some() && self.ingress.is_some()
    }

    /// Desired serve config of tailscaled; `None` while unknown or not ours.
    pub fn serve_config(&self) -> Option<ServeConfig> {
        let (served, ingress) = (self.served.as_ref()?, self.ingress.as_ref()?);
        if !self.mode.serves {
            return None;
        }
        let kernel = ingress.services.iter().map(|(name, service)| (name.to_string(), serve_config::announced(service))).collect();
        let mut wanted = serve_config::ServeInputs { kernel, ..serve_config::ServeInputs::default() };
        if self.mode.on_node {
            wanted.kernel.clear();
            wanted.node = self.ports(&shared_host::merged(&served.sites).0, shared_host::NAME).unwrap_or_default();
        } else {
            for (name, site) in served.sites.iter() {
                let Ok(ports) = self.ports(site, name) else { continue };
                if self.ends_in_kernel(name, site) {
                    wanted.kernel.insert(name.clone(), serve_config::Forwarded::new());
                } else {
                    wanted.sites.insert(name.clone(), ports);
                }
            }
        }
        for (name, site) in served.sites.iter().filter(|(_, site)| site.funnel) {
            let ports = if self.mode.on_node { wanted.node.clone() } else { self.ports(site, name).unwrap_or_default() };
            serve_config::to_internet(&mut wanted, site, &ports);
        }
        let mut config = serve_config::config(&wanted);
        serve_config::pass(&mut config, &served.config, self.netmap.as_deref().and_then(|netmap| netmap.cert_domains.first()));
        serve_config::withdraw(&mut config, self.withdrawal);
        // Services that are still advertised keep their handlers.
        for (name, service) in self.serving.iter().flat_map(|config| &config.services) {
            if self.daemon.advertised.contains(name) && !config.services.contains_key(name) {
                config.services.insert(name.clone(), service.clone());
            }
        }
        Some(config)
    }

    /// Whether connections to a virtual host end in the kernel. tailscaled's TCP stack gets all packets to a port with a handler, those of
    /// established connections included: a change would reset them, so a service keeps its handlers while it is advertised.
    fn ends_in_kernel(&self, name: &str, site: &Vhost) -> bool {
        let is_listened = self.sites.get(name).is_some_and(|place| !place.kernel.is_empty());
        let handlers = self.serving.as_ref().and_then(|config| config.services.get(name));
        // Before its approval it has no connections.
        let has_connections = || self.daemon.advertised.contains(name) && self.node().is_some_and(|node| node.services.contains_key(name));
        is_listened && !site.addresses.is_empty() && (handlers.is_none_or(|service| service.tun) || !has_connections())
    }

    /// Listeners of the virtual hosts whose connections end in the kernel: those of the served ports.
    pub fn listeners(&self) -> VhostListeners {
        let listeners = |(name, site): (&String, &Arc<Vhost>)| {
            let served = self.ports(site, name).ok().filter(|_| self.ends_in_kernel(name, site))?;
            let ports = self.sites.get(name)?.kernel.iter().filter(|(port, _)| served.contains_key(port));
            let ports = ports.map(|(port, to)| (*port, *to)).collect();
            Some((Arc::from(&**name), ServiceListeners { addresses: site.addresses.clone(), ports }))
        };
        self.served.iter().flat_map(|served| served.sites.iter()).filter_map(listeners).collect()
    }

    fn node(&self) -> Option<&SelfNode> {
        self.netmap.as_ref()?.node.as_ref()
    }

    /// Listener addresses of a virtual host's ports, or the reason why it is not served. Without any certificate only its plain ports are
    /// served; a name without certificate does not affect others.
    fn ports(&self, site: &Vhost, name: &str) -> Result<SitePorts, String> {
        let place = self.sites.get(name).ok_or("it has no listener yet")?;
        let plain = |port: &u16| site.listeners.get(port) == Some(&Listener::Http);
        let ports: SitePorts =
            place.ports.iter().filter(|(port, _)| place.certified || plain(port)).map(|(port, at)| (*port, *at)).collect();
        if !ports.is_empty() {
            return Ok(ports);
        }
        let missing: Vec<_> = place.missing.iter().map(|host| format!("no certificate for {host} yet")).collect();
        let faults = place.faults.values().cloned();
        Err(missing.into_iter().chain(faults).collect::<Vec<_>>().join("; "))
    }

    /// Configured services, and whether each is served.
    pub fn inputs(&self) -> AdvertiseInputs {
        let mut facts = AdvertiseInputs {
            configured: self.daemon.configured.as_deref().cloned().unwrap_or_default(),
            withdrawal: self.withdrawal,
            ..AdvertiseInputs::default()
        };
        if self.mode.auto_advertise && !self.mode.on_node {
            facts
                .configured
                .extend(self.served.iter().flat_map(|served| served.config.services.keys().chain(served.sites.keys())).cloned());
        }
        for name in self.served.iter().flat_map(|served| served.config.services.keys()) {
            facts.placed.insert(name.clone(), self.handled(name, None));
        }
        let listeners = self.listeners();
        for (name, site) in self.served.iter().flat_map(|served| served.sites.iter()) {
            let listeners = listeners.get(&**name);
            let translated = |_| listeners.map_or(Ok(()), |listeners| self.translated(name, listeners));
            let handled = |()| self.handled(name, Some(listeners.is_some()));
            facts.placed.insert(name.clone(), self.ports(site, name).and_then(translated).and_then(handled));
        }
        let kernel = self.ingress.iter().flat_map(|ingress| ingress.services.keys().chain(ingress.malformed.keys()));
        for name in kernel {
            let place = self.forwarded(name);
            for address in self.addresses(name) {
                facts.addresses.insert(address, place.is_ok());
            }
            let place = if self.mode.serves && !self.mode.on_node { place.and_then(|()| self.handled(name, None)) } else { place };
            facts.placed.insert(name.to_string(), place);
        }
        facts
    }

    /// Whether tailscaled serves a service; `tun`: with or without leaving its packets to the kernel.
    fn handled(&self, name: &str, tun: Option<bool>) -> Placement {
        let service = self.serving.as_ref().and_then(|config| config.services.get(name));
        let has = service.is_some_and(|service| tun.is_none_or(|tun| service.tun == tun));
        if has { Ok(()) } else { Err("tailscaled has not accepted its serve config yet".to_owned()) }
    }

    /// Whether the kernel forwards a service as configured.
    fn forwarded(&self, name: &str) -> Placement {
        let configured = self.ingress.as_ref().and_then(|ingress| ingress.services.get(name));
        let planned = self.in_kernel(|world| configured.is_some() && world.ingress.services.get(name) == configured)?;
        let is_served = planned.plan.ingress.get(name).is_some_and(|hosts| !hosts.is_empty());
        if is_served { Ok(()) } else { Err(rejection(planned, name, "its mapping has no two addresses of one family")) }
    }

    /// Whether the kernel translates connections of a service to its listeners. A further port does not interrupt the others.
    fn translated(&self, name: &str, listeners: &ServiceListeners) -> Placement {
        let is_current = |in_force: &ServiceListeners| in_force.addresses == listeners.addresses && !in_force.ports.is_empty();
        let planned = self.in_kernel(|world| world.listeners.get(name).is_some_and(is_current))?;
        let ports = |address: &IpAddr| SocketAddr::new(*address, 0)..=SocketAddr::new(*address, u16::MAX);
        let has_rule = |address: &IpAddr| planned.ruleset.listeners.range(ports(address)).next().is_some();
        let is_served = listeners.addresses.iter().any(has_rule) && !planned.plan.rejected.contains_key(name);
        if is_served { Ok(()) } else { Err(rejection(planned, name, "this node has no address of the family of its addresses")) }
    }

    /// The plan in the kernel, if that of a service is current.
    fn in_kernel(&self, is_current: impl Fn(&World) -> bool) -> Result<&Planned, String> {
        let AppliedRuleset { planned, damaged, fault } = &self.ruleset;
        let planned = planned.as_ref().ok_or("the kernel holds no rules yet")?;
        if let Some(fault) = fault.as_ref().filter(|_| *damaged) {
            return Err(format!("another program changed the ruleset and it cannot be repaired: {fault}"));
        }
        if !is_current(&planned.world) {
            let why = fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
            return Err(format!("the kernel does not hold its mapping yet{why}"));
        }
        Ok(planned)
    }

    /// Tailnet addresses of an L3 service.
    fn addresses(&self, name: &str) -> Vec<IpAddr> {
        let service = self.ingress.as_ref().and_then(|ingress| ingress.services.get(name));
        let mappings = service.iter().flat_map(|service| [&service.ipv4, &service.ipv6]).flatten();
        mappings.filter_map(|mapping| mapping.tailscale_service_ip.parse().ok()).collect()
    }

    pub fn status(&self, facts: &AdvertiseInputs) -> AdvertiseStatus {
        let mut status = AdvertiseStatus {
            waiting: facts.withheld(),
            funnel_errors: self.funnel_errors(),
            shields_up: self.daemon.shields_up,
            ..AdvertiseStatus::default()
        };
        if !self.daemon.running {
            // While tailscaled is away, nothing is advertised and nothing can be changed.
            return status;
        }
        let node = self.node();
        let mut unapproved = BTreeSet::new();
        for name in facts.configured.iter().filter(|name| !status.waiting.contains_key(*name)).collect::<Vec<_>>() {
            if !self.daemon.advertised.contains(name) {
                // Only a config file sets advertised services.
                let why = if self.daemon.configured.is_some() { "tailscaled does not advertise it yet" } else { NO_CONFIG_FILE };
                status.waiting.insert(name.clone(), why.to_owned());
            } else if !node.is_some_and(|node| node.services.contains_key(name)) {
                status.waiting.insert(name.clone(), "the control server has not approved this node for it".to_owned());
                unapproved.insert(name.clone());
            } else {
                status.approved.insert(name.clone());
            }
        }
        status.unapproved = node.map(|_| unapproved);
        let is_routed =
            |addresses: &BTreeSet<IpAddr>| node.is_some_and(|node| addresses.iter().any(|ip| node.routes.contains(&(*ip).into())));
        let granted = node.iter().flat_map(|node| &node.services);
        status.active = self.daemon.advertised.iter().cloned().collect();
        status.active.extend(granted.filter(|(_, addresses)| is_routed(addresses)).map(|(name, _)| name.clone()));
        // L3 services are advertised as Tailscale Services or as routes of this node.
        let forwarded = self.ingress.iter().flat_map(|ingress| ingress.services.keys());
        let has_route = |name: &&Arc<str>| is_routed(&self.addresses(name).into_iter().collect());
        status.active.extend(forwarded.filter(has_route).map(ToString::to_string));
        status
    }

    /// Funnel errors; `None` before the first netmap.
    fn funnel_errors(&self) -> Option<BTreeMap<String, FunnelError>> {
        let served = self.served.as_ref().filter(|_| self.mode.serves)?;
        let node = self.node()?;
        Some(serve_config::funnel_errors(&served.sites, &served.config, node.funnel, self.mode.on_node))
    }
}

/// Reasons why a plan does not serve a service.
fn rejection(planned: &Planned, name: &str, otherwise: &str) -> String {
    let reasons: Vec<_> = planned.plan.rejected.get(name).into_iter().flatten().map(ToString::to_string).collect();
    if reasons.is_empty() { otherwise.to_owned() } else { reasons.join("; ") }
}

#[cfg(test)]
mod tests;

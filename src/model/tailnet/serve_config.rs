//! Desired serve config of tailscaled, and the steps to reach it.
//!
//! tailscaled terminates nothing: it forwards connections of a virtual host to a loopback listener with a PROXY protocol v2 header, and
//! leaves packets of an L3 service to the kernel. The config is computed as a whole and written only if it differs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::api::ingress;
use crate::api::routes::Listener;
use crate::api::serve::{ServeConfig, ServiceConfig, TcpHandler};
use crate::model::front_end::vhosts::{Vhost, Vhosts, shared_host};
use crate::model::tailnet::advertise::WithdrawalProgress;

/// Version of the PROXY protocol for the listeners.
const PROXY_PROTOCOL: u8 = 2;

/// Listener addresses of a virtual host by port.
pub type SitePorts = BTreeMap<u16, SocketAddr>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeInputs {
    /// Listeners of Tailscale Services by name.
    pub sites: BTreeMap<String, SitePorts>,
    /// Listeners on the node's own addresses, where the control plane has no Tailscale Services.
    pub node: SitePorts,
    pub kernel: BTreeMap<String, Forwarded>,
    /// `host:port` of Funnel.
    pub funnel: BTreeSet<String>,
}

/// Ports of an L3 service that tailscaled forwards instead, with a PROXY protocol header: target by port.
pub type Forwarded = BTreeMap<u16, SocketAddr>;

pub fn config(wanted: &ServeInputs) -> ServeConfig {
    let service = |ports, tun| ServiceConfig { tcp: handlers(ports), tun, ..ServiceConfig::default() };
    let sites = wanted.sites.iter().map(|(name, ports)| (name.clone(), service(ports, false)));
    // A service with forwarded ports cannot leave the others to the kernel explicitly, and need not.
    let kernel = wanted.kernel.iter().map(|(name, ports)| (name.clone(), service(ports, ports.is_empty())));
    ServeConfig {
        tcp: handlers(&wanted.node),
        services: kernel.chain(sites).collect(),
        allow_funnel: wanted.funnel.iter().map(|at| (at.clone(), true)).collect(),
        ..ServeConfig::default()
    }
}

/// Placeholder of the node's certificate domain.
const CERT_DOMAIN: &str = "${TS_CERT_DOMAIN}";

/// Adds the parts of a serve config that tailscaled serves itself: forwarded services, and handlers of the node. The latter may name the
/// node's certificate domain and then wait for it.
pub fn pass(config: &mut ServeConfig, current: &ServeConfig, cert_domain: Option<&String>) {
    let forwarded = current.services.iter().filter(|(_, service)| service.web.is_empty());
    for (name, service) in forwarded {
        config.services.entry(name.clone()).or_insert_with(|| service.clone());
    }
    let own = ServeConfig { services: BTreeMap::new(), ..current.clone() };
    let Ok(text) = serde_json::to_string(&own) else { return };
    let over_tls = own.tcp.values().any(|handler| handler.https);
    let own = match cert_domain {
        Some(domain) => serde_json::from_str(&text.replace(CERT_DOMAIN, domain)).unwrap_or_default(),
        None if over_tls || text.contains(CERT_DOMAIN) => ServeConfig::default(),
        None => own,
    };
    for (port, handler) in own.tcp {
        config.tcp.entry(port).or_insert(handler);
    }
    config.web.extend(own.web);
    config.allow_funnel.extend(own.allow_funnel);
}

/// Enables Funnel for a virtual host's TLS ports. tailscaled looks up Funnel connections in the node's own ports, which belong to one host:
/// the first.
pub fn to_internet(wanted: &mut ServeInputs, site: &Vhost, ports: &SitePorts) {
    for (port, at) in ports.iter().filter(|(port, _)| site.listeners.get(*port) == Some(&Listener::Https)) {
        if wanted.node.entry(*port).or_insert(*at) == at {
            wanted.funnel.extend(site.hosts.keys().map(|host| format!("{host}:{port}")));
        }
    }
}

/// Disables Funnel for a draining replica: tailscaled rejects a config with Funnel while shields are up. Open connections need only their
/// handlers.
pub fn withdraw(config: &mut ServeConfig, withdrawal: WithdrawalProgress) {
    if withdrawal.shields_up || withdrawal.withdrawn {
        config.allow_funnel.clear();
    }
}

/// Reason why Funnel does not work for a virtual host that requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FunnelError {
    #[error("the tailnet does not let this node be: give its tags the attribute `funnel` (nodeAttrs of the policy)")]
    NotAllowed,
    #[error("a group leads each port from there to one site, and another one has it: publish this one by another group")]
    PortTaken,
}

impl FunnelError {
    /// Label value of metrics; closed set.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotAllowed => "NotAllowed",
            Self::PortTaken => "PortTaken",
        }
    }
}

/// Virtual hosts that request Funnel without success, with reasons; the node's own under [`shared_host::NAME`]. `allowed`: the tailnet
/// permits Funnel on this node. `shared`: the virtual hosts share the node's ports, so that these do not conflict.
pub fn funnel_errors(sites: &Vhosts, current: &ServeConfig, allowed: bool, shared: bool) -> BTreeMap<String, FunnelError> {
    let mut taken = BTreeSet::new();
    let funnel_error = |(name, site): (&String, &Arc<Vhost>)| {
        let ports: Vec<u16> = site.listeners.iter().filter(|(_, listener)| **listener == Listener::Https).map(|(port, _)| *port).collect();
        let free = shared || ports.iter().all(|port| !taken.contains(port));
        taken.extend(ports);
        let why = if allowed { (!free).then_some(FunnelError::PortTaken) } else { Some(FunnelError::NotAllowed) };
        Some((name.clone(), why?))
    };
    let mut funnel_errors: BTreeMap<_, _> = sites.iter().filter(|(_, site)| site.funnel).filter_map(funnel_error).collect();
    if !allowed && !current.tcp.is_empty() && current.allow_funnel.values().any(|on| *on) {
        funnel_errors.insert(shared_host::NAME.to_owned(), FunnelError::NotAllowed);
    }
    funnel_errors
}

/// Ports of an L3 service that tailscaled forwards instead of the kernel, with a PROXY protocol header: to the cluster's IPv4 address, if
/// any. Empty for an external name: tailscaled would resolve it only once.
pub fn announced(service: &ingress::IngressService) -> Forwarded {
    let mut mappings = [&service.ipv4, &service.ipv6].into_iter().flatten();
    let Some(to) = mappings.find_map(|mapping| mapping.cluster_ip.parse::<IpAddr>().ok()) else { return Forwarded::new() };
    service.proxy_protocol.iter().map(|port| (*port, SocketAddr::new(to, *port))).collect()
}

fn handlers(ports: &SitePorts) -> BTreeMap<u16, TcpHandler> {
    let handler = |to: &SocketAddr| TcpHandler { tcp_forward: to.to_string(), proxy_protocol: PROXY_PROTOCOL, ..TcpHandler::default() };
    ports.iter().map(|(port, to)| (*port, handler(to))).collect()
}

/// Configs to write in sequence to change `from` to `to`; empty if they are equal. tailscaled rejects a change of the handler type of a
/// port or service, so exactly these are removed first.
pub fn steps(from: &ServeConfig, to: &ServeConfig) -> Vec<ServeConfig> {
    if from == to {
        return Vec::new();
    }
    let mut first = to.clone();
    first.tcp.retain(|port, handler| from.tcp.get(port).is_none_or(|before| way(before) == way(handler)));
    first.services.retain(|name, service| from.services.get(name).is_none_or(|before| compatible(before, service)));
    if first == *to { vec![first] } else { vec![first, to.clone()] }
}

/// Whether a service can be changed in place.
fn compatible(before: &ServiceConfig, after: &ServiceConfig) -> bool {
    let same_way = |(port, handler): (&u16, &TcpHandler)| before.tcp.get(port).is_none_or(|before| way(before) == way(handler));
    before.tun == after.tun && after.tcp.iter().all(same_way)
}

/// Handler type of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortMode {
    Https,
    Http,
    TerminatedTcp,
    Tcp,
}

fn way(handler: &TcpHandler) -> PortMode {
    match handler {
        TcpHandler { https: true, .. } => PortMode::Https,
        TcpHandler { http: true, .. } => PortMode::Http,
        TcpHandler { terminate_tls, .. } if !terminate_tls.is_empty() => PortMode::TerminatedTcp,
        _ => PortMode::Tcp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn example() -> ServeInputs {
        ServeInputs {
            sites: [("svc:web".to_owned(), [(443, at(8443)), (80, at(8080))].into())].into(),
            kernel: [("svc:db".to_owned(), Forwarded::new()), ("svc:mail".to_owned(), [(25, at(25))].into())].into(),
            ..ServeInputs::default()
        }
    }

    #[test]
    fn sites_use_proxy_protocol_and_l4_services_use_tun() {
        let text = serde_json::to_string(&config(&example())).expect("JSON");
        assert_eq!(
            text,
            r#"{"Services":{"svc:db":{"Tun":true},"svc:mail":{"TCP":{"25":{"TCPForward":"127.0.0.1:25","ProxyProtocol":2}}},"svc:web":{"TCP":{"80":{"TCPForward":"127.0.0.1:8080","ProxyProtocol":2},"443":{"TCPForward":"127.0.0.1:8443","ProxyProtocol":2}}}}}"#
        );
    }

    #[test]
    fn only_one_site_has_the_funnel_port() {
        let site = |name: &str| Vhost {
            hosts: [(name.to_owned(), crate::api::routes::Host::default())].into(),
            listeners: [(443, Listener::Https), (80, Listener::Redirect)].into(),
            funnel: true,
            ..Vhost::default()
        };
        let mut wanted = ServeInputs::default();
        to_internet(&mut wanted, &site("a.x.ts.net"), &[(443, at(1)), (80, at(2))].into());
        to_internet(&mut wanted, &site("b.x.ts.net"), &[(443, at(3))].into());
        let text = serde_json::to_string(&config(&wanted)).expect("JSON");
        assert_eq!(text, r#"{"TCP":{"443":{"TCPForward":"127.0.0.1:1","ProxyProtocol":2}},"AllowFunnel":{"a.x.ts.net:443":true}}"#);
        let inside = Vhost { funnel: false, ..site("c.x.ts.net") };
        let sites = [("svc:a", site("a.x.ts.net")), ("svc:b", site("b.x.ts.net")), ("svc:c", inside)];
        let sites: Vhosts = sites.map(|(name, site)| (name.to_owned(), Arc::new(site))).into();
        let funnel_errors = |allowed, shared| {
            funnel_errors(&sites, &ServeConfig::default(), allowed, shared).into_values().map(FunnelError::reason).collect::<Vec<_>>()
        };
        assert_eq!(funnel_errors(true, false), ["PortTaken"]);
        assert_eq!(funnel_errors(true, true), [""; 0]);
        assert_eq!(funnel_errors(false, false), ["NotAllowed", "NotAllowed"]);
        let own = r#"{"TCP":{"443":{"HTTPS":true}},"AllowFunnel":{"${TS_CERT_DOMAIN}:443":true}}"#;
        let own: ServeConfig = serde_json::from_str(own).expect("a config");
        assert_eq!(super::funnel_errors(&Vhosts::new(), &own, false, false), [("node".to_owned(), FunnelError::NotAllowed)].into());
        assert_eq!(super::funnel_errors(&Vhosts::new(), &own, true, false), BTreeMap::new());
    }

    #[test]
    fn draining_disables_funnel_first() {
        let open = ServeInputs { node: [(443, at(1))].into(), funnel: ["a.x.ts.net:443".to_owned()].into(), ..example() };
        let closed = ServeInputs { funnel: BTreeSet::new(), ..open.clone() };
        // In order: normal, shields up, services withdrawn, shields down for the next Pod.
        let phases = [(false, false), (true, false), (true, true), (false, true)];
        let served = phases.map(|(shields_up, withdrawn)| {
            let mut served = config(&open);
            withdraw(&mut served, WithdrawalProgress { shields_up, withdrawn });
            served
        });
        assert_eq!(served, [config(&open), config(&closed), config(&closed), config(&closed)]);
        assert_eq!(steps(&served[0], &served[1]), [config(&closed)], "what answers for what is under way is never taken out");
    }

    #[test]
    fn handlers_served_by_tailscaled_are_passed_through() {
        let tailscaled_config = r#"{"TCP":{"443":{"HTTPS":true}},"Web":{"${TS_CERT_DOMAIN}:443":{"Handlers":{"/":{"Proxy":"http://a/"}}}},
            "Services":{"svc:tcp":{"TCP":{"22":{"TCPForward":"10.0.0.1:22"}}},"svc:web":{"TCP":{"443":{"HTTPS":true}},"Web":{"w:443":{"Handlers":{}}}}}}"#;
        let tailscaled_config: ServeConfig = serde_json::from_str(tailscaled_config).expect("a config");
        let mut config = ServeConfig::default();
        pass(&mut config, &tailscaled_config, None);
        assert_eq!(config.services.keys().collect::<Vec<_>>(), ["svc:tcp"]);
        assert_eq!(config.tcp.len(), 0);
        pass(&mut config, &tailscaled_config, Some(&"one.x.ts.net".to_owned()));
        assert_eq!(config.web.keys().collect::<Vec<_>>(), ["one.x.ts.net:443"]);
        assert_eq!(config.tcp.len(), 1);
    }

    #[test]
    fn unchanged_serve_config_is_not_written() {
        assert_eq!(steps(&config(&example()), &config(&example())), []);
    }

    #[test]
    fn changed_handlers_are_removed_before_they_are_replaced() {
        let stock = r#"{"Services":{"svc:web":{"TCP":{"443":{"HTTPS":true}},"Web":{"web.x.ts.net:443":{"Handlers":{"/":{"Proxy":"http://a/"}}}}},"svc:mail":{"Tun":true}}}"#;
        let stock: ServeConfig = serde_json::from_str(stock).expect("a config");
        let wanted = config(&example());
        let [first, second] = &steps(&stock, &wanted)[..] else { panic!("two steps") };
        assert_eq!(first.services.keys().collect::<Vec<_>>(), ["svc:db"]);
        assert_eq!(*second, wanted);
        let mut moved = example();
        moved.sites.insert("svc:web".to_owned(), [(443, at(9443))].into());
        assert_eq!(steps(&wanted, &config(&moved)), [config(&moved)], "another listener is not another way");
        let node = |handler: TcpHandler| ServeConfig { tcp: [(443, handler)].into(), ..ServeConfig::default() };
        let web = node(TcpHandler { https: true, ..TcpHandler::default() });
        let ours = node(TcpHandler { tcp_forward: "127.0.0.1:1".to_owned(), ..TcpHandler::default() });
        assert_eq!(steps(&web, &ours), [ServeConfig::default(), ours.clone()]);
        assert_eq!(steps(&ServeConfig::default(), &ours), [ours]);
    }
}

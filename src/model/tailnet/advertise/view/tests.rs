use super::*;
use crate::model::base::net::InterfaceName;
use crate::model::base::netmap::SelfNode;
use crate::model::plan::world::World;

const DB: &str = "svc:db";
const WEB: &str = "svc:web";
const ADDRESS: &str = "100.99.1.2";

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Config of an L3 service with this cluster address.
fn forwarded(to: &str) -> Arc<IngressConfig> {
    let text = format!(r#"{{"{DB}":{{"IPv4Mapping":{{"TailscaleServiceIP":"{ADDRESS}","ClusterIP":"{to}"}}}}}}"#);
    Arc::new(IngressConfig::parse(text.as_bytes()).expect("a config"))
}

fn planned(ingress: &Arc<IngressConfig>) -> Arc<Planned> {
    let pod_ips = ["10.0.0.5".parse().expect("an address")].into();
    let world = World { ingress: Arc::clone(ingress), pod_ips, ..World::empty(InterfaceName::tailscale0(), BTreeSet::new()) };
    Arc::new(Planned::new(&world))
}

/// This node, approved for these services; `routed`: with a route to the address of [`DB`].
fn node(approved: &[&str], routed: bool) -> Arc<NetMap> {
    let address: IpAddr = ADDRESS.parse().expect("an address");
    let node = SelfNode {
        services: approved.iter().map(|name| ((*name).to_owned(), [address].into())).collect(),
        routes: if routed { [address.into()].into() } else { BTreeSet::new() },
        ..SelfNode::default()
    };
    Arc::new(NetMap { node: Some(node), ..NetMap::default() })
}

/// A replica with one L3 service in the kernel and in tailscaled's config.
fn kernel() -> AdvertiseView {
    let ingress = forwarded("10.96.0.9");
    AdvertiseView {
        daemon: DaemonReport { running: true, configured: Some(Arc::new(names(&[DB]))), ..DaemonReport::default() },
        served: Some(Arc::default()),
        ruleset: AppliedRuleset { planned: Some(planned(&ingress)), ..AppliedRuleset::default() },
        ingress: Some(ingress),
        netmap: Some(node(&[], false)),
        ..AdvertiseView::default()
    }
}

/// A replica with one virtual host that writes the serve config.
fn site(status: SiteStatus) -> AdvertiseView {
    let vhost = Vhost {
        hosts: [("web.x.ts.net".to_owned(), crate::api::routes::Host::default())].into(),
        listeners: [(443, Listener::Https), (80, Listener::Http)].into(),
        ..Vhost::default()
    };
    let served = ServeContent { sites: Arc::new([(WEB.to_owned(), Arc::new(vhost))].into()), ..ServeContent::default() };
    AdvertiseView {
        mode: AdvertiseMode { serves: true, ..AdvertiseMode::default() },
        daemon: DaemonReport { running: true, configured: Some(Arc::new(names(&[WEB]))), ..DaemonReport::default() },
        served: Some(Arc::new(served)),
        ingress: Some(Arc::default()),
        netmap: Some(node(&[], false)),
        sites: Arc::new([(WEB.to_owned(), status)].into()),
        ..AdvertiseView::default()
    }
}

fn listening(certified: bool) -> SiteStatus {
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let missing = if certified { BTreeSet::new() } else { names(&["web.x.ts.net"]) };
    SiteStatus { ports: [(443, at(8443)), (80, at(8080))].into(), certified, missing, ..SiteStatus::default() }
}

fn status(view: &AdvertiseView) -> AdvertiseStatus {
    view.status(&view.inputs())
}

/// Reason why a service is not advertised; empty if it is.
fn waits(view: &AdvertiseView, name: &str) -> String {
    status(view).waiting.get(name).cloned().unwrap_or_default()
}

#[test]
fn view_is_incomplete_before_both_configs_are_read() {
    let view = AdvertiseView { ingress: None, ..kernel() };
    assert!(!view.is_complete() && view.serve_config().is_none());
    assert!(!AdvertiseView { served: None, ..kernel() }.is_complete());
    assert!(kernel().is_complete());
}

#[test]
fn l4_service_is_advertised_after_its_mapping_is_applied() {
    let view = kernel();
    assert_eq!(view.inputs().advertised().services, names(&[DB]));
    let without = |ruleset| AdvertiseView { ruleset, ..kernel() };
    let unwritten = without(AppliedRuleset::default());
    assert_eq!(unwritten.inputs().advertised().services, names(&[]));
    assert!(unwritten.inputs().advertised().withholds(&format!("{ADDRESS}/32")), "nor is its route");
    assert_eq!(waits(&unwritten, DB), "the kernel holds no rules yet");
    let older = Some(planned(&forwarded("10.96.0.8")));
    let behind = without(AppliedRuleset { planned: older.clone(), fault: Some("no space".to_owned()), ..AppliedRuleset::default() });
    assert_eq!(waits(&behind, DB), "the kernel does not hold its mapping yet: no space");
    let damaged = without(AppliedRuleset { planned: kernel().ruleset.planned, damaged: true, fault: Some("busy".to_owned()) });
    assert_eq!(waits(&damaged, DB), "another program changed the ruleset and it cannot be repaired: busy");
}

#[test]
fn a_rejected_service_waits_with_its_reason() {
    let mapping = format!(r#"{{"IPv4Mapping":{{"TailscaleServiceIP":"{ADDRESS}","ClusterIP":"10.96.0.9"}}}}"#);
    let both = format!(r#"{{"svc:cache":{mapping},"{DB}":{mapping}}}"#);
    let ingress = Arc::new(IngressConfig::parse(both.as_bytes()).expect("a config"));
    let ruleset = AppliedRuleset { planned: Some(planned(&ingress)), ..AppliedRuleset::default() };
    let view = AdvertiseView { ingress: Some(ingress), ruleset, ..kernel() };
    assert_eq!(view.inputs().advertised().services, names(&[]));
    assert!(waits(&view, DB).contains(ADDRESS), "{}", waits(&view, DB));
}

#[test]
fn site_is_advertised_after_listener_and_serve_config_are_ready() {
    let absent = AdvertiseView { sites: Arc::default(), ..site(SiteStatus::default()) };
    assert_eq!(waits(&absent, WEB), "it has no listener yet");
    let fault = SiteStatus { faults: [(443, "address in use".to_owned())].into(), certified: true, ..SiteStatus::default() };
    assert_eq!(waits(&site(fault), WEB), "address in use");

    let mut view = site(listening(true));
    let config = view.serve_config().expect("a config");
    assert_eq!(config.services[WEB].tcp.keys().copied().collect::<Vec<_>>(), [80, 443]);
    assert_eq!(waits(&view, WEB), "tailscaled has not accepted its serve config yet");
    view.serving = Some(Arc::new(config));
    assert_eq!(view.inputs().advertised().services, names(&[WEB]));
}

/// A replica whose kernel may terminate connections to the site at these addresses.
fn kernel_site(addresses: &[&str]) -> AdvertiseView {
    let mut status = listening(true);
    status.kernel = [(443, 40_443), (80, 40_080)].into();
    let mut view = site(status);
    let served = view.served.as_mut().map(Arc::make_mut).expect("sites");
    let vhost = Arc::make_mut(&mut served.sites).get_mut(WEB).map(Arc::make_mut).expect("a site");
    vhost.addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    view
}

/// The plan in the kernel becomes that of the view.
fn apply(view: &mut AdvertiseView) {
    let own = SelfNode { addresses: vec!["100.64.0.1".parse().expect("an address")], ..SelfNode::default() };
    let netmap = Some(Arc::new(NetMap { node: Some(own), ..NetMap::default() }));
    let world = World { netmap, listeners: Arc::new(view.listeners()), ..World::empty(InterfaceName::tailscale0(), BTreeSet::new()) };
    view.ruleset.planned = Some(Arc::new(Planned::new(&world)));
}

#[test]
fn site_in_the_kernel_is_advertised_after_listener_rules_and_serve_config() {
    let mut view = kernel_site(&[ADDRESS]);
    let config = view.serve_config().expect("a config");
    assert_eq!(serde_json::to_string(&config).expect("JSON"), r#"{"Services":{"svc:web":{"Tun":true}}}"#);
    assert_eq!(waits(&view, WEB), "the kernel holds no rules yet");
    view.ruleset.planned = Some(planned(&Arc::default()));
    assert_eq!(waits(&view, WEB), "the kernel does not hold its mapping yet");
    apply(&mut view);
    assert_eq!(waits(&view, WEB), "tailscaled has not accepted its serve config yet");
    view.serving = site(listening(true)).serve_config().map(Arc::new);
    assert_eq!(waits(&view, WEB), "tailscaled has not accepted its serve config yet", "the former delivery is none");
    view.serving = Some(Arc::new(config));
    assert_eq!(view.inputs().advertised().services, names(&[WEB]));
    let disabled = AdvertiseView { sites: Arc::new([(WEB.to_owned(), listening(true))].into()), ..view.clone() };
    assert_eq!(waits(&disabled, WEB), "tailscaled has not accepted its serve config yet", "the former delivery is none");
    // A further port interrupts nothing.
    let ports = Arc::make_mut(&mut view.sites).get_mut(WEB).expect("a site");
    ports.ports.insert(8443, SocketAddr::from(([127, 0, 0, 1], 9443)));
    ports.kernel.insert(8443, 40_500);
    assert_eq!(view.inputs().advertised().services, names(&[WEB]));
    let fault = AppliedRuleset { fault: Some("busy".to_owned()), damaged: true, ..view.ruleset.clone() };
    assert!(waits(&AdvertiseView { ruleset: fault, ..view }, WEB).contains("busy"));
}

#[test]
fn only_served_ports_have_a_listener_in_the_kernel() {
    let ports = |view: &AdvertiseView| view.listeners().remove(WEB).unwrap_or_default().ports.into_iter().collect::<Vec<_>>();
    let mut view = kernel_site(&[ADDRESS]);
    assert_eq!(ports(&view), [(80, 40_080), (443, 40_443)]);
    Arc::make_mut(&mut view.sites).get_mut(WEB).expect("a site").certified = false;
    assert_eq!(ports(&view), [(80, 40_080)], "no name has a certificate");
}

#[test]
fn site_without_known_addresses_or_listeners_stays_with_tailscaled() {
    let mut disabled = kernel_site(&[ADDRESS]);
    disabled.sites = Arc::new([(WEB.to_owned(), listening(true))].into());
    // A serve config of the Tailscale operator names no addresses, nor does a control plane without Tailscale Services.
    let mut on_node = kernel_site(&[ADDRESS]);
    on_node.mode.on_node = true;
    on_node.sites = Arc::new([(shared_host::NAME.to_owned(), on_node.sites[WEB].clone())].into());
    for (what, view) in [("disabled", disabled), ("addresses unknown", kernel_site(&[])), ("on the node", on_node)] {
        let config = view.serve_config().expect("a config");
        let handlers = if view.mode.on_node { config.tcp.len() } else { config.services[WEB].tcp.len() };
        assert!(handlers == 2 && view.listeners().is_empty(), "{what}: {config:?}");
    }
}

#[test]
fn port_with_the_proxy_protocol_stays_with_tailscaled() {
    let text =
        format!(r#"{{"{DB}":{{"IPv4Mapping":{{"TailscaleServiceIP":"100.99.1.9","ClusterIP":"10.96.0.9"}},"proxyProtocol":[5432]}}}}"#);
    let view =
        AdvertiseView { ingress: Some(Arc::new(IngressConfig::parse(text.as_bytes()).expect("a config"))), ..kernel_site(&[ADDRESS]) };
    let config = view.serve_config().expect("a config");
    assert!(config.services[WEB].tun && config.services[DB].tcp[&5432].tcp_forward == "10.96.0.9:5432", "{config:?}");
}

#[test]
fn advertised_site_keeps_its_delivery() {
    let mut view = kernel_site(&[ADDRESS]);
    view.serving = site(listening(true)).serve_config().map(Arc::new);
    assert!(view.serve_config().expect("a config").services[WEB].tun, "not advertised");
    view.daemon.advertised = Arc::new(names(&[WEB]));
    assert!(view.serve_config().expect("a config").services[WEB].tun, "not approved");
    view.netmap = Some(node(&[WEB], false));
    assert_eq!(view.serve_config().expect("a config").services[WEB].tcp.len(), 2, "a change would reset its connections");
    assert!(view.listeners().is_empty());
    assert_eq!(view.inputs().advertised().services, names(&[WEB]));
}

#[test]
fn funnel_of_a_site_in_the_kernel_uses_tailscaled() {
    let mut view = kernel_site(&[ADDRESS]);
    let served = view.served.as_mut().map(Arc::make_mut).expect("sites");
    Arc::make_mut(&mut served.sites).get_mut(WEB).map(Arc::make_mut).expect("a site").funnel = true;
    let config = view.serve_config().expect("a config");
    assert!(config.services[WEB].tun);
    assert_eq!((config.tcp[&443].tcp_forward.as_str(), config.tcp[&443].proxy_protocol), ("127.0.0.1:8443", 2));
    assert!(config.allow_funnel["web.x.ts.net:443"]);
}

#[test]
fn site_without_certificate_serves_only_http() {
    let view = site(listening(false));
    assert_eq!(view.serve_config().expect("a config").services[WEB].tcp.keys().copied().collect::<Vec<_>>(), [80]);
    let mut status = listening(false);
    status.ports.remove(&80);
    let view = site(status);
    assert_eq!(view.serve_config().expect("a config").services.len(), 0);
    assert_eq!(waits(&view, WEB), "no certificate for web.x.ts.net yet");
}

#[test]
fn advertised_service_keeps_its_handler_after_site_removal() {
    let before = site(listening(true));
    let serving = before.serve_config().map(Arc::new);
    let mut view = AdvertiseView { served: Some(Arc::default()), serving, ..before };
    view.daemon.advertised = Arc::new(names(&[WEB]));
    assert!(view.serve_config().expect("a config").services.contains_key(WEB));
    view.daemon.advertised = Arc::default();
    assert_eq!(view.serve_config().expect("a config").services.len(), 0);
}

#[test]
fn a_service_waits_for_tailscaled_and_then_for_approval() {
    let mut view = kernel();
    assert_eq!(waits(&view, DB), "tailscaled does not advertise it yet");
    view.daemon.advertised = Arc::new(names(&[DB]));
    assert_eq!(waits(&view, DB), "the control server has not approved this node for it");
    assert_eq!(status(&view).unapproved, Some(names(&[DB])));
    assert_eq!(status(&view).active, names(&[DB]), "whoever advertises may get traffic");
    view.netmap = Some(node(&[DB], false));
    assert_eq!((waits(&view, DB), status(&view).approved), (String::new(), names(&[DB])));
    assert_eq!(status(&view).unapproved, Some(names(&[])));
    let away = AdvertiseView { daemon: DaemonReport { running: false, ..view.daemon.clone() }, ..view.clone() };
    assert_eq!((status(&away).approved, status(&away).active), (names(&[]), names(&[])), "nothing comes through a stopped tailscaled");
    assert_eq!(status(&away).unapproved, None, "not known while tailscaled is away");
    let no_config = DaemonReport { configured: None, ..DaemonReport::default() };
    let mode = AdvertiseMode { auto_advertise: true, serves: true, on_node: false };
    let mut view = AdvertiseView { mode, daemon: DaemonReport { running: true, ..no_config }, ..site(listening(true)) };
    view.serving = view.serve_config().map(Arc::new);
    assert!(waits(&view, WEB).starts_with("tailscaled has no config file"), "{}", waits(&view, WEB));
}

#[test]
fn approved_route_counts_without_a_tailscale_service() {
    let view = AdvertiseView { netmap: Some(node(&[], true)), ..kernel() };
    assert_eq!(status(&view).active, names(&[DB]));
    assert_eq!(status(&kernel()).active, names(&[]));
}

#[test]
fn a_leaving_replica_advertises_nothing_and_withholds_its_routes() {
    let withdrawal = WithdrawalProgress { shields_up: true, withdrawn: true };
    let advertised = AdvertiseView { withdrawal, ..kernel() }.inputs().advertised();
    assert!(advertised.services.is_empty() && advertised.shields_up && advertised.withholds(&format!("{ADDRESS}/32")));
}

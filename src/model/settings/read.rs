//! Settings other than those of tailscaled (see [`super::daemon`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::front_end::front_end;
use super::issuing::issuing;
use super::source::SettingSource;
use super::{
    ActiveLease, BY_ADDRESS, CertShare, ConfigInput, Faults, FirewallMode, Flags, HttpListener, INIT, Init, Kube, Log, ObjectName, Pod,
    SettingFault, Settings, StateOut, TailnetMode, daemon,
};
use crate::api::names;
use crate::model::api_server::upstream::ApiServerUpstream;
use crate::model::base::go_values;
use crate::model::base::net::{Family, InterfaceName};
use crate::model::base::netmap::Fqdn;
use crate::model::plan::targets::TargetPolicy;
use crate::model::plan::world::Single;

/// Variables that operators set but that have no effect here, with reasons.
const WITHOUT_MEANING: [(&str, &str); 3] = [
    ("TS_EGRESS_SERVICES_CONFIG_PATH", "TS_EGRESS_PROXIES_CONFIG_PATH took its place"),
    ("TS_TEST_FAKE_NETFILTER", "there is no fake of the kernel here"),
    ("TS_TEST_FAKE_NETFILTER_6", "there is no fake of the kernel here"),
];

pub(super) fn settings(env: &BTreeMap<String, String>, flags: &Flags) -> Result<Settings, Faults> {
    let mut source = SettingSource::new(env, flags);
    let source = &mut source;
    let pod = pod(source);
    let targets = targets(source, pod.node_ip);
    let single = single(source);
    let egress = input(source, "TS_EGRESS_PROXIES_CONFIG_PATH", "TAILYARD_EGRESS_CONFIGMAP");
    let ingress = l3_ingress(source);
    let serve = input(source, "TS_SERVE_CONFIG", "TAILYARD_INGRESS_CONFIGMAP");
    let cluster_via_ingress = source.boolean("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS", false);
    let cert_share = cert_share(source, &pod);
    let (kube, state) = (kube(source), state(source));
    let api_server = api_server(source, kube.as_ref());
    let connector = source.text("TS_INTERNAL_APP") == Some(names::CONNECTOR_APP);
    let in_kernel = single != Single::None || egress.is_some() || ingress.is_some() || cluster_via_ingress || connector;
    let whole_pod = matches!(single, Single::TailnetIp(_) | Single::TailnetFqdn(_));
    let tailnet =
        tailnet(source, &daemon::DaemonContext { in_kernel, state: &state, cert_share, pod: &pod, whole_pod, cluster_via_ingress });
    homes(source, kube.is_some(), &state, &tailnet);
    via_ingress(source, cluster_via_ingress);
    let pod_sites = pod_sites(source, &pod);
    let active_lease = active_lease(source, &pod, kube.is_some());
    let http = http(source, egress.is_some());
    let health_addr = health_addr(source);
    note_ineffective(source);
    let settings = Settings {
        tailnet,
        interface: source
            .parsed("TAILYARD_TAILNET_INTERFACE", "the name of an interface", |text| text.parse().ok())
            .unwrap_or_else(InterfaceName::tailscale0),
        pod,
        single,
        connector,
        cluster_via_ingress,
        targets,
        config_dir: source.path(daemon::CONFIG_DIR),
        egress,
        ingress,
        serve,
        k8s_proxy: None,
        node_sites: source.boolean("TAILYARD_SERVE_ON_NODE_ADDRESS", false),
        pod_sites,
        cert_share,
        issuing: issuing(source),
        auto_advertise: source.boolean("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", true),
        active_lease,
        state,
        kube,
        api_server,
        front_end: front_end(source),
        backend: backend(source),
        http,
        health_addr,
        admin_addr: admin_addr(source),
        drain_timeout: source.duration("TAILYARD_DRAIN_TIMEOUT"),
        unreachable_note: source.path("TAILYARD_UNREACHABLE_NOTE"),
        log: log(source),
        init: source.parsed(INIT, "a number, and why it is not 0", init),
        notes: std::mem::take(&mut source.notes),
    };
    if source.faults.is_empty() { Ok(settings) } else { Err(Faults(std::mem::take(&mut source.faults))) }
}

/// Source of the L3 ingress services. In userspace mode the virtual hosts of the `ConfigMap` are served, and nothing is forwarded.
fn l3_ingress(source: &mut SettingSource<'_>) -> Option<ConfigInput> {
    let sites_alone = source.text("TS_USERSPACE").and_then(go_values::boolean) == Some(true)
        && source.text("TS_SERVE_CONFIG").is_some()
        && source.text("TS_INGRESS_PROXIES_CONFIG_PATH").is_none();
    if sites_alone { None } else { input(source, "TS_INGRESS_PROXIES_CONFIG_PATH", "TAILYARD_INGRESS_CONFIGMAP") }
}

fn note_ineffective(source: &mut SettingSource<'_>) {
    for (variable, why) in WITHOUT_MEANING {
        if source.text(variable).is_some() {
            source.notes.push(format!("{variable} has no effect: {why}"));
        }
    }
}

fn init(text: &str) -> Option<Init> {
    let (restarts, why) = text.split_once(' ').unwrap_or((text, ""));
    Some(Init { restarts: restarts.parse().ok()?, why: why.to_owned() })
}

/// Whether the process runs in a cluster: the kubelet sets this variable in every container.
fn in_cluster(source: &SettingSource<'_>) -> bool {
    source.text("KUBERNETES_SERVICE_HOST").is_some()
}

fn pod(source: &mut SettingSource<'_>) -> Pod {
    let list = if source.text("POD_IPS").is_some() { "POD_IPS" } else { "POD_IP" };
    let one_of_each = |text: &str| -> Option<BTreeSet<IpAddr>> {
        let ips: Vec<IpAddr> = text.split(',').map(|ip| ip.trim().parse().ok()).collect::<Option<_>>()?;
        // The last address of each family counts, as in the operator.
        let families: BTreeMap<_, _> = ips.iter().map(|ip| (Family::of(*ip), *ip)).collect();
        (ips.len() <= 2).then(|| families.into_values().collect())
    };
    let ips = source.parsed(list, "a list of at most two addresses, separated by a comma", one_of_each);
    Pod {
        name: source.owned("POD_NAME"),
        object: source.owned("TAILYARD_POD_NAME").or_else(|| source.owned("POD_NAME")),
        uid: source.owned("POD_UID"),
        node: source.owned("NODE_NAME"),
        node_ip: source.parsed("NODE_IP", "an IP address", |text| text.parse().ok()),
        ips: ips.unwrap_or_default(),
    }
}

fn single(source: &mut SettingSource<'_>) -> Single {
    const MODES: [&str; 4] = ["TS_DEST_IP", "TS_EXPERIMENTAL_DEST_DNS_NAME", "TS_TAILNET_TARGET_IP", "TS_TAILNET_TARGET_FQDN"];
    for (index, first) in MODES.iter().enumerate() {
        for second in MODES.iter().skip(index + 1) {
            source.exclusive(first, second);
        }
    }
    let address = |text: &str| text.parse::<IpAddr>().ok();
    let [dest_ip, dest_dns, target_ip, target_fqdn] = MODES;
    let other = source.parsed("TAILYARD_OTHER_DEST_IP", "an IP address", address);
    let dest_ip = source.parsed(dest_ip, "an IP address", address);
    let dest_ip = dest_ip.map(|ip| Single::DestIp { ip, other: other.filter(|other| other.is_ipv4() != ip.is_ipv4()) });
    let dest_dns = source.owned(dest_dns).map(Single::DestDns);
    let target_ip = source.parsed(target_ip, "an IP address", address).map(Single::TailnetIp);
    let target_fqdn = source.parsed(target_fqdn, "a name of the tailnet", Fqdn::new).map(Single::TailnetFqdn);
    dest_ip.or(dest_dns).or(target_ip).or(target_fqdn).unwrap_or_default()
}

/// The API server is known by its address, as a Pod does not know the cluster's Service range.
fn targets(source: &mut SettingSource<'_>, node: Option<IpAddr>) -> TargetPolicy {
    let (allowed, denied) = (nets(source, "TAILYARD_ALLOWED_TARGETS"), nets(source, "TAILYARD_DENIED_TARGETS"));
    TargetPolicy { allowed, denied, api_server: daemon::api_server(source), node, ..TargetPolicy::default() }
}

pub(super) fn nets(source: &mut SettingSource<'_>, setting: &'static str) -> Vec<IpNet> {
    source.list(setting, "a list of CIDRs such as 10.96.0.0/12,fd00:96::/112", |net| net.parse::<IpNet>().ok())
}

pub(super) fn object_name(text: &str) -> Option<ObjectName> {
    let (namespace, name) = text.split_once('/')?;
    let plain =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'));
    (plain(namespace) && plain(name)).then(|| ObjectName { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn input(source: &mut SettingSource<'_>, path: &str, configmap: &str) -> Option<ConfigInput> {
    let configmap = source.parsed(configmap, "a ConfigMap as NAMESPACE/NAME", object_name);
    let input = ConfigInput { path: source.path(path), configmap };
    (input != ConfigInput::default()).then_some(input)
}

fn cert_share(source: &mut SettingSource<'_>, pod: &Pod) -> CertShare {
    if !source.boolean("TS_EXPERIMENTAL_CERT_SHARE", false) {
        return CertShare::Off;
    }
    let first = pod.name.as_deref().is_some_and(|name| name.ends_with("-0"));
    if first { CertShare::ReadWrite } else { CertShare::ReadOnly }
}

pub(super) fn kube(source: &mut SettingSource<'_>) -> Option<Kube> {
    let by_address = source.boolean(BY_ADDRESS, true);
    let host = source.text("KUBERNETES_SERVICE_HOST")?;
    let port = source.text("KUBERNETES_SERVICE_PORT_HTTPS").or_else(|| source.text("KUBERNETES_SERVICE_PORT"));
    let server = match (by_address, port) {
        (true, Some(port)) if host.contains(':') => format!("https://[{host}]:{port}"),
        (true, Some(port)) => format!("https://{host}:{port}"),
        _ => "https://kubernetes.default.svc".to_owned(),
    };
    Some(Kube { server })
}

/// Its credentials are those of the Pod, so that it needs a cluster.
fn api_server(source: &mut SettingSource<'_>, kube: Option<&Kube>) -> Option<ApiServerUpstream> {
    const SETTING: &str = "TAILYARD_API_SERVER_URL";
    let form = "a URL of at most 2,048 bytes such as https://api.example:6443/clusters/c-1, without user, query and dot segments";
    source.needs(SETTING, kube.is_some(), "a cluster (KUBERNETES_SERVICE_HOST is unset)");
    let given = source.parsed(SETTING, form, ApiServerUpstream::read);
    given.or_else(|| ApiServerUpstream::read(&kube?.server))
}

fn state(source: &mut SettingSource<'_>) -> StateOut {
    if let Some(file) = source.path("TAILYARD_STATE_FILE") {
        return StateOut::File(file);
    }
    let secret = source.raw("TS_KUBE_SECRET").unwrap_or(if in_cluster(source) { "tailscale" } else { "" }).to_owned();
    if secret.is_empty() {
        return StateOut::None;
    }
    if !in_cluster(source) {
        let setting = source.spelled("TS_KUBE_SECRET");
        source.notes.push(format!("{setting}={secret:?} means nothing outside a cluster (KUBERNETES_SERVICE_HOST is unset)"));
        return StateOut::None;
    }
    StateOut::Secret(secret)
}

fn tailnet(source: &mut SettingSource<'_>, context: &daemon::DaemonContext<'_>) -> TailnetMode {
    let file = |text: &str| match text.split_once(':') {
        None if text == "tailscaled" => Some(None),
        Some(("static", file)) if !file.is_empty() => Some(Some(file.into())),
        _ => None,
    };
    match source.parsed("TAILYARD_TAILNET", "tailscaled or static:FILE", file).flatten() {
        Some(file) => TailnetMode::Static(file),
        None => TailnetMode::Tailscaled(Box::new(daemon::settings(source, context))),
    }
}

/// Validates what a group's config requires: a place to report its status to the operator, or a tailnet without operator.
fn homes(source: &mut SettingSource<'_>, in_cluster: bool, state: &StateOut, tailnet: &TailnetMode) {
    let home = *state != StateOut::None || matches!(tailnet, TailnetMode::Static(_));
    let needs = "a place for this replica's state: TS_KUBE_SECRET in a cluster, or --state-file";
    source.needs("TS_EGRESS_PROXIES_CONFIG_PATH", home, needs);
    source.needs("TS_INGRESS_PROXIES_CONFIG_PATH", home, needs);
    source.needs("TAILYARD_EGRESS_CONFIGMAP", in_cluster, "a cluster (KUBERNETES_SERVICE_HOST is unset)");
    source.needs("TAILYARD_INGRESS_CONFIGMAP", in_cluster, "a cluster (KUBERNETES_SERVICE_HOST is unset)");
}

fn pod_sites(source: &mut SettingSource<'_>, pod: &Pod) -> BTreeSet<IpAddr> {
    const SETTING: &str = "TAILYARD_SERVE_ON_POD_ADDRESS";
    if !source.boolean(SETTING, false) {
        return BTreeSet::new();
    }
    let serves = source.text("TS_SERVE_CONFIG").is_some();
    source.needs(SETTING, serves, "TS_SERVE_CONFIG");
    source.needs(SETTING, !pod.ips.is_empty(), "POD_IPS");
    pod.ips.clone()
}

fn active_lease(source: &mut SettingSource<'_>, pod: &Pod, in_cluster: bool) -> Option<ActiveLease> {
    const SETTING: &str = "TAILYARD_ACTIVE_LEASE";
    let name = source.owned(SETTING)?;
    source.needs(SETTING, in_cluster, "a cluster (KUBERNETES_SERVICE_HOST is unset)");
    source.needs(SETTING, pod.uid.is_some(), "POD_UID");
    Some(ActiveLease { name, pod_uid: pod.uid.clone()? })
}

fn via_ingress(source: &mut SettingSource<'_>, on: bool) {
    const SETTING: &str = "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS";
    if on {
        source.needs(SETTING, source.text("TS_SERVE_CONFIG").is_some(), "TS_SERVE_CONFIG");
        source.needs(SETTING, source.text("POD_IP").is_some(), "POD_IP");
    }
}

fn http(source: &mut SettingSource<'_>, egress: bool) -> Option<HttpListener> {
    const ADDRESS: &str = "TS_LOCAL_ADDR_PORT";
    let flag = source.by_flag(ADDRESS);
    let metrics = source.boolean("TS_ENABLE_METRICS", false) || flag;
    let health = source.boolean("TS_ENABLE_HEALTH_CHECK", false) || flag;
    if !(metrics || health || egress) {
        return None;
    }
    let everywhere = SocketAddr::from(([0_u16; 8], 9002));
    let pod = source.text("POD_IP");
    let faults = source.faults.len();
    let address = source.address_port(ADDRESS, pod).unwrap_or(everywhere);
    let preshutdown = egress && has_hook(source);
    (source.faults.len() == faults).then_some(HttpListener { address, metrics, preshutdown })
}

/// Whether the Pod has the preStop hook: true in the Tailscale operator's egress groups, false in those of our reconciler.
fn has_hook(source: &mut SettingSource<'_>) -> bool {
    source.text("TS_INTERNAL_APP") == Some("k8s-operator-proxygroup-egress") && !source.boolean("TAILYARD_CONFIG_FROM_API", false)
}

fn health_addr(source: &mut SettingSource<'_>) -> Option<SocketAddr> {
    const SETTING: &str = "TS_HEALTHCHECK_ADDR_PORT";
    let address = source.address_port(SETTING, None)?;
    source.notes.push(format!("{SETTING} is deprecated: TS_ENABLE_HEALTH_CHECK and TS_LOCAL_ADDR_PORT took its place"));
    if source.boolean("TS_ENABLE_HEALTH_CHECK", false) {
        source.faults.push(SettingFault::Exclusive { first: SETTING.to_owned(), second: "TS_ENABLE_HEALTH_CHECK".to_owned() });
    }
    Some(address)
}

pub(super) fn admin_addr(source: &mut SettingSource<'_>) -> Option<SocketAddr> {
    const SETTING: &str = "TAILYARD_ADMIN_ADDR";
    if source.raw(SETTING).is_some_and(str::is_empty) {
        return None;
    }
    source.address_port(SETTING, None)
}

/// An invalid flag is a fault; an invalid variable counts as unset, since it is tailscaled's, which tolerates it as well.
fn backend(source: &mut SettingSource<'_>) -> FirewallMode {
    const SETTING: &str = "TS_DEBUG_FIREWALL_MODE";
    if source.by_flag(SETTING) {
        return source
            .parsed(SETTING, "one of auto, nftables, iptables, iptables-nft, iptables-legacy", FirewallMode::named)
            .unwrap_or_default();
    }
    let text = source.text(SETTING).unwrap_or_default();
    FirewallMode::named(text).unwrap_or_else(|| {
        source.notes.push(format!("{SETTING}={text:?} is not auto, nftables or iptables, and counts as unset"));
        FirewallMode::Auto
    })
}

pub(super) fn log(source: &mut SettingSource<'_>) -> Log {
    Log {
        json: source.one_of("TAILYARD_LOG_FORMAT", "text or json", &[("text", false), ("json", true)]).unwrap_or_default(),
        filter: source.owned("TAILYARD_LOG_FILTER").unwrap_or_default(),
    }
}

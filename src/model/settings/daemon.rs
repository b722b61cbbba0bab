//! Settings of tailscaled: start and login.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::source::SettingSource;
use super::{BY_ADDRESS, CertShare, Pod, SettingFault, StateOut};
use crate::model::base::go_values;
use crate::model::config::fingerprint64;
use crate::model::tailnet::supervise::{DaemonSettings, Login, Secret, StateStore, TwoStep};

/// Settings that are read before those of tailscaled.
pub(super) struct DaemonContext<'a> {
    /// Whether a setting requires a kernel TUN device.
    pub(super) in_kernel: bool,
    pub(super) state: &'a StateOut,
    pub(super) cert_share: CertShare,
    pub(super) pod: &'a Pod,
    /// Whether all traffic to the Pod goes to the tailnet, except to the Pod's own ports.
    pub(super) whole_pod: bool,
    /// Whether traffic to the Pod's addresses is forwarded to the serve listeners.
    pub(super) cluster_via_ingress: bool,
}

/// Range of ports for tailscaled: above Linux' ephemeral ports.
const LASTING: std::ops::RangeInclusive<u16> = 61_000..=u16::MAX;
/// Default WireGuard port of tailscaled.
const WIREGUARD_PORT: u16 = 41641;

pub(super) const CONFIG_DIR: &str = "TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR";
const FROM_API: &str = "TAILYARD_CONFIG_FROM_API";
const GRO: &str = "TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS";
/// Whether tailscaled reports listening ports to a tailnet that collects endpoints.
const PORTLIST: &str = "TS_PORTLIST";
/// Whether tailscaled's serve listeners take connections from all interfaces: since 1.104 they are bound to the tunnel device.
const ALL_INTERFACES: &str = "TS_SERVE_ALLOW_ALL_INTERFACES";

pub(super) fn settings(source: &mut SettingSource<'_>, context: &DaemonContext<'_>) -> DaemonSettings {
    let userspace = userspace(source, context.in_kernel);
    let extra_args = source.words("TS_TAILSCALED_EXTRA_ARGS");
    let own_debug = extra_args.iter().any(|arg| arg == "--debug" || arg.starts_with("--debug="));
    let debug_addr = source.address_port("TS_DEBUG_ADDR_PORT", None).filter(|_| !own_debug);
    let udp_gro_forwarding = source.boolean(GRO, false);
    if udp_gro_forwarding {
        source.needs(GRO, !userspace, "TS_USERSPACE=false");
    }
    let fill_config = source.boolean(FROM_API, false);
    if fill_config {
        source.needs(FROM_API, source.text(CONFIG_DIR).is_some(), CONFIG_DIR);
        source.needs(FROM_API, context.pod.name.is_some(), "POD_NAME");
    }
    let mut env = BTreeMap::new();
    if let Some(mode) = context.cert_share.mode() {
        env.insert("TS_CERT_SHARE_MODE".to_owned(), mode.to_owned());
    }
    let chosen = source.text("PORT").and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    // A proxy that forwards all ports could not distinguish a port of tailscaled's own choice from forwarded ones.
    let port = chosen.unwrap_or_else(|| if context.whole_pod { WIREGUARD_PORT } else { lasting_port(context.pod) });
    env.insert("PORT".to_owned(), port.to_string());
    // To report the ports of the Pod it would walk the kernel's table of all sockets every second.
    if source.text(PORTLIST).is_none() {
        env.insert(PORTLIST.to_owned(), "false".to_owned());
    }
    if context.cluster_via_ingress && source.text(ALL_INTERFACES).is_none() {
        env.insert(ALL_INTERFACES.to_owned(), "true".to_owned());
    }
    if reaches_api_by_address(source) {
        env.insert(BY_ADDRESS.to_owned(), "true".to_owned());
        // With a UID it first checks, by the API server's name, whether it may write Events of the Pod.
        env.insert("POD_UID".to_owned(), String::new());
    }
    DaemonSettings {
        tailscaled: source.path("TAILYARD_TAILSCALED").unwrap_or_default(),
        tailscale: source.path("TAILYARD_TAILSCALE").unwrap_or_default(),
        socket: source.path("TS_SOCKET").unwrap_or_else(|| "/tmp/tailscaled.sock".into()),
        state: store(source, context.state),
        userspace,
        socks5: source.owned("TS_SOCKS5_SERVER"),
        http_proxy: source.owned("TS_OUTBOUND_HTTP_PROXY_LISTEN"),
        debug_addr: debug_addr.map(|address: SocketAddr| address.to_string()),
        extra_args,
        env,
        fill_config,
        login: login(source),
        boot_timeout: source.duration("TS_BOOT_TIMEOUT"),
        udp_gro_forwarding,
        cluster_ips: context.pod.ips.iter().copied().chain(context.pod.node_ip).chain(api_server(source)).collect(),
    }
}

/// Whether tailscaled can use the address of the API server for its state, so that a lost DNS server does not delay its start. It cannot use
/// an IPv6 address.
fn reaches_api_by_address(source: &mut SettingSource<'_>) -> bool {
    let is_ipv4 = source.text("KUBERNETES_SERVICE_HOST").is_some_and(|host| host.parse::<Ipv4Addr>().is_ok());
    is_ipv4 && source.text("KUBERNETES_SERVICE_PORT_HTTPS").is_some() && source.boolean(BY_ADDRESS, true)
}

/// Port that remains the same when tailscaled restarts: for some seconds a peer sends to the endpoint of the previous process. It differs
/// between Pods: if two Pods of one machine send from the same port to the same peer, the machine's source NAT assigns other ports.
/// tailscaled selects another port if it is taken.
fn lasting_port(pod: &Pod) -> u16 {
    let who = format!("{:?} {:?}", pod.name, pod.ips);
    let spread = u64::from(LASTING.end() - LASTING.start()) + 1;
    u16::try_from(fingerprint64(who.as_bytes()) % spread).map_or(*LASTING.start(), |offset| LASTING.start() + offset)
}

/// Userspace networking is the default, except with settings that require kernel forwarding: then only an explicit `TS_USERSPACE` that
/// contradicts them is a fault.
fn userspace(source: &mut SettingSource<'_>, in_kernel: bool) -> bool {
    const NEED_THE_KERNEL: [&str; 9] = [
        "TS_DEST_IP",
        "TS_EXPERIMENTAL_DEST_DNS_NAME",
        "TS_TAILNET_TARGET_IP",
        "TS_TAILNET_TARGET_FQDN",
        "TS_EGRESS_PROXIES_CONFIG_PATH",
        "TAILYARD_EGRESS_CONFIGMAP",
        "TS_INGRESS_PROXIES_CONFIG_PATH",
        "TAILYARD_INGRESS_CONFIGMAP",
        "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS",
    ];
    let Some(userspace) = source.tristate("TS_USERSPACE") else { return !in_kernel };
    if userspace && in_kernel {
        for setting in NEED_THE_KERNEL {
            let switched_off = source.text(setting).and_then(go_values::boolean) == Some(false);
            source.needs(setting, switched_off, "TS_USERSPACE=false");
        }
    }
    userspace
}

fn store(source: &SettingSource<'_>, state: &StateOut) -> StateStore {
    let dir: Option<PathBuf> = source.path("TS_STATE_DIR");
    match (state, dir) {
        (StateOut::Secret(name), dir) => StateStore::KubeSecret { name: name.clone(), dir },
        (_, Some(dir)) => StateStore::Dir(dir),
        (_, None) => StateStore::Memory,
    }
}

fn login(source: &mut SettingSource<'_>) -> Login {
    let steps = two_step(source);
    credentials(source);
    let Some(dir) = source.path(CONFIG_DIR) else { return Login::TwoStep(Box::new(steps)) };
    let exclusive = [
        ("TS_HOSTNAME", steps.hostname.is_some()),
        ("TS_EXTRA_ARGS", source.text("TS_EXTRA_ARGS").is_some()),
        (auth_key_variable(source), steps.auth_key.is_some()),
        ("TS_ROUTES", steps.routes.is_some()),
        ("TS_ACCEPT_DNS", steps.accept_dns.is_some() && source.text("TS_ACCEPT_DNS").is_some()),
        ("TS_CLIENT_ID", steps.client_id.is_some()),
        ("TS_CLIENT_SECRET", steps.client_secret.is_some()),
        ("TS_ID_TOKEN", steps.id_token.is_some()),
        ("TS_AUDIENCE", steps.audience.is_some()),
    ];
    for (setting, is_set) in exclusive {
        if is_set {
            source.faults.push(SettingFault::Exclusive { first: setting.to_owned(), second: CONFIG_DIR.to_owned() });
        }
    }
    Login::ConfigDir(dir)
}

/// Variable of the auth key: it has two names.
fn auth_key_variable(source: &SettingSource<'_>) -> &'static str {
    if source.text("TS_AUTHKEY").is_some() { "TS_AUTHKEY" } else { "TS_AUTH_KEY" }
}

fn two_step(source: &mut SettingSource<'_>) -> TwoStep {
    let secret = |source: &SettingSource<'_>, variable: &str| source.text(variable).map(Secret::new);
    let (extra_args, from_args) = go_values::accept_dns(source.text("TS_EXTRA_ARGS").unwrap_or_default());
    TwoStep {
        once: source.boolean("TS_AUTH_ONCE", false),
        auth_key: secret(source, auth_key_variable(source)),
        client_id: source.owned("TS_CLIENT_ID"),
        client_secret: secret(source, "TS_CLIENT_SECRET"),
        id_token: secret(source, "TS_ID_TOKEN"),
        audience: source.owned("TS_AUDIENCE"),
        accept_dns: from_args.or(source.tristate("TS_ACCEPT_DNS")),
        routes: source.raw("TS_ROUTES").map(str::to_owned),
        hostname: source.owned("TS_HOSTNAME"),
        extra_args,
    }
}

/// Validates that there is one kind of credential, with all of its parts.
fn credentials(source: &mut SettingSource<'_>) {
    let client = source.text("TS_CLIENT_ID").is_some();
    source.needs("TS_ID_TOKEN", client, "TS_CLIENT_ID");
    source.needs("TS_AUDIENCE", client, "TS_CLIENT_ID");
    source.exclusive("TS_ID_TOKEN", "TS_CLIENT_SECRET");
    source.exclusive("TS_ID_TOKEN", "TS_AUDIENCE");
    source.exclusive("TS_CLIENT_SECRET", "TS_AUDIENCE");
    for other in ["TS_CLIENT_ID", "TS_CLIENT_SECRET", "TS_ID_TOKEN", "TS_AUDIENCE"] {
        source.exclusive(auth_key_variable(source), other);
    }
}

/// Address of the API server from the kubelet's variable, if it is an IP address.
pub(super) fn api_server(source: &SettingSource<'_>) -> Option<IpAddr> {
    source.text("KUBERNETES_SERVICE_HOST")?.parse().ok()
}

//! Settings of `tailyard proxy` from environment and flags: read and validated together, with all faults reported at once.
//!
//! Pure: environment and flags are arguments. A flag corresponds to a variable and has precedence over it, so the same rules apply to both.
//! The variables are those that the Tailscale operator sets (containerboot of tailscale 1.102), and our own, which begin with `TAILYARD_`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::model::api_server::upstream::ApiServerUpstream;
use crate::model::base::net::{InterfaceName, Port, PortKey, Proto};
use crate::model::front_end::kernel_tcp::{self, KernelTcpFacts, KernelTcpMode, KernelTcpObstacle};
use crate::model::front_end::vhosts::headers::Upgrades;
use crate::model::front_end::vhosts::shares;
use crate::model::plan::targets::TargetPolicy;
use crate::model::plan::world::Single;
use crate::model::tailnet::supervise::DaemonSettings;

pub use fault::{Faults, SettingFault};
pub use flags::Flags;
pub use k8s_proxy::{K8sProxySettings, K8sProxySource};

pub mod class_variables;
mod daemon;
mod fault;
mod flags;
mod front_end;
mod issuing;
pub mod k8s_proxy;
pub mod nameserver;
mod read;
pub mod reconciler;
mod source;
pub mod table;

/// Whether the API server is reached by its address; also a variable of tailscaled.
const BY_ADDRESS: &str = "TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV";

/// All settings of `tailyard proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a variable of the environment")]
pub struct Settings {
    pub tailnet: TailnetMode,
    /// Network interface of the tailnet.
    pub interface: InterfaceName,
    pub pod: Pod,
    /// Mode of a proxy with a single target.
    pub single: Single,
    /// Whether tailscaled routes traffic of the tailnet to other networks: a Connector (`TS_INTERNAL_APP`).
    pub connector: bool,
    /// Whether the cluster reaches the serve listeners by the Pod's address (`EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS`).
    pub cluster_via_ingress: bool,
    /// Addresses allowed as targets (`TAILYARD_ALLOWED_TARGETS`, `TAILYARD_DENIED_TARGETS`, `KUBERNETES_SERVICE_HOST`, `NODE_IP`).
    pub targets: TargetPolicy,
    /// Directory of the config Secret (`TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR`).
    pub config_dir: Option<PathBuf>,
    pub egress: Option<ConfigInput>,
    /// Source of the L3 ingress config.
    pub ingress: Option<ConfigInput>,
    /// Source of the serve config and our own routes (`TS_SERVE_CONFIG`).
    pub serve: Option<ConfigInput>,
    /// Config of the Tailscale operator's API server proxy, which replaces egress, ingress and serve config (`TS_K8S_PROXY_CONFIG`).
    pub k8s_proxy: Option<K8sProxySettings>,
    /// Whether virtual hosts are served on the node's own addresses because the control plane has no Tailscale Services
    /// (`TAILYARD_SERVE_ON_NODE_ADDRESS`).
    pub node_sites: bool,
    /// Addresses of the Pod on which virtual hosts also serve the cluster (`TAILYARD_SERVE_ON_POD_ADDRESS`).
    pub pod_sites: BTreeSet<IpAddr>,
    /// Whether the group shares certificates, and which replica issues them.
    pub cert_share: CertShare,
    /// Settings of the group's certificate orders.
    pub issuing: Issuing,
    /// Advertise the Tailscale Services of the serve config ourselves (`TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT`).
    pub auto_advertise: bool,
    /// Destination of this replica's state.
    pub state: StateOut,
    /// Election of the Pod that runs tailscaled; `None` if no other Pod has this identity.
    pub active_lease: Option<ActiveLease>,
    /// Kubernetes API; `None` outside a cluster.
    pub kube: Option<Kube>,
    /// API server that the API server proxy serves (`TAILYARD_API_SERVER_URL`, else that of [`Self::kube`]).
    pub api_server: Option<ApiServerUpstream>,
    /// Limits of HTTP clients.
    pub front_end: FrontEndSettings,
    /// Firewall that implements the ruleset.
    pub backend: FirewallMode,
    /// Listener of health checks, metrics and the preStop hook; `None` if all are disabled.
    pub http: Option<HttpListener>,
    /// Listener of `/healthz` only (`TS_HEALTHCHECK_ADDR_PORT`, deprecated).
    pub health_addr: Option<SocketAddr>,
    /// Listener of all endpoints, including debugging; `None` if disabled.
    pub admin_addr: Option<SocketAddr>,
    /// Maximum time from the termination signal to exit: connections drain, the remaining ones are reset, tailscaled is stopped.
    pub drain_timeout: Duration,
    /// File in which the kubelet delivers the annotation [`crate::api::names::UNREACHABLE`] of this Pod (`TAILYARD_UNREACHABLE_NOTE`).
    pub unreachable_note: Option<PathBuf>,
    pub log: Log,
    /// Report of the container's init process, if separate.
    pub init: Option<Init>,
    /// Invalid values that count as unset, and settings without effect: logged at startup.
    pub notes: Vec<String>,
}

/// Variable through which the init process reports to its child: number of restarts and, after a blank, the reason.
pub const INIT: &str = "TAILYARD_INIT";

/// Report of the container's init process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Init {
    /// Number of restarts of this program.
    pub restarts: u64,
    /// Reason of the last restart.
    pub why: String,
}

/// Tailnet client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailnetMode {
    Tailscaled(Box<DaemonSettings>),
    /// Another client, described by a file.
    Static(PathBuf),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// `POD_NAME`.
    pub name: Option<String>,
    /// Name of the Pod itself (`TAILYARD_POD_NAME`, else `POD_NAME`): a standby Pod has the name of the first one in `POD_NAME`.
    pub object: Option<String>,
    /// `POD_UID`.
    pub uid: Option<String>,
    /// Its node (`NODE_NAME`): endpoints of the same zone are preferred.
    pub node: Option<String>,
    /// Address of its node (`NODE_IP`): probes and clients on nodes have addresses of that range.
    pub node_ip: Option<IpAddr>,
    /// `POD_IPS`, or `POD_IP` if that is unset: at most one of each family.
    pub ips: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigInput {
    /// Mounted directory of the egress config, or mounted file of the ingress or serve config.
    pub path: Option<PathBuf>,
    /// ConfigMap to watch.
    pub configmap: Option<ObjectName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

/// Sharing of certificates in the group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CertShare {
    #[default]
    Off,
    /// Shared; this replica issues them.
    ReadWrite,
    /// Shared; another replica issues them.
    ReadOnly,
}

impl CertShare {
    /// Value of tailscaled's `TS_CERT_SHARE_MODE`; `None` if unset.
    pub fn mode(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::ReadWrite => Some("rw"),
            Self::ReadOnly => Some("ro"),
        }
    }
}

/// Settings of the group's certificate orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuing {
    /// URL of the ACME server's directory (`TAILYARD_ACME_DIRECTORY`, or `TS_DEBUG_ACME_DIRECTORY_URL`).
    pub directory: String,
    /// Additional trusted CAs, PEM: for an ACME server with a private CA (`TAILYARD_ACME_CA`).
    pub ca: Option<PathBuf>,
    /// Secret and field with the key of the ACME account (`TS_ACME_ACCOUNT_SECRET_NAME`, `TS_ACME_ACCOUNT_FIELD`); `None` if this replica
    /// has its own account, stored with its state.
    pub account: Option<(String, String)>,
    /// Time without renewal after which another replica takes over certificate orders from the leader (`TAILYARD_CERT_LEADER_TIMEOUT`).
    pub away: Duration,
}

/// Limits of HTTP clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontEndSettings {
    /// Protocols to which connections may be upgraded (`TAILYARD_UPGRADES`).
    pub upgrades: Upgrades,
    /// Idle timeout of request bodies, and of clients that do not read a response (`TAILYARD_BODY_TIMEOUT`).
    pub body_timeout: Duration,
    /// Idle timeout of responses from a backend (`TAILYARD_ANSWER_TIMEOUT`).
    pub answer_timeout: Duration,
    /// Idle timeout of upgraded connections (`TAILYARD_TUNNEL_TIMEOUT`).
    pub tunnel_timeout: Duration,
    /// Maximum number of client connections (`TAILYARD_MAX_CONNECTIONS`).
    pub max_connections: usize,
    /// End the open streams of a client that lost a right at the API server (`TAILYARD_END_REVOKED_STREAMS`).
    pub end_revoked_streams: bool,
    /// Whether connections to Tailscale Services end in the kernel, not in tailscaled's TCP stack (`TAILYARD_KERNEL_TCP`).
    pub kernel_tcp: KernelTcpMode,
}

impl Default for FrontEndSettings {
    fn default() -> Self {
        Self {
            upgrades: Upgrades::default(),
            body_timeout: Duration::from_mins(1),
            answer_timeout: Duration::from_hours(1),
            tunnel_timeout: Duration::from_hours(1),
            max_connections: shares::MOST_CONNECTIONS,
            end_revoked_streams: true,
            kernel_tcp: KernelTcpMode::Off,
        }
    }
}

/// Destination of this replica's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateOut {
    None,
    /// Secret in the Pod's namespace (`TS_KUBE_SECRET`).
    Secret(String),
    /// File (`--state-file`).
    File(PathBuf),
}

/// Lease of the active Pod among those with one identity (`TAILYARD_ACTIVE_LEASE`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveLease {
    /// Also the name of the state Secret.
    pub name: String,
    pub pod_uid: String,
}

/// Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kube {
    /// URL of the API server. Uses its address unless `TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV` is false: startup must not depend on
    /// DNS.
    pub server: String,
}

/// Firewall that implements the ruleset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirewallMode {
    /// First working firewall: nftables, then iptables.
    #[default]
    Auto,
    Nftables,
    /// Working variant of iptables.
    Iptables,
    IptablesNft,
    /// iptables on `x_tables`.
    IptablesLegacy,
}

impl FirewallMode {
    pub const NAMES: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("nftables", Self::Nftables),
        ("iptables", Self::Iptables),
        ("iptables-nft", Self::IptablesNft),
        ("iptables-legacy", Self::IptablesLegacy),
    ];

    pub fn named(text: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(name, _)| *name == text).map(|(_, mode)| mode)
    }
}

/// Listener of health checks, metrics and the preStop hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpListener {
    /// `TS_LOCAL_ADDR_PORT`.
    pub address: SocketAddr,
    /// Serve `/metrics` on it.
    pub metrics: bool,
    /// Serve the preStop hook on it (`TS_INTERNAL_APP` of the Tailscale operator's egress groups).
    pub preshutdown: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// JSON instead of text.
    pub json: bool,
    /// Filter, in the syntax of `tracing` directives.
    pub filter: String,
}

impl Settings {
    /// Reads environment and flags. The error contains all faults, in the order in which settings are read.
    pub fn read(env: &BTreeMap<String, String>, flags: &Flags) -> Result<Self, Faults> {
        read::settings(env, flags)
    }

    /// Ports on which the Pod itself listens, which services must not use.
    pub fn reserved(&self) -> BTreeSet<PortKey> {
        let daemon = match &self.tailnet {
            TailnetMode::Tailscaled(daemon) => Some(daemon),
            TailnetMode::Static(_) => None,
        };
        let debug = daemon.and_then(|daemon| daemon.debug_addr.as_deref()?.parse().ok());
        let own = [self.http.map(|http| http.address), self.health_addr, self.admin_addr, debug];
        let listeners = own.into_iter().flatten().map(|address: SocketAddr| (Proto::Tcp, address.port()));
        // In the other modes a service uses only its own match ports, and tailscaled selects another port if its own is taken.
        let whole = matches!(self.single, Single::TailnetIp(_) | Single::TailnetFqdn(_));
        let wireguard = daemon.filter(|_| whole).and_then(|daemon| daemon.env.get("PORT")?.parse().ok()).map(|port| (Proto::Udp, port));
        listeners.chain(wireguard).filter_map(|(proto, port)| Some(PortKey { proto, port: Port::new(port)? })).collect()
    }

    /// Whether this replica advertises only the services that it serves; otherwise tailscaled's config alone decides.
    pub fn limits_advertising(&self) -> bool {
        self.ingress.is_some() || self.serve.is_some()
    }

    /// Whether the network namespace ends with this process, so that tailscaled can be killed without cleanup: true for Pods of our own
    /// reconciler, which never use the host network. Elsewhere a cleanup may be required.
    pub fn ends_with_its_network(&self) -> bool {
        matches!(&self.tailnet, TailnetMode::Tailscaled(daemon) if daemon.fill_config)
    }

    /// Whether connections to virtual hosts may end in the kernel, or why not.
    pub fn kernel_tcp(&self) -> Result<(), KernelTcpObstacle> {
        let daemon = match &self.tailnet {
            TailnetMode::Tailscaled(daemon) => Some(daemon),
            TailnetMode::Static(_) => None,
        };
        let facts = KernelTcpFacts {
            supervised: daemon.is_some(),
            userspace: daemon.is_some_and(|daemon| daemon.userspace),
            forwards: self.forwards(),
            on_node: self.node_sites,
        };
        kernel_tcp::decide(self.front_end.kernel_tcp, facts)
    }

    /// Whether the kernel forwards anything: then the rules need a writer, and the kernel its forwarding sysctls.
    pub fn forwards(&self) -> bool {
        let routes = self.connector && matches!(&self.tailnet, TailnetMode::Tailscaled(daemon) if !daemon.userspace);
        self.egress.is_some() || self.ingress.is_some() || self.single != Single::None || self.cluster_via_ingress || routes
    }
}

#[cfg(test)]
mod tests;

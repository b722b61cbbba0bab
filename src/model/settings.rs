//! What `tailyard proxy` is told by its environment and its flags: read whole, validated together, every fault reported at once.
//!
//! The environment is an argument and so are the flags; nothing here reads the process. A flag stands for a variable and
//! wins over it, so there is one set of rules for both. The variables are those that the Tailscale operator sets
//! (containerboot of tailscale 1.102), and some of our own, which begin with `TAILYARD_`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::model::base::net::{InterfaceName, Port, PortKey, Proto};
use crate::model::ingress::vhosts::headers::Upgrades;
use crate::model::ingress::vhosts::shares;
use crate::model::plan::targets::TargetPolicy;
use crate::model::plan::world::Single;
use crate::model::tailnet::supervise::DaemonSettings;

pub use fault::{Faults, SettingFault};
pub use flags::Flags;

mod daemon;
mod fault;
mod flags;
mod front_end;
mod issuing;
mod read;
pub mod reconciler;
mod source;
pub mod table;

/// Everything that `tailyard proxy` is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub tailnet: TailnetMode,
    /// The interface behind which the tailnet is.
    pub interface: InterfaceName,
    pub pod: Pod,
    /// The mode of a proxy that serves one target.
    pub single: Single,
    /// The cluster reaches the serve listeners by the Pod's address (`EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS`).
    pub cluster_via_ingress: bool,
    /// Which addresses may be targets (`TAILYARD_ALLOWED_TARGETS`, `TAILYARD_DENIED_TARGETS`, `KUBERNETES_SERVICE_HOST`).
    pub targets: TargetPolicy,
    pub egress: Option<ConfigInput>,
    /// Where the L3 ingress config comes from.
    pub ingress: Option<ConfigInput>,
    /// Where the serve config and our own routes come from (`TS_SERVE_CONFIG`).
    pub serve: Option<ConfigInput>,
    /// The control plane has no Tailscale Services: sites are served on the node's own addresses (`TAILYARD_SERVE_ON_NODE_ADDRESS`).
    pub node_sites: bool,
    /// Whether certificates are shared by the group, and who issues them.
    pub cert_share: CertShare,
    /// How the group's own certificates are ordered.
    pub issuing: Issuing,
    /// Advertise the Tailscale Services of the serve config by ourselves (`TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT`).
    pub auto_advertise: bool,
    /// Where this replica's state is told.
    pub state: StateOut,
    /// Where the Kubernetes API is; nothing outside a cluster.
    pub kube: Option<Kube>,
    /// What the HTTP front end allows its clients.
    pub front_end: FrontEnd,
    /// What holds the rules.
    pub backend: FirewallMode,
    /// The listener of health, metrics and the preStop hook; nothing if none of them is wanted.
    pub http: Option<HttpListener>,
    /// A listener for `/healthz` alone (`TS_HEALTHCHECK_ADDR_PORT`, deprecated).
    pub health_addr: Option<SocketAddr>,
    /// The listener of everything, debugging included; nothing if it is turned off.
    pub admin_addr: Option<SocketAddr>,
    /// How long leaving may take, from the signal to the end: flows go on, what is left of them is reset, tailscaled is stopped.
    pub drain_timeout: Duration,
    pub log: Log,
    /// What the first process of the container says, where that is another one.
    pub init: Option<Init>,
    /// Values that were not understood and count as unset, and settings that change nothing here: for the log at start.
    pub notes: Vec<String>,
}

/// How a process that another one keeps running learns of that: how often it was started again and, after a blank, why.
pub const INIT: &str = "TAILYARD_INIT";

/// What the first process of the container says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Init {
    /// How often it has started this program again.
    pub restarts: u64,
    /// Why it did the last time.
    pub why: String,
}

/// What makes the tailnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailnetMode {
    Tailscaled(Box<DaemonSettings>),
    /// Something else, described by a file.
    Static(PathBuf),
}

/// The Pod that this process is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// `POD_NAME`.
    pub name: Option<String>,
    /// `POD_UID`.
    pub uid: Option<String>,
    /// Its node (`NODE_NAME`): endpoints of the same zone come first.
    pub node: Option<String>,
    /// The address of its node (`NODE_IP`): probes and clients of nodes come from that range.
    pub node_ip: Option<IpAddr>,
    /// `POD_IPS`, or `POD_IP` where that is unset: at most one of each family.
    pub ips: BTreeSet<IpAddr>,
}

/// Where a config comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigInput {
    /// The mounted directory of the egress config, or the mounted file of the ingress or serve config.
    pub path: Option<PathBuf>,
    /// The `ConfigMap` to watch.
    pub configmap: Option<ObjectName>,
}

/// A namespaced object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

/// Whether certificates are shared by the group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CertShare {
    #[default]
    Off,
    /// They are, and this replica issues them.
    ReadWrite,
    /// They are, and another replica issues them.
    ReadOnly,
}

impl CertShare {
    /// The value of tailscaled's `TS_CERT_SHARE_MODE`; nothing where it is to be unset.
    pub fn mode(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::ReadWrite => Some("rw"),
            Self::ReadOnly => Some("ro"),
        }
    }
}

/// How the group's own certificates are ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuing {
    /// The URL of the ACME server's directory (`TAILYARD_ACME_DIRECTORY`, or `TS_DEBUG_ACME_DIRECTORY_URL`).
    pub directory: String,
    /// More certificate authorities to believe, PEM: for an ACME server with a private one (`TAILYARD_ACME_CA`).
    pub ca: Option<PathBuf>,
    /// The Secret and its field in which the key of the ACME account is (`TS_ACME_ACCOUNT_SECRET_NAME`, `TS_ACME_ACCOUNT_FIELD`);
    /// nothing where this replica has an account of its own, with its state.
    pub account: Option<(String, String)>,
    /// A first replica that was not heard of for so long is away, and another one orders (`TAILYARD_CERT_LEADER_TIMEOUT`).
    pub away: Duration,
}

/// What the HTTP front end allows its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontEnd {
    /// What connections may be upgraded to (`TAILYARD_UPGRADES`).
    pub upgrades: Upgrades,
    /// How long a client may send nothing of a body, or take nothing of an answer (`TAILYARD_BODY_TIMEOUT`).
    pub body_timeout: Duration,
    /// How long a backend may send nothing of an answer (`TAILYARD_ANSWER_TIMEOUT`).
    pub answer_timeout: Duration,
    /// How long nothing may pass through a connection that was upgraded (`TAILYARD_TUNNEL_TIMEOUT`).
    pub tunnel_timeout: Duration,
    /// Connections of clients at the most (`TAILYARD_MAX_CONNECTIONS`).
    pub max_connections: usize,
}

impl Default for FrontEnd {
    fn default() -> Self {
        Self {
            upgrades: Upgrades::default(),
            body_timeout: Duration::from_mins(1),
            answer_timeout: Duration::from_hours(1),
            tunnel_timeout: Duration::from_hours(1),
            max_connections: shares::MOST_CONNECTIONS,
        }
    }
}

/// Where this replica's state is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateOut {
    None,
    /// In a Secret of the Pod's namespace (`TS_KUBE_SECRET`).
    Secret(String),
    /// In a file (`--state-file`).
    File(PathBuf),
}

/// Where the Kubernetes API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kube {
    /// The URL of the API server. By address unless `TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV` is false: a start
    /// must not need DNS.
    pub server: String,
}

/// What holds the rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirewallMode {
    /// The first that works: nftables, then iptables.
    #[default]
    Auto,
    Nftables,
    /// iptables, whichever of its two kinds works.
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
}

/// The listener of health, metrics and the preStop hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpListener {
    /// Its address (`TS_LOCAL_ADDR_PORT`).
    pub address: SocketAddr,
    /// Serve `/metrics` on it.
    pub metrics: bool,
    /// Serve the preStop hook on it (`TS_INTERNAL_APP` of the Tailscale operator's egress groups).
    pub preshutdown: bool,
}

/// How logs are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// As JSON rather than text.
    pub json: bool,
    /// Which lines: `tracing`'s directives.
    pub filter: String,
}

impl Settings {
    /// Reads the environment and the flags. The error holds every fault, in the order in which settings are read.
    pub fn read(env: &BTreeMap<String, String>, flags: &Flags) -> Result<Self, Faults> {
        read::settings(env, flags)
    }

    /// The ports that the Pod itself answers, which no service may have.
    pub fn reserved(&self) -> BTreeSet<PortKey> {
        let daemon = match &self.tailnet {
            TailnetMode::Tailscaled(daemon) => Some(daemon),
            TailnetMode::Static(_) => None,
        };
        let debug = daemon.and_then(|daemon| daemon.debug_addr.as_deref()?.parse().ok());
        let own = [self.http.map(|http| http.address), self.health_addr, self.admin_addr, debug];
        let listeners = own.into_iter().flatten().map(|address: SocketAddr| (Proto::Tcp, address.port()));
        // Elsewhere a service takes no more than its own match ports, and tailscaled another port than one that is taken.
        let whole = matches!(self.single, Single::TailnetIp(_) | Single::TailnetFqdn(_));
        let wireguard = daemon.filter(|_| whole).and_then(|daemon| daemon.env.get("PORT")?.parse().ok()).map(|port| (Proto::Udp, port));
        listeners.chain(wireguard).filter_map(|(proto, port)| Some(PortKey { proto, port: Port::new(port)? })).collect()
    }

    /// Whether this replica advertises only what it serves; otherwise tailscaled's config alone says what is advertised.
    pub fn limits_advertising(&self) -> bool {
        self.ingress.is_some() || self.serve.is_some()
    }

    /// Whether the network of this process ends with it: a Pod of our own reconciler, which never has its node's network. Others may be told
    /// to leave nothing behind.
    pub fn ends_with_its_network(&self) -> bool {
        matches!(&self.tailnet, TailnetMode::Tailscaled(daemon) if daemon.fill_config)
    }

    /// Whether anything is forwarded by the kernel: then the rules need a writer, and the kernel its forwarding switches.
    pub fn forwards(&self) -> bool {
        self.egress.is_some() || self.ingress.is_some() || self.single != Single::None || self.cluster_via_ingress
    }
}

#[cfg(test)]
mod tests;

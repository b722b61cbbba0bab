//! Settings of tailscaled, parsed and validated elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::base::netmap::in_tailscale_range;

/// Address of tailscaled's DNS server, on its own interface.
pub const MAGIC_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(100, 100, 100, 100));

/// A secret text, hidden in logs, status and command lines.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// The tailscaled program; a bare name is searched in `PATH`.
    pub tailscaled: PathBuf,
    /// The tailscale command: reports the capability version, and logs in where [`TwoStep`] has more than prefs can express.
    pub tailscale: PathBuf,
    /// The LocalAPI socket (`TS_SOCKET`).
    pub socket: PathBuf,
    /// State store of the daemon (`TS_KUBE_SECRET`, `TS_STATE_DIR`).
    pub state: StateStore,
    /// No device, a network stack in the daemon (`TS_USERSPACE`).
    pub userspace: bool,
    /// `TS_SOCKS5_SERVER`.
    pub socks5: Option<String>,
    /// `TS_OUTBOUND_HTTP_PROXY_LISTEN`.
    pub http_proxy: Option<String>,
    /// `TS_DEBUG_ADDR_PORT`; the caller omits it when `extra_args` has its own `--debug`.
    pub debug_addr: Option<String>,
    /// `TS_TAILSCALED_EXTRA_ARGS`, split at blanks.
    pub extra_args: Vec<String>,
    /// Additional environment of the daemon (`TS_CERT_SHARE_MODE` if not empty).
    pub env: BTreeMap<String, String>,
    /// The config directory is filled from this Pod's config Secret by the API (`TAILYARD_CONFIG_FROM_API`).
    pub fill_config: bool,
    pub login: Login,
    /// Timeout of the first start until the node runs (`TS_BOOT_TIMEOUT`).
    pub boot_timeout: Duration,
    /// Enable UDP GRO forwarding (`TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS`).
    pub udp_gro_forwarding: bool,
    /// Cluster addresses in the Pod's packets: its own, its node's (`NODE_IP`), the API server's. One inside 100.64.0.0/10 restricts the
    /// daemon's filter.
    pub cluster_ips: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateStore {
    /// Secret of this name; other files in the directory (`TS_STATE_DIR`), if any, else in `/tmp`.
    KubeSecret { name: String, dir: Option<PathBuf> },
    /// Files in this directory (`TS_STATE_DIR`).
    Dir(PathBuf),
    /// In memory: each start is a new device.
    Memory,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// One step: a complete config file in this directory (`TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR`).
    ConfigDir(PathBuf),
    /// Two steps: the daemon starts, then gets preferences and a login.
    TwoStep(Box<TwoStep>),
}

/// Settings of the second step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TwoStep {
    /// Only when the daemon needs a login (`TS_AUTH_ONCE`); else at every start.
    pub once: bool,
    /// `TS_AUTHKEY`, `TS_AUTH_KEY` or the state Secret's `authkey`; `file:PATH` is read when it is needed.
    pub auth_key: Option<Secret>,
    /// `TS_CLIENT_ID`.
    pub client_id: Option<String>,
    /// `TS_CLIENT_SECRET`.
    pub client_secret: Option<Secret>,
    /// `TS_ID_TOKEN`.
    pub id_token: Option<Secret>,
    /// `TS_AUDIENCE`.
    pub audience: Option<String>,
    /// `TS_ACCEPT_DNS`, or `--accept-dns` among the extra arguments.
    pub accept_dns: Option<bool>,
    /// `TS_ROUTES`: `None` if unset, empty to withdraw routes.
    pub routes: Option<String>,
    /// `TS_HOSTNAME`.
    pub hostname: Option<String>,
    /// `TS_EXTRA_ARGS`, split at blanks, without `--accept-dns`.
    pub extra_args: Vec<String>,
}

impl DaemonSettings {
    /// The directory that belongs to this Pod alone and outlives its containers: the config directory, where it is ours to fill.
    pub fn pod_dir(&self) -> Option<&Path> {
        match &self.login {
            Login::ConfigDir(dir) if self.fill_config => Some(dir),
            Login::ConfigDir(_) | Login::TwoStep(_) => None,
        }
    }

    /// State file that replaces an unreadable Secret; `None` without a Secret.
    pub fn state_file(&self) -> Option<PathBuf> {
        let StateStore::KubeSecret { dir, .. } = &self.state else { return None };
        Some(self.pod_dir().or(dir.as_deref()).unwrap_or(Path::new("/tmp")).join("tailscaled.state"))
    }

    /// The copy of tailscaled's keys in its Secret, for the next container of this Pod.
    pub fn state_copy(&self) -> Option<PathBuf> {
        let StateStore::KubeSecret { .. } = &self.state else { return None };
        Some(self.pod_dir()?.join("state-secret.json"))
    }

    /// The address of the cluster or of these DNS servers that the daemon's own filter would block: it drops packets from 100.64.0.0/10 on
    /// other interfaces than its own. With such an address that filter must be off; filters and NAT are then ours alone.
    pub fn address_cut_off(&self, dns_servers: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let inside = |ip: &&IpAddr| ip.is_ipv4() && in_tailscale_range(**ip) && **ip != MAGIC_DNS;
        if self.userspace { None } else { self.cluster_ips.iter().chain(dns_servers).find(inside).copied() }
    }
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for its only consumer.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "(empty)" } else { "(hidden)" })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A kernel-mode daemon with state in memory and a config directory.
    pub(in crate::model::tailnet::supervise) fn settings() -> DaemonSettings {
        DaemonSettings {
            tailscaled: "tailscaled".into(),
            tailscale: "tailscale".into(),
            socket: "/tmp/tailscaled.sock".into(),
            state: StateStore::Memory,
            userspace: false,
            socks5: None,
            http_proxy: None,
            debug_addr: None,
            extra_args: Vec::new(),
            env: BTreeMap::new(),
            login: Login::ConfigDir("/etc/tsconfig/eg-0".into()),
            boot_timeout: Duration::from_mins(1),
            udp_gro_forwarding: false,
            fill_config: false,
            cluster_ips: BTreeSet::new(),
        }
    }

    #[test]
    fn cluster_address_in_the_tailnet_range_is_cut_off_by_netfilter() {
        let parsed = |ips: &[&str]| ips.iter().map(|ip| ip.parse().expect("an address")).collect();
        let cut_off = |ips: &[&str], dns: &[&str], userspace| {
            let found = DaemonSettings { userspace, cluster_ips: parsed(ips), ..settings() }.address_cut_off(&parsed(dns));
            found.map(|ip| ip.to_string())
        };
        assert_eq!(cut_off(&["fd00::1", "100.127.255.254"], &[], false).as_deref(), Some("100.127.255.254"));
        assert_eq!(cut_off(&["10.0.0.1"], &["100.64.0.10"], false).as_deref(), Some("100.64.0.10"));
        let outside = ["100.128.0.1", "100.63.255.255", "10.0.0.1", "fd7a:115c:a1e0::1"];
        assert_eq!(cut_off(&outside, &outside, false), None);
        assert_eq!(cut_off(&[], &["100.100.100.100"], false), None, "tailscaled's own");
        assert_eq!(cut_off(&["100.64.0.1"], &["100.64.0.10"], true), None, "a daemon in userspace filters nothing");
    }

    #[test]
    fn debug_output_hides_secrets() {
        assert_eq!(format!("{:?} {:?}", Secret::new("tskey-auth-1"), Secret::default()), "(hidden) (empty)");
    }
}

//! What the objects of a group are made from, and what follows from it for several of them.
//!
//! Reads spec, class and settings in one place, so that two builders cannot disagree. Never reads what is observed.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;

use super::Owner;
use crate::api::names;
use crate::api::proxyclass::{ClassContainer, ClassPod, ProxyClassSpec};
use crate::api::proxygroup::{Firewall, ProxyGroupSpec, ProxyGroupType, Tailyard};
use crate::model::base::go_values::boolean;
use crate::model::controller::match_ports::MatchPortRange;
use crate::model::controller::proxygroup::GroupSettings;

/// The port of a replica's health, metrics and drain hook.
pub(super) const HEALTH: u16 = 9002;
/// The port of a replica's debug server, if its class asks for one.
pub(super) const DEBUG: u16 = 9001;
/// The port of a replica's own admin server.
pub(super) const ADMIN: u16 = 9003;
/// How long a stopping Pod has beyond its drain grace: to go unready, reset what is left, and leave the tailnet.
const BEYOND_GRACE: Duration = Duration::from_secs(10);
/// Let's Encrypt's staging environment.
const STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";
/// The longest drain grace; a day.
const LONGEST_GRACE: i64 = 86_400;

/// Where the account is kept that certificates are ordered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountLocation {
    pub secret: String,
    pub field: String,
    pub shared: bool,
}

/// What a group is to be.
#[derive(Debug, Clone)]
pub struct RenderContext<'a> {
    pub owner: Owner,
    pub spec: &'a ProxyGroupSpec,
    pub class: Option<&'a ProxyClassSpec>,
    pub settings: &'a GroupSettings,
    /// How many replicas are wanted.
    pub replicas: u32,
    /// How many replicas there are or are wanted: those that leave still need their rights.
    pub present: u32,
    /// The port of tailscaled, if peers are to reach it at a node's port.
    pub wireguard: Option<u16>,
    /// Whether the group itself says that its replicas share the account of their tailnet, or that they do not.
    pub share_account: Option<bool>,
    /// The control plane has no Tailscale Services: sites are served on the replicas' own addresses.
    pub node_sites: bool,
    /// Certificates of users that the Pods read.
    pub own_certificates: BTreeSet<String>,
    /// Further Secrets that the Pods read and write: certificates.
    pub certificates: BTreeSet<String>,
}

impl RenderContext<'_> {
    #[must_use]
    pub fn pod(&self) -> Option<&ClassPod> {
        self.class?.stateful_set.as_ref()?.pod.as_ref()
    }

    /// How the class shapes the proxy's container.
    #[must_use]
    pub fn container(&self) -> Option<&ClassContainer> {
        self.pod()?.tailscale_container.as_ref()
    }

    /// The image of the proxy's container.
    #[must_use]
    pub fn image(&self) -> &str {
        let own = self.container().and_then(|container| container.image.as_deref());
        own.filter(|image| !image.is_empty()).unwrap_or(&self.settings.image)
    }

    /// Whether that is the Tailscale operator's proxy image, which needs its config mounted and has no `/readyz`.
    #[must_use]
    pub fn stock(&self) -> bool {
        image_path(self.image()).ends_with("/tailscale") || image_path(self.image()) == "tailscale"
    }

    /// Whether the group publishes services of the cluster, instead of reaching those of a tailnet.
    #[must_use]
    pub fn ingress(&self) -> bool {
        self.spec.type_ == ProxyGroupType::Ingress
    }

    /// The name of the config of its services.
    #[must_use]
    pub fn config_map(&self) -> String {
        if self.ingress() { names::ingress_config(&self.owner.group) } else { names::egress_config(&self.owner.group) }
    }

    /// The replicas have no TUN device: they serve sites, and forward nothing. Said by the class, for our image.
    #[must_use]
    pub fn userspace(&self) -> bool {
        let says = |class: &ClassContainer| {
            let variable = class.env.iter().rfind(|variable| variable.name == "TS_USERSPACE");
            variable.and_then(|variable| boolean(variable.value.as_deref()?)) == Some(true)
        };
        !self.stock() && self.container().is_some_and(says)
    }

    /// Where the replicas keep the account that they order certificates with; `None` where each has one of its own.
    #[must_use]
    pub fn account(&self) -> Option<AccountLocation> {
        let shared = self.share_account.or(self.settings.shared_account).unwrap_or(false);
        let secret = match (shared, self.stock()) {
            (true, _) => names::ACCOUNTS.to_owned(),
            (false, false) => names::account(&self.owner.group),
            (false, true) => return None,
        };
        let tailnet = self.spec.tailnet.as_deref().unwrap_or("_default");
        self.ingress().then(|| AccountLocation { secret, field: format!("{tailnet}.acme-account.key.pem"), shared })
    }

    /// The URL of the ACME server's directory, if it is another one than the replicas would take.
    #[must_use]
    pub fn acme_directory(&self) -> Option<&str> {
        let staging = self.class.is_some_and(|class| class.use_lets_encrypt_staging_environment);
        if staging { Some(STAGING) } else { self.settings.acme_directory.as_deref() }
    }

    /// Our own part of the spec.
    #[must_use]
    pub fn own(&self) -> Option<&Tailyard> {
        self.spec.tailyard.as_ref()
    }

    /// How long a leaving replica forwards for the flows it has.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        let own = self.own().and_then(|own| own.drain_timeout_seconds).and_then(|grace| grace.clamp(0, LONGEST_GRACE).try_into().ok());
        own.map_or(self.settings.drain_timeout, Duration::from_secs)
    }

    /// How long a Pod may take to stop, in seconds.
    #[must_use]
    pub fn termination_grace(&self) -> i64 {
        (self.drain_timeout() + BEYOND_GRACE).as_secs().try_into().unwrap_or(i64::MAX)
    }

    /// Where match ports are taken from.
    #[must_use]
    pub fn ports(&self) -> MatchPortRange {
        let own = self.own().and_then(|own| own.match_port_range);
        let own = own.and_then(|ports| MatchPortRange::new(ports.start.try_into().ok()?, ports.end.try_into().ok()?));
        own.unwrap_or(self.settings.ports)
    }

    /// The prefixes of addresses that stand for Tailscale Services. What cannot be read is no prefix.
    #[must_use]
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        self.own().map(|own| own.service_cidrs.as_slice()).unwrap_or_default().iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// The ports of the Pod that are never match ports.
    #[must_use]
    pub fn reserved(&self) -> Vec<u16> {
        [HEALTH, DEBUG, ADMIN, self.health_port()].into_iter().chain(self.wireguard).collect()
    }

    /// The firewall mode, if one is asked for.
    #[must_use]
    pub fn firewall(&self) -> Option<&str> {
        match self.own().and_then(|own| own.firewall_mode.as_ref()) {
            None => self.settings.firewall.as_deref(),
            Some(Firewall::Auto) => Some("auto"),
            Some(Firewall::Nftables) => Some("nftables"),
            Some(Firewall::Iptables) => Some("iptables"),
            Some(Firewall::IptablesNft) => Some("iptables-nft"),
            Some(Firewall::IptablesLegacy) => Some("iptables-legacy"),
            Some(Firewall::Other(text)) => Some(text),
        }
    }

    /// Whether the class asks for metrics.
    #[must_use]
    pub fn metrics(&self) -> bool {
        self.class.and_then(|class| class.metrics.as_ref()).is_some_and(|metrics| metrics.enable)
    }

    /// Whether tailscaled serves its profiles.
    #[must_use]
    pub fn debug(&self) -> bool {
        self.container().and_then(|container| container.debug.as_ref()).is_some_and(|debug| debug.enable)
    }

    /// The address of the health server, if the class sets it.
    #[must_use]
    pub fn health_address(&self) -> Option<&str> {
        let env = self.container().map(|container| container.env.as_slice()).unwrap_or_default();
        env.iter().rev().find(|variable| variable.name == "TS_LOCAL_ADDR_PORT")?.value.as_deref()
    }

    /// The port of the health server.
    #[must_use]
    pub fn health_port(&self) -> u16 {
        self.health_address().and_then(|address| address.rsplit_once(':')?.1.parse().ok()).unwrap_or(HEALTH)
    }
}

/// An image without its tag and digest.
#[must_use]
pub fn image_path(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    match image.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => path,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_path() {
        for image in ["tailscale/tailscale", "tailscale/tailscale:v1", "r:5000/tailscale@sha256:ab", "r:5000/a/tailscale:v1@sha256:ab"] {
            assert!(image_path(image).ends_with("/tailscale"), "{image}");
        }
        for image in ["tailyard/tailyard:tailscale", "tailscale/k8s-proxy", "r/mytailscale"] {
            assert!(!image_path(image).ends_with("/tailscale"), "{image}");
        }
    }
}

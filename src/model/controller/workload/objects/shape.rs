//! Inputs of a workload's object builders, and values that several builders derive from them.
//!
//! Interprets spec, class and settings in one place, so that two builders cannot disagree. Reads no observed objects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::api::names;
use crate::api::proxyclass::{ClassContainer, ClassPod, ProxyClassSpec};
use crate::api::proxygroup::{Tailyard, TrafficDistribution};
use crate::model::api_server::impersonation::PermittedImpersonation;
use crate::model::base::go_values::boolean;
use crate::model::controller::workload::match_ports::MatchPortRange;
use crate::model::controller::workload::objects::Owner;
use crate::model::controller::workload::role::{Role, RoleRow};
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::spec::{ApiServerRequest, WorkloadSpec};
use crate::model::plan::world::Single;

/// Port of a replica's health checks, metrics and preStop hook.
pub(crate) const HEALTH: u16 = 9002;
/// Port of a replica's debug server, if its class enables one.
pub(crate) const DEBUG: u16 = 9001;
/// Port of a replica's admin server.
pub(crate) const ADMIN: u16 = 9003;
/// Termination time beyond the drain timeout: to become unready, reset remaining flows and leave the tailnet.
const BEYOND_GRACE: Duration = Duration::from_secs(10);
/// Maximum drain timeout of a Pod with a standby: with the time beside flows the drain ends just within one disco mute, so that peers take
/// the other Pod's endpoint soon.
const STANDBY_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Let's Encrypt's staging environment.
const STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";
/// Maximum drain timeout in seconds: a day.
const LONGEST_GRACE: i64 = 86_400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountLocation {
    pub secret: String,
    pub field: String,
    pub shared: bool,
}

/// Inputs for the objects of a workload.
#[derive(Debug, Clone)]
pub struct RenderContext<'a> {
    pub owner: Owner,
    pub spec: &'a WorkloadSpec<'a>,
    pub class: Option<&'a ProxyClassSpec>,
    pub settings: &'a GroupSettings,
    /// Target of the proxy of a Service; else none.
    pub target: Single,
    /// Maximum of existing and desired replicas: terminating ones still need their rights.
    pub present: u32,
    /// Port of tailscaled, if peers reach it at a node port.
    pub wireguard: Option<u16>,
    /// Virtual hosts are served on the replicas' own addresses: of a standalone proxy, or where the control plane has no Tailscale Services.
    pub node_sites: bool,
    /// User-provided certificates that the Pods read.
    pub own_certificates: BTreeSet<String>,
    /// Certificate Secrets that the Pods read and write.
    pub certificates: BTreeSet<String>,
    /// Whether the Pods get the targets that the class adds.
    pub takes_allowed_targets: bool,
    /// Whether Pods of the Tailscale operator's account for the Kubernetes API run still.
    pub has_former_pods: bool,
}

impl<'a> RenderContext<'a> {
    /// Inputs before anything of the cluster is known.
    pub fn new(owner: Owner, spec: &'a WorkloadSpec<'a>, class: Option<&'a ProxyClassSpec>, settings: &'a GroupSettings) -> Self {
        Self {
            owner,
            spec,
            class,
            settings,
            target: Single::None,
            present: spec.replicas,
            wireguard: None,
            node_sites: false,
            own_certificates: BTreeSet::new(),
            certificates: BTreeSet::new(),
            takes_allowed_targets: true,
            has_former_pods: false,
        }
    }

    pub fn role(&self) -> &'static RoleRow {
        self.spec.role.row()
    }

    pub fn pod(&self) -> Option<&ClassPod> {
        self.class?.stateful_set.as_ref()?.pod.as_ref()
    }

    /// The class's settings of the proxy's container.
    pub fn container(&self) -> Option<&ClassContainer> {
        self.pod()?.tailscale_container.as_ref()
    }

    /// Image of the proxy's container.
    pub fn image(&self) -> &str {
        let own = self.container().and_then(|container| container.image.as_deref());
        let of_role = self.settings.api_server_image.as_ref().filter(|_| self.spec.role == Role::ApiServer);
        own.filter(|image| !image.is_empty()).unwrap_or(of_role.unwrap_or(&self.settings.image))
    }

    /// Image of the container that enables IP forwarding.
    pub fn init_image(&self) -> &str {
        let own = self.pod().and_then(|pod| pod.tailscale_init_container.as_ref()?.image.as_deref());
        own.filter(|image| !image.is_empty()).unwrap_or_else(|| self.image())
    }

    /// Whether the image is the Tailscale operator's, which needs its config mounted and has no `/readyz`.
    pub fn stock(&self) -> bool {
        is_stock(self.image())
    }

    /// Whether the image is the Tailscale operator's for groups of type `kube-apiserver`.
    pub fn is_k8s_proxy(&self) -> bool {
        image_path(self.image()).ends_with("k8s-proxy")
    }

    /// Users and groups that the Pods impersonate; `None` if these are no part of a Kubernetes API in mode `auth`.
    pub fn impersonation(&self) -> Option<PermittedImpersonation> {
        let request = self.spec.api_server.filter(ApiServerRequest::impersonates)?;
        Some(PermittedImpersonation::new(request.impersonation, request.permitted.unwrap_or(&self.settings.impersonation)))
    }

    /// Cluster addresses that the proxy of a Service serves, the Service's first family first. The Tailscale operator's image serves one.
    pub fn cluster_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.target.cluster_addresses().take(if self.stock() { 1 } else { 2 })
    }

    /// Whether a second Pod waits to take over.
    pub fn standby(&self) -> bool {
        self.spec.standby && !self.stock()
    }

    /// Whether its replicas learn from failover that they are unreachable: others take their traffic.
    pub fn has_failover(&self) -> bool {
        self.owner.key.has_failover() && self.role().is_replicated && !self.stock()
    }

    /// Lease of the Pod that has the identity of a proxy with a standby.
    pub fn active_lease(&self) -> Option<String> {
        self.standby().then(|| names::replica(&self.owner.name, 0))
    }

    /// Name of the `ConfigMap` that the replicas read, if any.
    pub fn config_map(&self) -> Option<String> {
        self.role().config.map(|config| config.config_map(&self.owner.name))
    }

    /// Whether the replicas have no TUN device and forward nothing: set by the class, for our image only.
    pub fn userspace(&self) -> bool {
        let says = |class: &ClassContainer| {
            let variable = class.env.iter().rfind(|variable| variable.name == "TS_USERSPACE");
            variable.and_then(|variable| boolean(variable.value.as_deref()?)) == Some(true)
        };
        !self.stock() && self.container().is_some_and(says)
    }

    /// Why replicas that forward nothing cannot serve the workload, with an action.
    pub fn userspace_fault(&self) -> Option<&'static str> {
        (self.userspace() && !self.role().serves_sites).then_some(
            "The ProxyClass sets TS_USERSPACE, so that its proxies forward nothing: name another ProxyClass, or remove the variable; Ingresses \
             are served with it.",
        )
    }

    /// Location of the ACME account; `None` where each replica has its own.
    pub fn account(&self) -> Option<AccountLocation> {
        let role = self.role();
        let shared = self.spec.shares_account.or(self.settings.shared_account).unwrap_or(!role.has_own_account);
        let secret = match (shared, role.has_own_account && !self.stock()) {
            (true, _) => names::ACCOUNTS.to_owned(),
            (false, true) if !self.has_reserved_account() => names::account(&self.owner.name),
            (false, _) => return None,
        };
        let tailnet = self.spec.tailnet.unwrap_or("_default");
        role.serves_sites.then(|| AccountLocation { secret, field: format!("{tailnet}.acme-account.key.pem"), shared })
    }

    /// Whether a Secret for its own ACME account would have the name of the shared one.
    pub fn has_reserved_account(&self) -> bool {
        let role = self.role();
        role.has_own_account && role.serves_sites && names::account(&self.owner.name) == names::ACCOUNTS
    }

    /// ACME directory URL, if it differs from the replicas' default.
    pub fn acme_directory(&self) -> Option<&str> {
        let staging = self.class.is_some_and(|class| class.use_lets_encrypt_staging_environment);
        if staging { Some(STAGING) } else { self.settings.acme_directory.as_deref() }
    }

    /// Options that only Tailyard has.
    pub fn own(&self) -> Option<&Tailyard> {
        self.spec.options
    }

    /// Time for which a draining replica forwards existing flows.
    pub fn drain_timeout(&self) -> Duration {
        let own = self.own().and_then(|own| own.drain_timeout_seconds).and_then(|grace| grace.clamp(0, LONGEST_GRACE).try_into().ok());
        let timeout = own.map_or(self.settings.drain_timeout, Duration::from_secs);
        // Its flows cannot continue in the second Pod, and new ones wait for that.
        if self.standby() { timeout.min(STANDBY_DRAIN_TIMEOUT) } else { timeout }
    }

    /// `terminationGracePeriodSeconds`.
    pub fn termination_grace(&self) -> i64 {
        (self.drain_timeout() + BEYOND_GRACE).as_secs().try_into().unwrap_or(i64::MAX)
    }

    pub fn ports(&self) -> MatchPortRange {
        let own = self.own().and_then(|own| own.match_port_range);
        let own = own.and_then(|ports| MatchPortRange::new(ports.start.try_into().ok()?, ports.end.try_into().ok()?));
        own.unwrap_or(self.settings.ports)
    }

    /// Prefixes for addresses of Tailscale Services. Invalid ones are ignored.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        self.own().map(|own| own.service_cidrs.as_slice()).unwrap_or_default().iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Ports of the Pod that are never match ports.
    pub fn reserved(&self) -> Vec<u16> {
        [HEALTH, DEBUG, ADMIN, self.health_port()].into_iter().chain(self.wireguard).collect()
    }

    /// Firewall mode, if set.
    pub fn firewall(&self) -> Option<&str> {
        self.own().and_then(|own| own.firewall_mode.as_deref()).or(self.settings.firewall.as_deref())
    }

    /// `trafficDistribution` of child Services; values of later versions are ignored.
    pub fn traffic_distribution(&self) -> Option<TrafficDistribution> {
        TrafficDistribution::parse(self.own()?.traffic_distribution.as_deref()?)
    }

    /// Whether the class enables metrics.
    pub fn metrics(&self) -> bool {
        self.class.and_then(|class| class.metrics.as_ref()).is_some_and(|metrics| metrics.enable)
    }

    /// Whether tailscaled serves its debug pages.
    pub fn debug(&self) -> bool {
        self.container().and_then(|container| container.debug.as_ref()).is_some_and(|debug| debug.enable)
    }

    /// Address of the health server, if the class sets it.
    pub fn health_address(&self) -> Option<&str> {
        let env = self.container().map(|container| container.env.as_slice()).unwrap_or_default();
        env.iter().rev().find(|variable| variable.name == "TS_LOCAL_ADDR_PORT")?.value.as_deref()
    }

    pub fn health_port(&self) -> u16 {
        self.health_address().and_then(|address| address.rsplit_once(':')?.1.parse().ok()).unwrap_or(HEALTH)
    }
}

/// Whether an image is the Tailscale operator's, by its path.
pub fn is_stock(image: &str) -> bool {
    let path = image_path(image);
    path.ends_with("/tailscale") || path == "tailscale"
}

/// An image without its tag and digest.
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
    fn stock_image_is_recognized_by_its_path() {
        for image in ["tailscale/tailscale", "tailscale/tailscale:v1", "r:5000/tailscale@sha256:ab", "r:5000/a/tailscale:v1@sha256:ab"] {
            assert!(is_stock(image), "{image}");
        }
        for image in ["tailyard/tailyard:tailscale", "tailscale/k8s-proxy", "r/mytailscale"] {
            assert!(!is_stock(image), "{image}");
        }
    }
}

//! Settings of the reconciler for all workloads.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::api::proxygroup::{Impersonation, ProxyGroupType, Tenant};
use crate::model::controller::policy::tenancy::{DefaultTenancy, Patterns};
use crate::model::controller::workload::match_ports::MatchPortRange;
use crate::model::controller::workload::vip_service::ServiceOwner;

/// Time for which DNS caches keep a Service's previous `externalName`.
const DNS_CACHE_TTL: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq)]
pub struct GroupSettings {
    /// Namespace of the proxies and of all created objects.
    pub namespace: String,
    pub image: String,
    /// Image of the operator's device, if another one.
    pub api_server_image: Option<String>,
    /// Image pull Secrets of proxies whose class sets none.
    pub image_pull_secrets: Vec<String>,
    pub tags: Vec<String>,
    /// Default firewall mode; `None`: the proxy detects it.
    pub firewall: Option<String>,
    /// DNS domain of the cluster, e.g. `cluster.local`.
    pub cluster_domain: String,
    /// Default range of match ports.
    pub ports: MatchPortRange,
    /// Default drain timeout.
    pub drain_timeout: Duration,
    /// Types of groups that this reconciler serves.
    pub types: Vec<ProxyGroupType>,
    /// Identity of this cluster in shared Tailscale Services.
    pub cluster: ServiceOwner,
    /// Whether replicas use one ACME account for all groups of their tailnet; `None`: the image's default.
    pub shared_account: Option<bool>,
    /// Limits of groups without tenants.
    pub tenancy: DefaultTenancy,
    /// Tenants of standalone proxies; none if every namespace may have them.
    pub standalone_tenants: Arc<Vec<Tenant>>,
    /// Tags that objects may request where no tenants are named, besides the default ones and those of their group.
    pub permitted_tags: Patterns,
    /// Ranges that proxies accept as targets although they are rejected by default.
    pub allowed_targets: Vec<IpNet>,
    /// Ranges that proxies reject as targets.
    pub denied_targets: Vec<IpNet>,
    /// ACME directory URL, if not Let's Encrypt's.
    pub acme_directory: Option<String>,
    /// Whether the `ServiceMonitor` CRD exists.
    pub service_monitors: bool,
    /// Users and groups that groups of type `kube-apiserver` may impersonate, as the reconciler has that right itself. Without users: none.
    pub impersonation: Impersonation,
    /// Time for which the child of a moved Service stays after its `externalName` points elsewhere: DNS caches may have the old answer.
    pub linger: Duration,
}

impl GroupSettings {
    /// Default settings for a namespace and image.
    pub fn new(namespace: String, image: String) -> Self {
        Self {
            namespace,
            image,
            image_pull_secrets: Vec::new(),
            tags: Vec::new(),
            firewall: None,
            cluster_domain: "cluster.local".to_owned(),
            ports: MatchPortRange::DEFAULT,
            drain_timeout: Duration::from_secs(45),
            types: ProxyGroupType::SERVED.to_vec(),
            cluster: ServiceOwner::default(),
            shared_account: None,
            tenancy: DefaultTenancy::default(),
            standalone_tenants: Arc::default(),
            permitted_tags: Patterns::default(),
            allowed_targets: Vec::new(),
            denied_targets: Vec::new(),
            acme_directory: None,
            service_monitors: false,
            api_server_image: None,
            impersonation: Impersonation::default(),
            linger: DNS_CACHE_TTL,
        }
    }
}

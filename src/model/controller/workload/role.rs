//! Roles of workloads: what their Pods run, read and serve. Builders read the
//! row's columns; labels and owner references depend on the kind (`Owner`).

use crate::api::names;
use crate::model::controller::key::METRICS_OF_INGRESS;

/// Role of a workload's Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Group of type `egress`.
    EgressGroup,
    /// Group of type `ingress`.
    IngressGroup,
    /// Group of type `kube-apiserver`: a site of its own, whose upstream is the Kubernetes API server.
    ApiServerGroup,
    /// Proxy of a Service with a target in the tailnet.
    EgressService,
    /// Proxy of a Service that is published in the tailnet.
    IngressService,
    /// Proxy of an Ingress.
    Ingress,
    /// Device of the operator, which serves the Kubernetes API.
    ApiServer,
    /// Device that forwards traffic of the tailnet to other networks, by routes.
    Connector,
}

/// Config of the replicas in a `ConfigMap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleConfig {
    Egress,
    Ingress,
}

/// Row of the role table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoleRow {
    /// `TS_INTERNAL_APP`.
    pub app: &'static str,
    /// [`names::PROXY_TYPE`] of its metrics.
    pub proxy_type: &'static str,
    /// Config in a `ConfigMap`, if the replicas read one.
    pub config: Option<RoleConfig>,
    /// Whether it serves virtual hosts: it has certificates, a Lease of the issuer and an ACME account.
    pub serves_sites: bool,
    /// Whether Pods start in parallel, spread over nodes, with a disruption budget. Else there is one Pod.
    pub is_replicated: bool,
    /// preStop hook of the Tailscale operator's image; ours drains at SIGTERM.
    pub stock_pre_stop: Option<&'static str>,
    /// Fields of tailscaled's config, besides those of every role.
    pub device_options: &'static [(&'static str, bool)],
    /// Whether it has an ACME account of its own by default. For each proxy one would soon exceed the limit of new accounts.
    pub has_own_account: bool,
}

const GROUP: RoleRow = RoleRow {
    app: "",
    proxy_type: names::PARENT_GROUP,
    config: None,
    serves_sites: false,
    is_replicated: true,
    stock_pre_stop: None,
    device_options: &[],
    has_own_account: true,
};

const STANDALONE: RoleRow =
    RoleRow { is_replicated: false, device_options: &[("NoStatefulFiltering", true)], has_own_account: false, ..GROUP };

const EGRESS_GROUP: RoleRow = RoleRow {
    app: "k8s-operator-proxygroup-egress",
    config: Some(RoleConfig::Egress),
    stock_pre_stop: Some("/internal-egress-services-preshutdown"),
    ..GROUP
};

const INGRESS_GROUP: RoleRow =
    RoleRow { app: "k8s-operator-proxygroup-ingress", config: Some(RoleConfig::Ingress), serves_sites: true, ..GROUP };

const API_SERVER_GROUP: RoleRow = RoleRow { app: "k8s-operator-proxygroup-kube-apiserver", ..INGRESS_GROUP };

const EGRESS_SERVICE: RoleRow = RoleRow { app: "k8s-operator-egress-proxy", proxy_type: "egress_service", ..STANDALONE };

const INGRESS_SERVICE: RoleRow = RoleRow { app: "k8s-operator-ingress-proxy", proxy_type: "ingress_service", ..STANDALONE };

const INGRESS: RoleRow = RoleRow {
    app: "k8s-operator-ingress-resource",
    proxy_type: METRICS_OF_INGRESS,
    config: Some(RoleConfig::Ingress),
    serves_sites: true,
    ..STANDALONE
};

const API_SERVER: RoleRow = RoleRow { app: "k8s-operator-proxy", proxy_type: "api_server_service", ..INGRESS };
const CONNECTOR: RoleRow = RoleRow { app: names::CONNECTOR_APP, proxy_type: names::PARENT_CONNECTOR, is_replicated: true, ..STANDALONE };

impl RoleRow {
    /// Whether a headless Service has the names of the Pods: those of a group have none.
    pub fn has_headless_service(&self) -> bool {
        self.proxy_type != names::PARENT_GROUP
    }
}

impl Role {
    pub const fn row(self) -> &'static RoleRow {
        match self {
            Self::EgressGroup => &EGRESS_GROUP,
            Self::IngressGroup => &INGRESS_GROUP,
            Self::ApiServerGroup => &API_SERVER_GROUP,
            Self::EgressService => &EGRESS_SERVICE,
            Self::IngressService => &INGRESS_SERVICE,
            Self::Ingress => &INGRESS,
            Self::ApiServer => &API_SERVER,
            Self::Connector => &CONNECTOR,
        }
    }
}

impl RoleConfig {
    pub const ALL: [Self; 2] = [Self::Egress, Self::Ingress];

    /// Name of the `ConfigMap` of a workload.
    pub fn config_map(self, workload: &str) -> String {
        match self {
            Self::Egress => names::egress_config(workload),
            Self::Ingress => names::ingress_config(workload),
        }
    }

    /// Variable by which our image finds it.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Egress => "TAILYARD_EGRESS_CONFIGMAP",
            Self::Ingress => "TAILYARD_INGRESS_CONFIGMAP",
        }
    }
}

//! Kinds of objects, as in API paths and permissions.

use kube::discovery::ApiResource;

use crate::model::controller::workload::objects::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    pub api_version: &'static str,
    pub kind: &'static str,
    /// Plural name in URLs.
    pub plural: &'static str,
}

impl Resource {
    pub const PROXY_GROUP: Self = Self { api_version: "tailscale.com/v1alpha1", kind: "ProxyGroup", plural: "proxygroups" };
    pub const PROXY_CLASS: Self = Self { api_version: "tailscale.com/v1alpha1", kind: "ProxyClass", plural: "proxyclasses" };
    pub const CONNECTOR: Self = Self { api_version: "tailscale.com/v1alpha1", kind: "Connector", plural: "connectors" };
    pub const DNS_CONFIG: Self = Self { api_version: "tailscale.com/v1alpha1", kind: "DNSConfig", plural: "dnsconfigs" };
    pub const PROXY_GROUP_POLICY: Self =
        Self { api_version: "tailscale.com/v1alpha1", kind: "ProxyGroupPolicy", plural: "proxygrouppolicies" };
    pub const TAILNET: Self = Self { api_version: "tailscale.com/v1alpha1", kind: "Tailnet", plural: "tailnets" };
    pub const POD: Self = Self { api_version: "v1", kind: "Pod", plural: "pods" };
    pub const SERVICE: Self = Self { api_version: "v1", kind: "Service", plural: "services" };
    pub const INGRESS: Self = Self { api_version: "networking.k8s.io/v1", kind: "Ingress", plural: "ingresses" };
    pub const EVENT: Self = Self { api_version: "events.k8s.io/v1", kind: "Event", plural: "events" };
    pub const INGRESS_CLASS: Self = Self { api_version: "networking.k8s.io/v1", kind: "IngressClass", plural: "ingressclasses" };
    pub const NAMESPACE: Self = Self { api_version: "v1", kind: "Namespace", plural: "namespaces" };
    pub const SECRET: Self = Self { api_version: "v1", kind: "Secret", plural: "secrets" };
    pub const ENDPOINT_SLICE: Self = Self { api_version: "discovery.k8s.io/v1", kind: "EndpointSlice", plural: "endpointslices" };
    pub const NODE: Self = Self { api_version: "v1", kind: "Node", plural: "nodes" };

    /// Field selector of [`Self::EVENT`]: warnings about Ingresses.
    pub const INGRESS_WARNINGS: &str = "regarding.kind=Ingress,type=Warning";
    /// Field selector of [`Self::EVENT`]: Pods that a `StatefulSet` cannot create.
    pub const CREATE_FAILURES: &str = "regarding.kind=StatefulSet,reason=FailedCreate";

    /// Kinds of the Tailscale operator that Tailyard does not reconcile.
    pub const NOT_RECONCILED: [Self; 5] = [
        Self { api_version: "tailscale.com/v1alpha1", kind: "Connector", plural: "connectors" },
        Self::DNS_CONFIG,
        Self { api_version: "tailscale.com/v1alpha1", kind: "PeerRelay", plural: "peerrelays" },
        Self::PROXY_GROUP_POLICY,
        Self { api_version: "tailscale.com/v1alpha1", kind: "Recorder", plural: "recorders" },
    ];

    pub const DEFINITION: Self =
        Self { api_version: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition", plural: "customresourcedefinitions" };
    pub const DEPLOYMENT: Self = Self { api_version: "apps/v1", kind: "Deployment", plural: "deployments" };
    pub const LEASE: Self = Self { api_version: "coordination.k8s.io/v1", kind: "Lease", plural: "leases" };
    pub const CONFIG_MAP: Self = Self { api_version: "v1", kind: "ConfigMap", plural: "configmaps" };
    /// Address ranges of Services.
    pub const SERVICE_RANGE: Self = Self { api_version: "networking.k8s.io/v1", kind: "ServiceCIDR", plural: "servicecidrs" };
}

impl From<Kind> for Resource {
    fn from(kind: Kind) -> Self {
        Self { api_version: kind.api_version(), kind: kind.name(), plural: kind.plural() }
    }
}

impl From<Resource> for ApiResource {
    fn from(resource: Resource) -> Self {
        // The core group is empty.
        let (group, version) = resource.api_version.split_once('/').unwrap_or(("", resource.api_version));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: resource.api_version.to_owned(),
            kind: resource.kind.to_owned(),
            plural: resource.plural.to_owned(),
        }
    }
}

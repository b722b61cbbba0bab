//! Conditions of groups, classes, tailnets and Services: types and reasons of the Tailscale operator, so that `kubectl wait` works with
//! either operator. Does not decide when one holds.
//!
//! Source: `k8s-operator/apis/v1alpha1` and `cmd/k8s-operator` of tailscale 1.102.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The condition holds.
pub const TRUE: &str = "True";
/// The condition does not hold.
pub const FALSE: &str = "False";
/// The state is unknown.
pub const UNKNOWN: &str = "Unknown";

/// Of a `ProxyGroup`: the state matches the spec.
pub const PROXY_GROUP_READY: &str = "ProxyGroupReady";
/// Of a `ProxyGroup`: at least one replica is in its tailnet.
pub const PROXY_GROUP_AVAILABLE: &str = "ProxyGroupAvailable";
/// Of a `ProxyClass`: it can be used.
pub const PROXY_CLASS_READY: &str = "ProxyClassReady";
/// Of a `Connector`: every device is in the tailnet.
pub const CONNECTOR_READY: &str = "ConnectorReady";
/// Ours, of a `ProxyGroupPolicy`: the API server enforces it.
pub const PROXY_GROUP_POLICY_READY: &str = "ProxyGroupPolicyReady";
/// Of a `DNSConfig`: its nameserver answers queries.
pub const NAMESERVER_READY: &str = "NameserverReady";
/// Of a `Tailnet`: its credentials work and suffice.
pub const TAILNET_READY: &str = "TailnetReady";
/// Of a Service with a tailnet target: its annotations and ports are valid.
pub const EGRESS_SVC_VALID: &str = "TailscaleEgressSvcValid";
/// Of a Service with a tailnet target: its child objects exist.
pub const EGRESS_SVC_CONFIGURED: &str = "TailscaleEgressSvcConfigured";
/// Of a Service with a tailnet target: all desired replicas forward it.
pub const EGRESS_SVC_READY: &str = "TailscaleEgressSvcReady";
/// Of a Service exposed by a group: its annotations are valid.
pub const INGRESS_SVC_VALID: &str = "TailscaleIngressSvcValid";
/// Of a Service exposed by a group: at least one replica advertises it.
pub const INGRESS_SVC_CONFIGURED: &str = "TailscaleIngressSvcConfigured";
/// Of a Service with a standalone proxy: the path through the proxy works.
pub const PROXY_READY: &str = "TailscaleProxyReady";

/// Of a `ProxyGroup` of type kube-apiserver: its Tailscale Service is its own.
pub const API_SERVER_VALID: &str = "KubeAPIServerProxyValid";
/// Of a `ProxyGroup` of type kube-apiserver: at least one replica advertises the Kubernetes API.
pub const API_SERVER_CONFIGURED: &str = "KubeAPIServerProxyConfigured";

/// Ours, of a `ProxyGroup` of type ingress: every requested name is advertised.
pub const PUBLISHED: &str = "TailyardServicesAdvertised";
/// Ours, of a `ProxyGroup` of type ingress or kube-apiserver: every advertised name has its certificate.
pub const CERTIFIED: &str = "TailyardCertificatesReady";

/// Ours, of a `ProxyGroup`, and of a Service with a standalone proxy: it accepts routes that cover addresses of the cluster. Absent otherwise.
pub const ROUTES_OVERLAP: &str = "TailyardRoutesOverlap";

/// Ours, of a `Connector`: the control plane has approved all routes that its devices advertise. Absent without routes.
pub const ROUTES_APPROVED: &str = "TailyardRoutesApproved";

/// Reasons of conditions and Events.
pub mod reason {
    pub const PROXY_GROUP_READY: &str = "ProxyGroupReady";
    pub const PROXY_GROUP_AVAILABLE: &str = "ProxyGroupAvailable";
    pub const PROXY_GROUP_CREATING: &str = "ProxyGroupCreating";
    pub const PROXY_GROUP_CREATION_FAILED: &str = "ProxyGroupCreationFailed";
    pub const PROXY_GROUP_INVALID: &str = "ProxyGroupInvalid";
    pub const PROXY_GROUP_TAILNET_UNAVAILABLE: &str = "ProxyGroupTailnetUnavailable";
    pub const API_SERVER_VALID: &str = "KubeAPIServerProxyValid";
    pub const API_SERVER_INVALID: &str = "KubeAPIServerProxyInvalid";
    pub const API_SERVER_CONFIGURED: &str = "KubeAPIServerProxyConfigured";
    pub const API_SERVER_NO_BACKENDS: &str = "KubeAPIServerProxyNoBackends";
    /// Event of a `ProxyGroup` of type kube-apiserver: its Tailscale Service is another owner's.
    pub const INVALID_TAILSCALE_SERVICE: &str = "InvalidTailscaleService";
    pub const PROXY_CLASS_VALID: &str = "ProxyClassValid";
    pub const PROXY_CLASS_INVALID: &str = "ProxyClassInvalid";
    pub const CONNECTOR_CREATED: &str = "ConnectorCreated";
    pub const CONNECTOR_CREATING: &str = "ConnectorCreating";
    pub const CONNECTOR_CREATION_FAILED: &str = "ConnectorCreationFailed";
    pub const CONNECTOR_INVALID: &str = "ConnectorInvalid";
    pub const PROXY_GROUP_POLICY_ENFORCED: &str = "ProxyGroupPolicyEnforced";
    pub const PROXY_GROUP_POLICY_NOT_ENFORCED: &str = "ProxyGroupPolicyNotEnforced";
    pub const PROXY_GROUP_POLICY_INVALID: &str = "ProxyGroupPolicyInvalid";
    pub const NAMESERVER_CREATED: &str = "NameserverCreated";
    pub const NAMESERVER_CREATION_FAILED: &str = "NameserverCreationFailed";
    /// Ours: no Pod is ready.
    pub const NAMESERVER_PENDING: &str = "NameserverPending";
    pub const MULTIPLE_DNS_CONFIGS: &str = "MultipleDNSConfigsPresent";
    pub const TAILNET_VALID: &str = "TailnetValid";
    pub const INVALID_SECRET: &str = "InvalidSecret";
    pub const INVALID_OAUTH: &str = "InvalidOAuth";
    pub const EGRESS_SVC_VALID: &str = "EgressSvcValid";
    pub const EGRESS_SVC_INVALID: &str = "EgressSvcInvalid";
    pub const PROXY_GROUP_NOT_READY: &str = "ProxyGroupNotReady";
    pub const CLUSTER_RESOURCES_NOT_READY: &str = "ClusterResourcesNotReady";
    pub const NO_PROXIES: &str = "NoProxiesConfigured";
    pub const NOT_READY: &str = "NotReadyToRouteTraffic";
    pub const PARTIALLY_READY: &str = "PartiallyReadyToRouteTraffic";
    pub const READY: &str = "ReadyToRouteTraffic";
    pub const PROXY_CREATED: &str = "ProxyCreated";
    pub const PROXY_PENDING: &str = "ProxyPending";
    pub const PROXY_FAILED: &str = "ProxyFailed";
    pub const PROXY_INVALID: &str = "ProxyInvalid";
    /// Ours, Event of a Service or Ingress: it moves between a proxy of its own and a group.
    pub const PROXY_MOVING: &str = "ProxyMoving";
    pub const INGRESS_SVC_INVALID: &str = "IngressSvcInvalid";
    pub const INGRESS_SVC_CONFIGURED: &str = "IngressSvcConfigured";
    pub const INGRESS_SVC_NO_BACKENDS: &str = "IngressSvcNoBackendsConfigured";
    pub const NAME_CONFLICT: &str = "NameConflict";
    pub const CONFIGURATION_FAILED: &str = "ConfigurationFailed";
    /// Ours: tenants do not permit it.
    pub const NOT_ALLOWED: &str = "NotAllowed";
    /// Ours: the namespace has no names left.
    pub const TOO_MANY_NAMES: &str = "TooManyNames";
    pub const ROUTE_COVERS_CLUSTER: &str = "RouteCoversCluster";
    pub const ROUTES_APPROVED: &str = "RoutesApproved";
    pub const ROUTES_NOT_APPROVED: &str = "RoutesNotApproved";
    pub const ROUTES_UNREADABLE: &str = "RoutesUnreadable";
    /// Ours, Event of an Ingress: a part of it is not served.
    pub const PARTIALLY_ADVERTISED: &str = "PartiallyAdvertised";
    /// Ours, Event of an Ingress of a group: it has no address yet.
    pub const NOT_ADVERTISED: &str = "NotAdvertised";
    /// Ours, Event of an Ingress: the faults of its earlier Events have ended.
    pub const FAULT_RESOLVED: &str = "FaultResolved";
    /// Ours, Event of an Ingress: a certificate of its own ends soon, or its certificate is not renewed.
    pub const CERTIFICATE_EXPIRING: &str = "CertificateExpiring";
    /// Ours, Event of an Ingress with a proxy of its own: the control plane issues no certificates, and it names none.
    pub const NO_CERTIFICATES: &str = "NoCertificates";
    /// Ours, Event of a `ProxyGroup` or Connector: its devices have other tags than `spec.tags`.
    pub const TAGS_NOT_APPLIED: &str = "TagsNotApplied";
    pub const DEVICE_ORPHANED: &str = "DeviceOrphaned";
    /// Ours, Event of a `ProxyGroup`: the Pod of an unreachable replica was made unready.
    pub const REPLICA_LOST: &str = "ReplicaLost";
    /// Ours, Event of a `ProxyGroup`: a lost replica answers again.
    pub const REPLICA_REACHABLE: &str = "ReplicaReachable";
    /// Ours, Event of a Service or Ingress: it has an annotation with our prefixes that nothing reads.
    pub const INEFFECTIVE_ANNOTATION: &str = "IneffectiveAnnotation";
    /// Ours, of the condition `Ready` of a Pod: the replica does not answer, and the reconciler made it unready.
    pub const UNREACHABLE: &str = "TailyardUnreachable";
}

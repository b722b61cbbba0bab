//! The conditions of groups, classes, tailnets and Services: their types and reasons, as the Tailscale operator has them, so
//! that whoever waits for one may wait for either operator. Never says when one holds.
//!
//! Source: `k8s-operator/apis/v1alpha1` and `cmd/k8s-operator` of tailscale 1.102.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The condition holds.
pub const TRUE: &str = "True";
/// The condition does not hold.
pub const FALSE: &str = "False";
/// Whether it holds is not known.
pub const UNKNOWN: &str = "Unknown";

/// Of a `ProxyGroup`: everything is as its spec says.
pub const PROXY_GROUP_READY: &str = "ProxyGroupReady";
/// Of a `ProxyGroup`: at least one replica is in its tailnet.
pub const PROXY_GROUP_AVAILABLE: &str = "ProxyGroupAvailable";
/// Of a `ProxyGroup` of type kube-apiserver: its spec can be acted on.
pub const KUBE_API_SERVER_PROXY_VALID: &str = "KubeAPIServerProxyValid";
/// Of a `ProxyGroup` of type kube-apiserver: at least one replica serves.
pub const KUBE_API_SERVER_PROXY_CONFIGURED: &str = "KubeAPIServerProxyConfigured";
/// Of a `ProxyClass`: it can be used.
pub const PROXY_CLASS_READY: &str = "ProxyClassReady";
/// Of a `Tailnet`: its credentials work and suffice.
pub const TAILNET_READY: &str = "TailnetReady";
/// Of a Service with a tailnet target: its annotations and ports are valid.
pub const EGRESS_SVC_VALID: &str = "TailscaleEgressSvcValid";
/// Of a Service with a tailnet target: the objects that lead to it are made.
pub const EGRESS_SVC_CONFIGURED: &str = "TailscaleEgressSvcConfigured";
/// Of a Service with a tailnet target: all desired replicas forward it.
pub const EGRESS_SVC_READY: &str = "TailscaleEgressSvcReady";
/// Of a Service exposed by a group: its annotations are valid.
pub const INGRESS_SVC_VALID: &str = "TailscaleIngressSvcValid";
/// Of a Service exposed by a group: at least one replica advertises it.
pub const INGRESS_SVC_CONFIGURED: &str = "TailscaleIngressSvcConfigured";

/// Ours, of a `ProxyGroup` of type ingress: everything that it is asked for is published.
pub const PUBLISHED: &str = "TailyardServicesAdvertised";
/// Ours, of a `ProxyGroup` of type ingress: every name that it publishes has its certificate.
pub const CERTIFIED: &str = "TailyardCertificatesReady";

/// Why a condition is what it is, in a word.
pub mod reason {
    /// Of a group: all that its spec asks for is there.
    pub const PROXY_GROUP_READY: &str = "ProxyGroupReady";
    /// Of a group: all replicas are in the tailnet.
    pub const PROXY_GROUP_AVAILABLE: &str = "ProxyGroupAvailable";
    /// Of a group: replicas are still missing or leaving, or its class is not ready.
    pub const PROXY_GROUP_CREATING: &str = "ProxyGroupCreating";
    /// Of a group: an object of it could not be made.
    pub const PROXY_GROUP_CREATION_FAILED: &str = "ProxyGroupCreationFailed";
    /// Of a group: its spec cannot be acted on.
    pub const PROXY_GROUP_INVALID: &str = "ProxyGroupInvalid";
    /// Of a group: the tailnet that it names is missing or not ready.
    pub const PROXY_GROUP_TAILNET_UNAVAILABLE: &str = "ProxyGroupTailnetUnavailable";
    /// Of a class that can be used.
    pub const PROXY_CLASS_VALID: &str = "ProxyClassValid";
    /// Of a class that cannot.
    pub const PROXY_CLASS_INVALID: &str = "ProxyClassInvalid";
    /// Of a tailnet that can be used.
    pub const TAILNET_VALID: &str = "TailnetValid";
    /// Of a tailnet: the Secret is missing or lacks a key.
    pub const INVALID_SECRET: &str = "InvalidSecret";
    /// Of a tailnet: the credentials are refused or do not suffice.
    pub const INVALID_OAUTH: &str = "InvalidOAuth";
    /// Of an egress Service whose annotations and ports are valid.
    pub const EGRESS_SVC_VALID: &str = "EgressSvcValid";
    /// Of an egress Service whose annotations or ports are not.
    pub const EGRESS_SVC_INVALID: &str = "EgressSvcInvalid";
    /// Of an egress Service: an object of it could not be made.
    pub const EGRESS_SVC_CREATION_FAILED: &str = "EgressSvcCreationFailed";
    /// Of an egress Service: the group that it names is missing or not ready.
    pub const PROXY_GROUP_NOT_READY: &str = "ProxyGroupNotReady";
    /// Of an egress Service: its readiness could not be told.
    pub const READINESS_CHECK_FAILED: &str = "ReadinessCheckFailed";
    /// Of an egress Service: what leads to it is not yet there.
    pub const CLUSTER_RESOURCES_NOT_READY: &str = "ClusterResourcesNotReady";
    /// Of an egress Service: the group has no replicas.
    pub const NO_PROXIES: &str = "NoProxiesConfigured";
    /// Of an egress Service: no replica forwards it.
    pub const NOT_READY: &str = "NotReadyToRouteTraffic";
    /// Of an egress Service: some replicas forward it.
    pub const PARTIALLY_READY: &str = "PartiallyReadyToRouteTraffic";
    /// Of an egress Service: all replicas forward it.
    pub const READY: &str = "ReadyToRouteTraffic";
    /// Of an ingress Service that cannot be acted on.
    pub const INGRESS_SVC_INVALID: &str = "IngressSvcInvalid";
    /// Of an ingress Service: at least one replica advertises it.
    pub const INGRESS_SVC_CONFIGURED: &str = "IngressSvcConfigured";
    /// Of an ingress Service: no replica advertises it.
    pub const INGRESS_SVC_NO_BACKENDS: &str = "IngressSvcNoBackendsConfigured";
    /// Of a group of type kube-apiserver: its spec can be acted on.
    pub const KUBE_API_SERVER_PROXY_VALID: &str = "KubeAPIServerProxyValid";
    /// Of a group of type kube-apiserver: its name in the tailnet cannot be had.
    pub const KUBE_API_SERVER_PROXY_INVALID: &str = "KubeAPIServerProxyInvalid";
    /// Of a group of type kube-apiserver: at least one replica serves.
    pub const KUBE_API_SERVER_PROXY_CONFIGURED: &str = "KubeAPIServerProxyConfigured";
    /// Of a group of type kube-apiserver: no replica serves.
    pub const KUBE_API_SERVER_PROXY_NO_BACKENDS: &str = "KubeAPIServerProxyNoBackends";
}

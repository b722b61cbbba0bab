//! The conditions of groups, classes, tailnets and Services: their types, as the Tailscale operator has them, so that whoever
//! waits for one may wait for either operator. Never says when one holds.
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

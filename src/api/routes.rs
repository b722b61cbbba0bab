//! Ours, additive: routes of a group's virtual hosts that a serve config cannot express.
//!
//! Key [`KEY`] of the ConfigMap `<group>-ingress-config`, a JSON object by the Tailscale Service's name (`svc:...`, even on a control plane
//! without Tailscale Services). If absent, a replica uses the serve config.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::proxygroup::ApiServerMode;

/// The key of the config in its `ConfigMap`.
pub const KEY: &str = "tailyard-routes.json";

/// Ours: the key of an oversized config, compressed with gzip; it replaces [`KEY`].
pub const KEY_COMPRESSED: &str = "tailyard-routes.json.gz";

/// Key of the owner record of a config's services: a JSON object of [`Origin`] by the Tailscale Service's name.
pub const ORIGINS: &str = "tailyard-owners.json";

/// Key of the record of certificates that were ordered within a week and whose Secrets are deleted: a JSON object by namespace of lists of
/// pairs (Unix time of the Secret's creation, DNS name). Not read by replicas; absent if empty.
pub const ORDERS: &str = "tailyard-orders.json";

/// Key of the record of deadlines: a JSON object of Unix times by the Tailscale Service's name. Since then no replica's config names a service
/// that a replica still claims to advertise. Not read by replicas; absent if empty.
pub const LEAVING: &str = "tailyard-leaving.json";

/// The object that requested a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct Origin {
    /// `Ingress` or `Service`; `ProxyGroup` for the Kubernetes API server of a group of type `kube-apiserver`.
    pub kind: String,
    /// Empty for a `ProxyGroup`.
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct Site {
    /// Host names, each with its certificate.
    pub hosts: BTreeMap<String, Host>,
    pub listeners: BTreeMap<u16, Listener>,
    /// Routes in any order: the longest path wins, an exact path before a prefix. Empty with `api_server`.
    pub routes: Vec<Route>,
    /// The only upstream is the Kubernetes API server. An image that does not read this field answers every request with status 404.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server: Option<ApiServerSite>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub funnel: bool,
    /// Addresses of the Tailscale Service, once the control plane has assigned some.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<IpAddr>,
}

/// The site of a group of type `kube-apiserver`: every path goes to the API server of the cluster.
///
/// The replica finds the API server by the environment of its Pod, and CA and token in the files of its `ServiceAccount`. An entry:
///
/// ```json
/// {"svc:kube": {"hosts": {"kube.tail1234.ts.net": {"secret": "kube.tail1234.ts.net", "issue": true}}, "listeners": {"443": "https"},
///   "routes": [], "apiServer": {"mode": "auth", "permitSystem": ["system:masters"], "sendExtra": true}}}
/// ```
///
/// Mode `auth`: requests impersonate WhoIs of their client, with the token of the `ServiceAccount`. Mode `noauth`: requests have their own
/// credentials, the token is not sent. A replica rejects the site if it does not know the mode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct ApiServerSite {
    pub mode: ApiServerMode,
    /// Names of the site that have no certificate: those of a site without TLS. Requests for other names are refused.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<String>,
    /// Names of users and groups of Kubernetes itself, which begin with `system:` or `kubeadm:`, that may be impersonated. RBAC cannot except
    /// names, so the replica refuses the others with status 403.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub permit_system: BTreeSet<String>,
    /// Whether all names of Kubernetes itself may be impersonated, as under the Tailscale operator. Never set by our reconciler.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub permit_all_system: bool,
    /// Whether node, address and login of the client are sent as [`Self::EXTRA`]: the `ClusterRole` permits it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub send_extra: bool,
}

impl ApiServerSite {
    /// Keys of `Impersonate-Extra` headers.
    pub const EXTRA: [&str; 3] = ["tailyard.io/node", "tailyard.io/address", "tailyard.io/login"];
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct Host {
    /// Secret of type `kubernetes.io/tls` with the certificate, in the namespace of the group's objects.
    pub secret: String,
    /// The group orders and renews it; else it is user-provided.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub issue: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Listener {
    /// Routes over TLS.
    #[default]
    Https,
    /// Routes without TLS.
    Http,
    /// Redirects every request to the same URL over TLS, with status 301.
    Redirect,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct Route {
    /// Host name; empty for every name of the virtual host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The path, which begins with `/`.
    pub path: String,
    /// Exact match instead of prefix match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    pub backend: Backend,
}

/// A cluster service behind a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct Backend {
    pub namespace: String,
    pub service: String,
    /// Port name, as in its EndpointSlices; empty for an unnamed port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port_name: String,
    /// ClusterIP and port (`address:port`): used where no endpoint is known or reachable.
    pub address: String,
    pub protocol: BackendProtocol,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP over TLS without certificate verification, as in the Tailscale operator.
    Https,
    /// HTTP/2 without TLS, for gRPC.
    H2c,
}

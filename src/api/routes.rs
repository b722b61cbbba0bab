//! Ours, additive: what a serve config cannot say of a group's sites.
//!
//! Key [`KEY`] of the `ConfigMap` `<group>-ingress-config`, a JSON object by the Tailscale Service's name (`svc:...`; on a control
//! plane without Tailscale Services, the same name all the same). Where it is absent, a replica takes what the serve config says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the config in its `ConfigMap`.
pub const KEY: &str = "tailyard-routes.json";

/// Ours: the key of a config that would not fit as it is, compressed with gzip; it stands instead of [`KEY`].
pub const KEY_COMPRESSED: &str = "tailyard-routes.json.gz";

/// The key of the record of whose each of a config's services is: a JSON object of [`Origin`] by the Tailscale Service's name.
pub const ORIGINS: &str = "tailyard-owners.json";

/// The key of the record of what was told to those who ask: a JSON object of fingerprints by kind, namespace and name. No replica
/// reads it; it is absent while there is nothing to tell.
pub const TOLD: &str = "tailyard-emitted-events.json";

/// The key of the record of certificates that were ordered within a week and are gone: a JSON object by
/// namespace of lists of pairs, the Unix time at which the Secret was made and the DNS name. No replica reads it; it is absent while there
/// are none.
pub const ORDERS: &str = "tailyard-orders.json";

/// The object for which a service is published.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Origin {
    /// `Ingress` or `Service`.
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Site {
    /// The names by which it is reached, and whose certificates are shown for each.
    pub hosts: BTreeMap<String, Host>,
    pub listeners: BTreeMap<u16, Listener>,
    /// The routes, in no order: the longest path wins, an exact one before a prefix.
    pub routes: Vec<Route>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub funnel: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    /// The Secret of type `kubernetes.io/tls` that holds it, in the namespace of the group's objects.
    pub secret: String,
    /// The group orders and renews it; else it is the user's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub issue: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Listener {
    /// The routes, over TLS.
    #[default]
    Https,
    /// The routes, without TLS.
    Http,
    /// Every request is sent to the same URL over TLS, with status 301.
    Redirect,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// The name it is for; empty for every name of the site.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The path, which begins with `/`.
    pub path: String,
    /// That path alone, not those below it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    pub backend: Backend,
}

/// A cluster service behind a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Backend {
    pub namespace: String,
    pub service: String,
    /// The name of its port, as its `EndpointSlice`s name it; empty where the port has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port_name: String,
    /// The `ClusterIP` and port: `address:port`. Taken where no endpoint is known or none can be reached.
    pub address: String,
    pub protocol: BackendProtocol,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP over TLS, whose certificate is not checked, as the Tailscale operator does it.
    Https,
    /// HTTP/2 without TLS, as gRPC speaks it.
    H2c,
}

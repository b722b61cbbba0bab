//! tailscaled's serve config, as the Tailscale operator writes it for a group of type ingress.
//!
//! Key [`KEY`] of the `ConfigMap` `<group>-ingress-config`; the same shape is what the LocalAPI takes. Source: `ipn.ServeConfig` of
//! tailscale 1.102. Fields that are empty are left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the config in its `ConfigMap`.
pub const KEY: &str = "serve-config.json";

/// Ours: the key of a config that would not fit as it is, compressed with gzip; it stands instead of [`KEY`].
pub const KEY_COMPRESSED: &str = "serve-config.json.gz";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServeConfig {
    /// What the node itself serves, by port.
    #[serde(rename = "TCP", skip_serializing_if = "BTreeMap::is_empty")]
    pub tcp: BTreeMap<u16, TcpHandler>,
    /// The sites of the node itself, by `host:port`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub web: BTreeMap<String, WebServer>,
    /// What it serves of Tailscale Services, by `svc:` and the service's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, ServiceConfig>,
    /// The `host:port` that are reached from the internet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allow_funnel: BTreeMap<String, bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceConfig {
    #[serde(rename = "TCP", skip_serializing_if = "BTreeMap::is_empty")]
    pub tcp: BTreeMap<u16, TcpHandler>,
    /// The sites, by `host:port`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub web: BTreeMap<String, WebServer>,
    /// Every packet goes to the kernel; excludes the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tun: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TcpHandler {
    /// By a site over TLS that tailscaled terminates.
    #[serde(rename = "HTTPS", skip_serializing_if = "std::ops::Not::not")]
    pub https: bool,
    /// By a site without TLS.
    #[serde(rename = "HTTP", skip_serializing_if = "std::ops::Not::not")]
    pub http: bool,
    /// By whoever listens there: `host:port` or `unix:path`.
    #[serde(rename = "TCPForward", skip_serializing_if = "String::is_empty")]
    pub tcp_forward: String,
    /// The name whose TLS tailscaled terminates before it forwards.
    #[serde(rename = "TerminateTLS", skip_serializing_if = "String::is_empty")]
    pub terminate_tls: String,
    /// The version of the PROXY protocol in front of what is forwarded: 0 for none, 1 or 2.
    #[serde(skip_serializing_if = "is_zero")]
    pub proxy_protocol: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WebServer {
    /// What answers, by path.
    pub handlers: BTreeMap<String, HttpHandler>,
}

/// What answers a path; one field is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpHandler {
    /// A backend's URL: `http`, `https`, `https+insecure`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy: String,
    /// Where it sends to: an optional status and `:`, then a URL with `${HOST}` and `${REQUEST_URI}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub redirect: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The application capabilities that are told to the backend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_app_caps: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(value: &u8) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serve_config_of_the_operator_round_trips() {
        let text = r#"{"Services":{"svc:my-app":{"TCP":{"80":{"HTTP":true},"443":{"HTTPS":true}},"Web":{"my-app.tail1234.ts.net:443":{"Handlers":{"/":{"Proxy":"http://10.96.0.20:80/"}}},"my-app.tail1234.ts.net:80":{"Handlers":{"/":{"Redirect":"301:https://${HOST}${REQUEST_URI}"}}}}}}}"#;
        let config: ServeConfig = serde_json::from_str(text).expect("readable");
        assert_eq!(config.services["svc:my-app"].web.len(), 2);
        assert_eq!(serde_json::to_string(&config).expect("writable"), text);
    }
}

//! Serve config of tailscaled, as the Tailscale operator writes it for a group of type ingress.
//!
//! Key [`KEY`] of the ConfigMap `<group>-ingress-config`; the LocalAPI uses the same format. Source: `ipn.ServeConfig` of tailscale 1.102.
//! Empty fields are omitted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the config in its `ConfigMap`.
pub const KEY: &str = "serve-config.json";

/// Ours: the key of an oversized config, compressed with gzip; it replaces [`KEY`].
pub const KEY_COMPRESSED: &str = "serve-config.json.gz";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
pub struct ServeConfig {
    /// Handlers of the node itself, by port.
    #[serde(rename = "TCP", skip_serializing_if = "BTreeMap::is_empty")]
    pub tcp: BTreeMap<u16, TcpHandler>,
    /// Virtual hosts of the node itself, by `host:port`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub web: BTreeMap<String, WebServer>,
    /// Tailscale Services, by `svc:` and the service's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, ServiceConfig>,
    /// `host:port` with Funnel enabled.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allow_funnel: BTreeMap<String, bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
pub struct ServiceConfig {
    #[serde(rename = "TCP", skip_serializing_if = "BTreeMap::is_empty")]
    pub tcp: BTreeMap<u16, TcpHandler>,
    /// Virtual hosts, by `host:port`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub web: BTreeMap<String, WebServer>,
    /// All packets go to the kernel; excludes the other fields.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tun: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
pub struct TcpHandler {
    /// A virtual host with TLS that tailscaled terminates.
    #[serde(rename = "HTTPS", skip_serializing_if = "std::ops::Not::not")]
    pub https: bool,
    /// A virtual host without TLS.
    #[serde(rename = "HTTP", skip_serializing_if = "std::ops::Not::not")]
    pub http: bool,
    /// Forward target: `host:port` or `unix:path`.
    #[serde(rename = "TCPForward", skip_serializing_if = "String::is_empty")]
    pub tcp_forward: String,
    /// Name for which tailscaled terminates TLS before it forwards.
    #[serde(rename = "TerminateTLS", skip_serializing_if = "String::is_empty")]
    pub terminate_tls: String,
    /// Version of the PROXY protocol header for the target: 0 for none, 1 or 2.
    #[serde(skip_serializing_if = "super::is_default")]
    pub proxy_protocol: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
pub struct WebServer {
    /// Handlers by path.
    pub handlers: BTreeMap<String, HttpHandler>,
}

/// Handler of a path; exactly one of `proxy`, `redirect` and `text` is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
pub struct HttpHandler {
    /// A backend's URL: `http`, `https`, `https+insecure`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy: String,
    /// Redirect: an optional status and `:`, then a URL with `${HOST}` and `${REQUEST_URI}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub redirect: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Application capabilities forwarded to the backend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_app_caps: Vec<String>,
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

//! Translation of the Tailscale operator's config of an API server proxy into what a replica has under Tailyard's reconciler: variables,
//! tailscaled's config file, and the virtual host.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};

use super::values::TailscaleServiceName;
use super::{ApiServerSection, K8sProxyConfig};
use crate::api::routes::{ApiServerSite, Host, Listener, Site};
use crate::api::serve;

/// Directory of tailscaled's config file, in the container's own file system.
const CONFIG_DIR: &str = "/tmp/tailyard-config";
/// Port of the virtual host.
const HTTPS: u16 = 443;

/// Environment of the replica: variables of the Pod and those of the document. Where both set logs, metrics or the listener of health checks,
/// the Pod's variable counts, which a `ProxyClass` has set.
pub fn environment(config: &K8sProxyConfig, pod: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let state = config.state.as_ref().map(|state| state.as_str().to_owned());
    let pod_ip = pod.get("POD_IP").and_then(|ip| ip.parse().ok());
    let address = pod_ip.or(config.local_address).unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let defaults = [
        ("POD_NAME", state.clone().or_else(|| config.hostname.clone())),
        ("TAILYARD_LOG_FILTER", Some(config.log_level.directive().to_owned())),
        ("TS_ENABLE_HEALTH_CHECK", Some(config.health_checks.to_string())),
        ("TS_ENABLE_METRICS", Some(config.metrics.to_string())),
        ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", Some(CONFIG_DIR.to_owned())),
        ("TS_LOCAL_ADDR_PORT", Some(SocketAddr::new(address, config.local_port).to_string())),
    ];
    let own = [
        ("TAILYARD_CONFIG_FROM_API", Some("true".to_owned())),
        // An empty name is none: state in memory.
        ("TS_KUBE_SECRET", Some(state.unwrap_or_default())),
    ];
    let is_set = |name: &str| pod.get(name).is_some_and(|value| !value.is_empty());
    let defaults = defaults.into_iter().filter(|(name, _)| !is_set(name));
    let mut env = pod.clone();
    env.extend(defaults.chain(own).filter_map(|(name, value)| Some((name.to_owned(), value?))));
    env
}

/// tailscaled's config file, in its format `alpha0`.
pub fn daemon_config(config: &K8sProxyConfig) -> Vec<u8> {
    let services: Vec<&str> = config.advertises.iter().map(TailscaleServiceName::as_str).collect();
    let mut document = json!({"Version": "alpha0", "Locked": false, "AcceptDNS": false, "AcceptRoutes": config.accept_routes,
        "AdvertiseServices": services});
    let optional: [(&str, Option<Value>); 4] = [
        ("AuthKey", config.auth_key.as_ref().map(|key| key.reveal().into())),
        ("Hostname", config.hostname.clone().map(Value::from)),
        ("ServerURL", config.control_url.as_ref().map(|url| url.as_str().into())),
        ("StaticEndpoints", (!config.static_endpoints.is_empty()).then(|| json!(config.static_endpoints))),
    ];
    for (field, value) in optional.into_iter().filter_map(|(field, value)| Some((field, value?))) {
        document[field] = value;
    }
    document.to_string().into_bytes()
}

/// Serve config and routes of the virtual host, by key; `None` while the domain of its name is unknown.
///
/// Groups of Kubernetes itself are permitted, as by the Tailscale operator's proxy: its `ClusterRole` and the grants alone limit them.
pub fn serve_values(config: &K8sProxyConfig, domain: Option<&str>) -> Option<BTreeMap<String, Vec<u8>>> {
    let ApiServerSection { enabled, mode, service, .. } = &config.api_server;
    let sites: BTreeMap<&str, Site> = match service.as_ref().filter(|_| *enabled) {
        None => BTreeMap::new(),
        Some(service) => {
            let name = format!("{}.{}", service.label(), domain?.to_ascii_lowercase());
            let api_server = ApiServerSite { mode: mode.clone(), permit_all_system: true, ..ApiServerSite::default() };
            let site = Site {
                hosts: [(name.clone(), Host { secret: name, issue: true })].into(),
                listeners: [(HTTPS, Listener::Https)].into(),
                api_server: Some(api_server),
                ..Site::default()
            };
            [(service.as_str(), site)].into()
        }
    };
    let routes = serde_json::to_vec(&sites).ok()?;
    Some([(serve::KEY.to_owned(), b"{}".to_vec()), (crate::api::routes::KEY.to_owned(), routes)].into())
}

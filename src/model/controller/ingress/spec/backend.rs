//! Backends of Ingress routes: a Service port and its protocol.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::networking::v1::{Ingress, IngressBackend};

use crate::api::routes::{Backend, BackendProtocol};
use crate::model::controller::ingress::spec::SpecContext;

/// The Services that an Ingress names as backends, in its own namespace.
pub fn backends(ingress: &Ingress) -> impl Iterator<Item = &str> {
    let spec = ingress.spec.as_ref();
    let default = spec.and_then(|spec| spec.default_backend.as_ref());
    let rules = spec.and_then(|spec| spec.rules.as_deref()).unwrap_or_default();
    let paths = rules.iter().filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths).map(|path| &path.backend);
    default.into_iter().chain(paths).filter_map(|backend| backend.service.as_ref().map(|service| service.name.as_str()))
}

/// Resolves a backend of an Ingress in `namespace`. The error names an action.
pub(crate) fn backend(namespace: &str, wanted: &IngressBackend, context: &SpecContext<'_>) -> Result<Backend, String> {
    let Some(named) = &wanted.service else {
        return Err("a backend that is no Service is not served: name a Service.".to_owned());
    };
    let name = &named.name;
    let service = (context.services)(namespace, name).ok_or_else(|| format!("Service {namespace}/{name} does not exist: create it."))?;
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let wanted = named.port.as_ref();
    let is = |port: &&ServicePort| match wanted.and_then(|wanted| wanted.name.as_deref()).filter(|name| !name.is_empty()) {
        Some(name) => port.name.as_deref() == Some(name),
        None => wanted.and_then(|wanted| wanted.number) == Some(port.port),
    };
    let port = ports.iter().find(is).ok_or_else(|| {
        let port_name =
            wanted.map_or_else(String::new, |port| port.name.clone().or(port.number.map(|n| n.to_string())).unwrap_or_default());
        format!("Service {namespace}/{name} has no port {port_name:?}: name one that it has.")
    })?;
    if port.protocol.as_deref().is_some_and(|protocol| protocol != "TCP") {
        return Err(format!("port {} of Service {namespace}/{name} is not TCP: name one that is.", port.port));
    }
    Ok(Backend {
        namespace: namespace.to_owned(),
        service: name.clone(),
        port_name: port.name.clone().unwrap_or_default(),
        address: address(service, port.port).ok_or_else(|| {
            format!("Service {namespace}/{name} has no address in the cluster: Services of type ExternalName are not served as backends.")
        })?,
        protocol: protocol(port),
    })
}

/// `address:port` of a Service; empty if it is headless and reached at its endpoints only.
fn address(service: &Service, port: i32) -> Option<String> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    Some(match spec.cluster_ip.as_deref().unwrap_or_default() {
        "" | "None" => String::new(),
        ip if ip.contains(':') => format!("[{ip}]:{port}"),
        ip => format!("{ip}:{port}"),
    })
}

/// Protocol of a port: by `appProtocol`, else by its name, else by its number.
fn protocol(port: &ServicePort) -> BackendProtocol {
    let protocol = |text: &str| match text.to_ascii_lowercase().as_str() {
        "https" | "kubernetes.io/wss" | "tls" => Some(BackendProtocol::Https),
        "h2c" | "kubernetes.io/h2c" | "grpc" | "http2" => Some(BackendProtocol::H2c),
        "http" | "kubernetes.io/ws" => Some(BackendProtocol::Http),
        _ => None,
    };
    let by_app_protocol = port.app_protocol.as_deref().and_then(protocol);
    let named = || port.name.as_deref().and_then(protocol);
    by_app_protocol.or_else(named).unwrap_or(if port.port == 443 { BackendProtocol::Https } else { BackendProtocol::Http })
}

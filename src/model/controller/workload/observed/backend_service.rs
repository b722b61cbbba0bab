//! A Service as a possible backend of Ingresses: read once, when it changes.

use k8s_openapi::api::core::v1::{Service, ServicePort};

use crate::api::routes::BackendProtocol;

/// What a backend reads of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendService {
    /// Address in the cluster, empty without one: it is reached at its endpoints only. `None` for type `ExternalName`.
    address: Option<Box<str>>,
    pub(crate) ports: Box<[BackendPort]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendPort {
    pub(crate) name: Box<str>,
    pub(crate) number: i32,
    pub(crate) is_tcp: bool,
    pub(crate) protocol: BackendProtocol,
}

impl From<&Service> for BackendService {
    fn from(service: &Service) -> Self {
        let spec = service.spec.as_ref();
        let port = |port: &ServicePort| BackendPort {
            name: port.name.as_deref().unwrap_or_default().into(),
            number: port.port,
            is_tcp: port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"),
            protocol: protocol(port),
        };
        let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let internal = spec.filter(|spec| spec.type_.as_deref() != Some("ExternalName"));
        let address = |ip: &str| if ip == "None" { "".into() } else { ip.into() };
        let address = internal.map(|spec| address(spec.cluster_ip.as_deref().unwrap_or_default()));
        Self { address, ports: ports.iter().map(port).collect() }
    }
}

impl BackendService {
    /// `address:port`; empty without an address.
    pub(crate) fn at(&self, port: i32) -> Option<String> {
        Some(match &**self.address.as_ref()? {
            "" => String::new(),
            ip if ip.contains(':') => format!("[{ip}]:{port}"),
            ip => format!("{ip}:{port}"),
        })
    }
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

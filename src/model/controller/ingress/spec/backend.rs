//! Backends of Ingress routes: a Service port and its protocol.

use k8s_openapi::api::networking::v1::{Ingress, IngressBackend};

use crate::api::routes::Backend;
use crate::model::controller::ingress::spec::SpecContext;
use crate::model::controller::workload::observed::backend_service::BackendPort;

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
    let wanted = named.port.as_ref();
    let is = |port: &&BackendPort| match wanted.and_then(|wanted| wanted.name.as_deref()).filter(|name| !name.is_empty()) {
        Some(name) => *port.name == *name,
        None => wanted.and_then(|wanted| wanted.number) == Some(port.number),
    };
    let port = service.ports.iter().find(is).ok_or_else(|| {
        let port_name =
            wanted.map_or_else(String::new, |port| port.name.clone().or(port.number.map(|n| n.to_string())).unwrap_or_default());
        format!("Service {namespace}/{name} has no port {port_name:?}: name one that it has.")
    })?;
    if !port.is_tcp {
        return Err(format!("port {} of Service {namespace}/{name} is not TCP: name one that is.", port.number));
    }
    Ok(Backend {
        namespace: namespace.to_owned(),
        service: name.clone(),
        port_name: port.name.to_string(),
        address: service.at(port.number).ok_or_else(|| {
            format!("Service {namespace}/{name} has no address in the cluster: Services of type ExternalName are not served as backends.")
        })?,
        protocol: port.protocol,
    })
}

//! Identity of a workload and of the user's object that requests it.

use crate::api::names;

/// Kinds of objects that can be advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublishSource {
    /// HTTP, with a certificate.
    Ingress,
    /// Every port of its address.
    Service,
}

/// An object that requests a Tailscale Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Publisher {
    pub source: PublishSource,
    pub namespace: String,
    pub name: String,
}

impl PublishSource {
    pub fn kind(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Service => "Service",
        }
    }

    /// Finalizer that delays deletion until the name is withdrawn.
    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Ingress => names::INGRESS_FINALIZER,
            Self::Service => names::SERVICE_FINALIZER,
        }
    }
}

impl std::fmt::Display for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.source.kind(), self.namespace, self.name)
    }
}

/// Suffix of [`names::PROXY_TYPE`] of standalone Services.
const METRICS_OF_SERVICE: &str = "_service";

/// [`names::PROXY_TYPE`] of standalone Ingresses.
pub const METRICS_OF_INGRESS: &str = "ingress_resource";

/// First part of the key of an Ingress.
const INGRESS_KEY: &str = "ingress/";

/// Key of such an object in the work queue, in place of a group's name: `namespace/name` of a Service, `ingress/namespace/name` of an
/// Ingress. No group's name has a slash.
pub fn key(Publisher { source, namespace, name }: &Publisher) -> String {
    match source {
        PublishSource::Service => format!("{namespace}/{name}"),
        PublishSource::Ingress => format!("{INGRESS_KEY}{namespace}/{name}"),
    }
}

/// Object of a key; `None` for a group's name.
pub fn parse_key(key: &str) -> Option<Publisher> {
    let (first, rest) = key.split_once('/')?;
    let (source, (namespace, name)) = match rest.split_once('/') {
        Some(ingress) => (PublishSource::Ingress, ingress),
        None => (PublishSource::Service, (first, rest)),
    };
    Some(Publisher { source, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Key of the Service or Ingress that an object belongs to, by its labels.
pub fn key_of<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let of = |source, namespace: &str, name: &str| {
        Some(key(&Publisher { source, namespace: label(namespace)?.to_owned(), name: label(name)?.to_owned() }))
    };
    let by_type = match label(names::PARENT_TYPE) {
        Some(names::PARENT_SERVICE) => Some(PublishSource::Service),
        Some(names::PARENT_INGRESS) => Some(PublishSource::Ingress),
        _ => None,
    };
    if let Some(source) = by_type {
        // Children of egress Services of groups, and certificates of groups, have the same labels.
        return label(names::PROXY_GROUP).is_none().then(|| of(source, names::PARENT_NAMESPACE, names::PARENT)).flatten();
    }
    let scraped = match label(names::PROXY_TYPE) {
        Some(METRICS_OF_INGRESS) => Some(PublishSource::Ingress),
        Some(kind) if kind.ends_with(METRICS_OF_SERVICE) => Some(PublishSource::Service),
        _ => None,
    };
    if let Some(source) = scraped {
        return of(source, names::PROXY_PARENT_NAMESPACE, names::PROXY_PARENT);
    }
    let service = of(PublishSource::Service, names::CONFIG_PARENT_NAMESPACE, names::CONFIG_PARENT);
    service.or_else(|| of(PublishSource::Ingress, names::CONFIG_PARENT_NAMESPACE, names::CONFIG_PARENT_INGRESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_belong_to_services_by_labels() {
        let key =
            |labels: &[(&'static str, &'static str)]| key_of(|name| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| *value));
        let parent = [(names::PARENT_TYPE, "svc"), (names::PARENT, "web"), (names::PARENT_NAMESPACE, "default")];
        assert_eq!(key(&parent).as_deref(), Some("default/web"));
        assert_eq!(key(&[&parent[..], &[(names::PROXY_GROUP, "pg")]].concat()), None, "a child of a group");
        let ingress = [(names::PARENT_TYPE, "ingress"), parent[1], parent[2]];
        assert_eq!(key(&ingress).as_deref(), Some("ingress/default/web"));
        assert_eq!(key(&[&ingress[..], &[(names::PROXY_GROUP, "pg")]].concat()), None, "a certificate of a group");
        let config = [("tailyard.io/parent-ingress", "web"), ("tailyard.io/parent-namespace", "default")];
        assert_eq!(key(&config).as_deref(), Some("ingress/default/web"));
        assert_eq!(key(&[(names::CONFIG_PARENT, "web"), (names::CONFIG_PARENT_NAMESPACE, "default")]).as_deref(), Some("default/web"));
        let metrics = [("ts_proxy_type", "egress_service"), ("ts_proxy_parent_name", "web"), ("ts_proxy_parent_namespace", "default")];
        assert_eq!(key(&metrics).as_deref(), Some("default/web"));
        for of in ["default/web", "ingress/default/web", "ingress/web"] {
            assert_eq!(parse_key(of).map(|parent| super::key(&parent)).as_deref(), Some(of));
        }
        assert_eq!(parse_key("ingress/web").map(|parent| parent.source), Some(PublishSource::Service));
        assert_eq!(parse_key("pg"), None);
    }
}

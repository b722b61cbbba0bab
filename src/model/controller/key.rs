//! Identity of a workload and of the user's object that requests it.

use crate::api::names;

/// Kinds of objects that can be advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublishSource {
    /// HTTP, with a certificate.
    Ingress,
    /// Every port of its address.
    Service,
    /// The Kubernetes API, by a group of type `kube-apiserver` itself.
    ProxyGroup,
}

/// An object that requests a Tailscale Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Publisher {
    pub source: PublishSource,
    /// Empty for a `ProxyGroup`.
    pub namespace: String,
    pub name: String,
}

impl PublishSource {
    pub const ALL: [Self; 3] = [Self::Ingress, Self::Service, Self::ProxyGroup];

    pub fn kind(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Service => "Service",
            Self::ProxyGroup => "ProxyGroup",
        }
    }

    /// Finalizer that delays deletion until the name is withdrawn.
    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Ingress => names::INGRESS_FINALIZER,
            Self::Service => names::SERVICE_FINALIZER,
            Self::ProxyGroup => names::FINALIZER,
        }
    }
}

impl std::fmt::Display for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", WorkloadKey::from(self))
    }
}

/// A workload: the object of a user that requests it. Unit of work of the reconciler, and owner of everything that it creates for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKey {
    /// A group's name. The empty name stands for objects that must be released and are in no group.
    ProxyGroup(String),
    Connector(String),
    /// Namespace and name of a Service with a proxy of its own.
    Service(String, String),
    /// Namespace and name of an Ingress with a proxy of its own.
    Ingress(String, String),
}

/// Suffix of [`names::PROXY_TYPE`] of standalone Services.
const METRICS_OF_SERVICE: &str = "_service";

/// [`names::PROXY_TYPE`] of standalone Ingresses.
pub const METRICS_OF_INGRESS: &str = "ingress_resource";

impl WorkloadKey {
    pub fn of_group(name: &str) -> Self {
        Self::ProxyGroup(name.to_owned())
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::ProxyGroup(_) => PublishSource::ProxyGroup.kind(),
            Self::Connector(_) => "Connector",
            Self::Service(..) => PublishSource::Service.kind(),
            Self::Ingress(..) => PublishSource::Ingress.kind(),
        }
    }

    /// Name of a group.
    pub fn group(&self) -> Option<&str> {
        if let Self::ProxyGroup(name) = self { Some(name) } else { None }
    }

    /// Name of a group; empty for others, as no group's name is.
    pub fn group_name(&self) -> &str {
        self.group().unwrap_or_default()
    }

    /// Namespace of the object; empty if it is cluster-scoped.
    pub fn namespace(&self) -> &str {
        match self {
            Self::ProxyGroup(_) | Self::Connector(_) => "",
            Self::Service(namespace, _) | Self::Ingress(namespace, _) => namespace,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::ProxyGroup(name) | Self::Connector(name) | Self::Service(_, name) | Self::Ingress(_, name) => name,
        }
    }

    /// The Service or Ingress of a proxy of its own.
    pub fn publisher(&self) -> Option<Publisher> {
        let (source, namespace, name) = match self {
            Self::ProxyGroup(_) | Self::Connector(_) => return None,
            Self::Service(namespace, name) => (PublishSource::Service, namespace, name),
            Self::Ingress(namespace, name) => (PublishSource::Ingress, namespace, name),
        };
        Some(Publisher { source, namespace: namespace.clone(), name: name.clone() })
    }

    /// Text that identifies it in metrics and logs: a group's name, or kind, namespace and name of another workload.
    pub fn label(&self) -> String {
        match self {
            Self::ProxyGroup(name) => name.clone(),
            Self::Connector(name) => format!("connector/{name}"),
            Self::Service(namespace, name) | Self::Ingress(namespace, name) => {
                format!("{}/{namespace}/{name}", self.kind().to_lowercase())
            }
        }
    }

    /// Whether it is the proxy of one Service or Ingress.
    pub fn is_standalone(&self) -> bool {
        match self {
            Self::ProxyGroup(_) | Self::Connector(_) => false,
            Self::Service(..) | Self::Ingress(..) => true,
        }
    }

    /// Whether failover probes its Pods, as others take over the traffic of a lost one. Peers choose the device of a Connector themselves.
    pub fn has_failover(&self) -> bool {
        !matches!(self, Self::Connector(_))
    }

    /// Workload of an object by its labels: those of the workload's own objects, of egress children, of certificates, of metrics.
    pub fn of_labels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let group = match (label(names::PARENT_TYPE), label(names::SERVICE_TYPE), label(names::PROXY_TYPE)) {
            (Some(names::PARENT_GROUP), _, _) => label(names::PARENT),
            (Some(names::PARENT_SERVICE), Some(names::EGRESS), _) => label(names::PROXY_GROUP),
            (Some(names::PARENT_INGRESS), _, _) if label(names::PROXY_GROUP).is_some() => label(names::PROXY_GROUP),
            (_, _, Some(names::PARENT_GROUP)) => label(names::PROXY_PARENT),
            _ => return Self::of_object_labels(label),
        };
        group.map(Self::of_group)
    }

    /// Workload of a Connector, Service or Ingress by the labels of one of its objects.
    pub fn of_object_labels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let connector = |name: &str| label(name).map(|name| Self::Connector(name.to_owned()));
        let of = |source, namespace: &str, name: &str| Some(Self::of_object(source, label(namespace)?, label(name)?));
        let by_type = match label(names::PARENT_TYPE) {
            Some(names::PARENT_SERVICE) => Some(PublishSource::Service),
            Some(names::PARENT_INGRESS) => Some(PublishSource::Ingress),
            Some(names::PARENT_CONNECTOR) => return connector(names::PARENT),
            _ => None,
        };
        if let Some(source) = by_type {
            // Children of egress Services of groups, and certificates of groups, have the same labels.
            return label(names::PROXY_GROUP).is_none().then(|| of(source, names::PARENT_NAMESPACE, names::PARENT)).flatten();
        }
        let scraped = match label(names::PROXY_TYPE) {
            Some(METRICS_OF_INGRESS) => Some(PublishSource::Ingress),
            Some(names::PARENT_CONNECTOR) => return connector(names::PROXY_PARENT),
            Some(kind) if kind.ends_with(METRICS_OF_SERVICE) => Some(PublishSource::Service),
            _ => None,
        };
        if let Some(source) = scraped {
            return of(source, names::PROXY_PARENT_NAMESPACE, names::PROXY_PARENT);
        }
        let service = of(PublishSource::Service, names::CONFIG_PARENT_NAMESPACE, names::CONFIG_PARENT);
        let ingress = || of(PublishSource::Ingress, names::CONFIG_PARENT_NAMESPACE, names::CONFIG_PARENT_INGRESS);
        service.or_else(ingress).or_else(|| connector(names::CONFIG_PARENT_CONNECTOR))
    }

    pub fn of_object(source: PublishSource, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match source {
            PublishSource::Service => Self::Service(namespace, name),
            PublishSource::Ingress => Self::Ingress(namespace, name),
            PublishSource::ProxyGroup => Self::ProxyGroup(name),
        }
    }
}

impl From<&Publisher> for WorkloadKey {
    fn from(Publisher { source, namespace, name }: &Publisher) -> Self {
        Self::of_object(*source, namespace, name)
    }
}

impl std::fmt::Display for WorkloadKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ProxyGroup(name) | Self::Connector(name) => write!(f, "{} {name}", self.kind()),
            Self::Service(namespace, name) | Self::Ingress(namespace, name) => write!(f, "{} {namespace}/{name}", self.kind()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_belong_to_workloads_by_labels() {
        let key = |labels: &[(&'static str, &'static str)]| {
            let key = WorkloadKey::of_object_labels(|name| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| *value));
            key.map(|key| key.to_string())
        };
        let parent = [(names::PARENT_TYPE, "svc"), (names::PARENT, "web"), (names::PARENT_NAMESPACE, "default")];
        assert_eq!(key(&parent).as_deref(), Some("Service default/web"));
        assert_eq!(key(&[&parent[..], &[(names::PROXY_GROUP, "pg")]].concat()), None, "a child of a group");
        let ingress = [(names::PARENT_TYPE, "ingress"), parent[1], parent[2]];
        assert_eq!(key(&ingress).as_deref(), Some("Ingress default/web"));
        assert_eq!(key(&[&ingress[..], &[(names::PROXY_GROUP, "pg")]].concat()), None, "a certificate of a group");
        let config = [("tailyard.io/parent-ingress", "web"), ("tailyard.io/parent-namespace", "default")];
        assert_eq!(key(&config).as_deref(), Some("Ingress default/web"));
        let config = [(names::CONFIG_PARENT, "web"), (names::CONFIG_PARENT_NAMESPACE, "default")];
        assert_eq!(key(&config).as_deref(), Some("Service default/web"));
        for labels in [
            &[(names::PARENT_TYPE, "connector"), (names::PARENT, "exit"), (names::PARENT_NAMESPACE, "")][..],
            &[("ts_proxy_type", "connector"), ("ts_proxy_parent_name", "exit")],
            &[("tailyard.io/parent-connector", "exit")],
        ] {
            assert_eq!(key(labels).as_deref(), Some("Connector exit"), "{labels:?}");
        }
        let metrics = [("ts_proxy_type", "egress_service"), ("ts_proxy_parent_name", "web"), ("ts_proxy_parent_namespace", "default")];
        assert_eq!(key(&metrics).as_deref(), Some("Service default/web"));
    }

    #[test]
    fn labels_of_standalone_proxies_have_the_kind_and_those_of_groups_the_name() {
        let objects =
            [PublishSource::Service, PublishSource::Ingress].map(|source| WorkloadKey::of_object(source, "default", "web").label());
        assert_eq!(objects, ["service/default/web", "ingress/default/web"]);
        assert_eq!(WorkloadKey::of_group("service").label(), "service");
        assert_eq!(WorkloadKey::Connector("web".into()).label(), "connector/web");
    }

    #[test]
    fn names_with_a_slash_join_no_other_workload() {
        let group = WorkloadKey::of_group("ingress/default/web");
        assert_ne!(group, WorkloadKey::of_object(PublishSource::Ingress, "default", "web"));
        assert_eq!((group.publisher(), group.is_standalone()), (None, false));
        for source in [PublishSource::Service, PublishSource::Ingress] {
            let publisher = Publisher { source, namespace: "default".into(), name: "web".into() };
            assert_eq!(publisher.to_string(), format!("{} default/web", source.kind()));
            assert_eq!(WorkloadKey::from(&publisher).publisher(), Some(publisher));
        }
        let publisher = Publisher { source: PublishSource::ProxyGroup, namespace: String::new(), name: "kube".into() };
        assert_eq!((WorkloadKey::from(&publisher), publisher.to_string()), (WorkloadKey::of_group("kube"), "ProxyGroup kube".to_owned()));
    }

    /// Short form of a key in tests: a group's name, `Connector` and its name, `namespace/name` of a Service, `ingress/namespace/name` of an
    /// Ingress.
    impl From<&str> for WorkloadKey {
        fn from(text: &str) -> Self {
            if let Some(group) = text.strip_prefix("ProxyGroup ") {
                return WorkloadKey::of_group(group);
            }
            if let Some(connector) = text.strip_prefix("Connector ") {
                return WorkloadKey::Connector(connector.to_owned());
            }
            match text.split('/').collect::<Vec<_>>()[..] {
                [namespace, name] => WorkloadKey::of_object(PublishSource::Service, namespace, name),
                [_, namespace, name] => WorkloadKey::of_object(PublishSource::Ingress, namespace, name),
                _ => WorkloadKey::of_group(text),
            }
        }
    }

    impl From<&Self> for WorkloadKey {
        fn from(key: &Self) -> Self {
            key.clone()
        }
    }
}

//! Services and Ingresses with a proxy of their own: what they request, and the keys, labels and names of their workloads.
//!
//! An object that requests Tailscale and is assigned to no `ProxyGroup` has a standalone proxy: a workload of one replica. Labels and names
//! are those of the Tailscale operator, so that either operator takes over the other's proxies. The operator generates names at random:
//! existing objects decide, and the name of a new workload is derived from the object's UID.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::condition::PROXY_READY;
use crate::api::names;
use crate::api::proxygroup::{ProxyGroup, ProxyGroupSpec, ProxyGroupType, Tailyard, Tenant};
use crate::model::base::conditions;
use crate::model::base::hash::sha256;
use crate::model::controller::ingress_spec::{PublishSource, Publisher, annotation, ingress_label, is_true, service_label};

/// Longest part of an object's name in the name of its workload: a Pod has a label of that name and eleven bytes.
const LONGEST_PART: usize = 43;
/// Length of the suffix of a workload's name.
const SUFFIX: usize = 5;
/// Suffix of [`names::PROXY_TYPE`] of standalone Services.
const METRICS_OF_SERVICE: &str = "_service";
/// [`names::PROXY_TYPE`] of standalone Ingresses.
pub const METRICS_OF_INGRESS: &str = "ingress_resource";
/// First part of the key of an Ingress.
const INGRESS_KEY: &str = "ingress/";

/// An object that may have a standalone proxy.
#[derive(Debug, Clone, Copy)]
pub enum Parent<'a> {
    Service(&'a Service),
    Ingress(&'a Ingress),
}

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

/// Whether a Service requests ingress, and whether it requests egress, valid or not.
pub fn directions(service: &Service) -> (bool, bool) {
    let annotations = service.metadata.annotations.as_ref();
    let set = |name: &&str| annotation(annotations, name).is_some();
    let ingress = is_balanced(service) || annotation(annotations, names::EXPOSE).is_some_and(is_true);
    (ingress, [names::TAILNET_FQDN, names::TAILNET_IP, names::FORMER_TAILNET_IP].iter().any(set))
}

/// Whether a Service is of our load balancer class: its status has the addresses of its proxy.
pub fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.as_deref() == Some(names::LOAD_BALANCER_CLASS)
    })
}

/// Whether a Service has the condition of a standalone proxy.
pub fn is_recorded(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions::get(conditions, PROXY_READY).is_some()
}

/// Name of the class of an object's proxy: by label, else annotation, else the default. An empty one is no class.
pub fn class<'a>(metadata: &'a ObjectMeta, default: Option<&'a str>) -> Option<&'a str> {
    let named = [&metadata.labels, &metadata.annotations].into_iter().find_map(|all| all.as_ref()?.get(names::PROXY_CLASS));
    named.map_or(default, |name| Some(name.trim())).filter(|name| !name.is_empty())
}

/// Tags that an object requests, valid or not; empty for the default tags.
pub fn tags(metadata: &ObjectMeta) -> Vec<String> {
    let tags = annotation(metadata.annotations.as_ref(), names::TAGS).into_iter().flat_map(|tags| tags.split(','));
    tags.map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect()
}

impl<'a> Parent<'a> {
    pub fn metadata(self) -> &'a ObjectMeta {
        match self {
            Self::Service(service) => &service.metadata,
            Self::Ingress(ingress) => &ingress.metadata,
        }
    }

    pub fn publisher(self) -> Publisher {
        let source = if let Self::Service(_) = self { PublishSource::Service } else { PublishSource::Ingress };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Publisher { source, namespace: text(&self.metadata().namespace), name: text(&self.metadata().name) }
    }

    /// Name in the tailnet that it requests, valid or not.
    pub fn label(self) -> String {
        match self {
            Self::Service(service) => service_label(service),
            Self::Ingress(ingress) => ingress_label(ingress),
        }
    }
}

/// Whether an annotation of an object is `true`.
pub fn requests(metadata: &ObjectMeta, name: &str) -> bool {
    annotation(metadata.annotations.as_ref(), name).is_some_and(is_true)
}

/// An object as a group of one replica: the provisioner reads name, type, deletion, tags and host name of a workload from a group.
/// `tenants`: those of standalone proxies.
pub fn as_group(parent: Parent<'_>, tenants: &[Tenant]) -> ProxyGroup {
    let type_ = if let Parent::Ingress(_) = parent { ProxyGroupType::Ingress } else { ProxyGroupType::default() };
    let metadata = parent.metadata();
    let tailyard = (!tenants.is_empty()).then(|| Tailyard { tenants: tenants.to_vec(), ..Tailyard::default() });
    let (replicas, hostname_prefix) = (Some(1), Some(parent.label()));
    let spec = ProxyGroupSpec { type_, replicas, tags: tags(metadata), hostname_prefix, tailyard, ..ProxyGroupSpec::default() };
    let ObjectMeta { uid, deletion_timestamp, .. } = metadata.clone();
    let name = Some(key(&parent.publisher()));
    ProxyGroup { metadata: ObjectMeta { name, uid, deletion_timestamp, ..ObjectMeta::default() }, spec, status: None }
}

/// Names of the workloads of an object, of which there is one unless the Tailscale operator left several.
///
/// `sets`: `StatefulSet`s and headless Services with the object's labels. `devices`: Pods whose state Secret has a device. The first of
/// the result is kept: it has a device, or else it is the first by name.
pub fn workloads<'a>(sets: impl Iterator<Item = &'a str>, devices: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let of_devices = devices.iter().filter_map(|pod| pod.rsplit_once('-')).map(|(set, _)| set);
    let mut all: Vec<_> = sets.chain(of_devices).collect::<BTreeSet<_>>().into_iter().collect();
    all.sort_by_key(|set| !devices.contains(names::replica(set, 0).as_str()));
    all
}

/// Name of a new workload: a prefix of the object's name, without dots, and a suffix of the UID's hash.
pub fn new_name(name: &str, uid: &str) -> String {
    let part = name.get(..name.len().min(LONGEST_PART)).unwrap_or(name).trim_end_matches(['-', '.']);
    let part = part.replace('.', "-");
    format!("ts-{part}-{}", &sha256(uid.as_bytes())[..SUFFIX])
}

/// Name of the `StatefulSet` of a workload's second Pod: as long as a new name, so that labels with it have room.
pub fn standby_name(workload: &str) -> String {
    let stem = workload.rsplit_once('-').map_or(workload, |(stem, _)| stem);
    format!("{stem}-{}", &sha256(format!("{workload}/standby").as_bytes())[..SUFFIX])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(metadata: &Value, spec: &Value) -> Service {
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Service")
    }

    #[test]
    fn directions_follow_type_and_annotations() {
        let plain = json!({"clusterIP": "10.0.0.1"});
        let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale"});
        let table = [
            (json!({}), &plain, (false, false)),
            (json!({}), &balanced, (true, false)),
            (json!({}), &json!({"type": "LoadBalancer"}), (false, false)),
            (json!({"tailscale.com/expose": "true"}), &plain, (true, false)),
            (json!({"tailscale.com/expose": "yes"}), &plain, (false, false)),
            (json!({"tailscale.com/tailnet-ip": "100.64.0.1"}), &plain, (false, true)),
            (json!({"tailscale.com/ts-tailnet-target-ip": "100.64.0.1"}), &plain, (false, true)),
            (json!({"tailscale.com/tailnet-fqdn": "db.ts.net"}), &balanced, (true, true)),
        ];
        for (annotations, spec, wanted) in table {
            assert_eq!(directions(&service(&json!({"annotations": annotations}), spec)), wanted, "{annotations} {spec}");
        }
    }

    #[test]
    fn class_is_named_by_label_then_annotation_then_default() {
        let class = |metadata: &Value| class(&service(metadata, &json!({})).metadata, Some("default")).map(str::to_owned);
        let named = |name: &str| json!({"tailscale.com/proxy-class": name});
        assert_eq!(class(&json!({})).as_deref(), Some("default"));
        assert_eq!(class(&json!({"annotations": named("a")})).as_deref(), Some("a"));
        assert_eq!(class(&json!({"labels": named("l"), "annotations": named("a")})).as_deref(), Some("l"));
        assert_eq!(class(&json!({"annotations": named("")})), None, "opts out of the default");
    }

    #[test]
    fn workload_names_have_at_most_fifty_two_characters() {
        for length in [1, 42, 43, 44, 63] {
            let name = new_name(&"a".repeat(length), "uid");
            assert_eq!(name.len(), "ts--".len() + length.min(LONGEST_PART) + SUFFIX);
            assert!(name.len() <= 52);
        }
        assert_ne!(new_name("web", "1"), new_name("web", "2"), "a Service that is created again gets another name");
        assert_eq!(new_name(&format!("{}-b", "a".repeat(42)), "1").matches("--").count(), 0);
    }

    #[test]
    fn workload_with_a_device_is_kept() {
        let pods = ["ts-web-ccccc-0"].into_iter().collect();
        assert_eq!(workloads(["ts-web-aaaaa", "ts-web-bbbbb"].into_iter(), &pods), ["ts-web-ccccc", "ts-web-aaaaa", "ts-web-bbbbb"]);
        assert_eq!(workloads(["ts-web-bbbbb", "ts-web-aaaaa"].into_iter(), &BTreeSet::new()), ["ts-web-aaaaa", "ts-web-bbbbb"]);
    }

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

//! Services with a proxy of their own: what they request, and the keys, labels and names of their workloads.
//!
//! A Service that requests Tailscale and is assigned to no `ProxyGroup` has a standalone proxy: a workload of one replica. Labels and names
//! are those of the Tailscale operator, so that either operator takes over the other's proxies. The operator generates names at random:
//! existing objects decide, and the name of a new workload is derived from the Service's UID.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::condition::PROXY_READY;
use crate::api::names;
use crate::api::proxygroup::{ProxyGroup, ProxyGroupSpec};
use crate::model::base::conditions;
use crate::model::base::hash::sha256;
use crate::model::controller::ingress_spec::{annotation, is_true, service_label};

/// Longest part of a Service's name in the name of its workload: a Pod has a label of that name and eleven bytes.
const LONGEST_PART: usize = 43;
/// Length of the suffix of a workload's name.
const SUFFIX: usize = 5;
/// Suffix of [`names::PROXY_TYPE`] of standalone Services.
const METRICS_OF_SERVICE: &str = "_service";

/// Key of a standalone Service in the work queue, in place of a group's name: `namespace/name`. No group's name has a slash.
pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Namespace and name of a key; `None` for a group's name.
pub fn parse_key(key: &str) -> Option<(&str, &str)> {
    key.split_once('/')
}

/// Key of the Service that an object belongs to, by its labels.
pub fn key_of<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let of = |namespace: &str, name: &str| Some(key(label(namespace)?, label(name)?));
    if label(names::PARENT_TYPE) == Some(names::PARENT_SERVICE) {
        // Children of egress Services of groups have the same labels.
        return label(names::PROXY_GROUP).is_none().then(|| of(names::PARENT_NAMESPACE, names::PARENT)).flatten();
    }
    if label(names::PROXY_TYPE).is_some_and(|kind| kind.ends_with(METRICS_OF_SERVICE)) {
        return of(names::PROXY_PARENT_NAMESPACE, names::PROXY_PARENT);
    }
    of(names::CONFIG_PARENT_NAMESPACE, names::CONFIG_PARENT)
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

/// Name of the class of a Service's proxy: by label, else annotation, else the default. An empty one is no class.
pub fn class<'a>(service: &'a Service, default: Option<&'a str>) -> Option<&'a str> {
    let metadata = &service.metadata;
    let named = [&metadata.labels, &metadata.annotations].into_iter().find_map(|all| all.as_ref()?.get(names::PROXY_CLASS));
    named.map_or(default, |name| Some(name.trim())).filter(|name| !name.is_empty())
}

/// Tags that a Service requests, valid or not; empty for the default tags.
pub fn tags(service: &Service) -> Vec<String> {
    let tags = annotation(service.metadata.annotations.as_ref(), names::TAGS).into_iter().flat_map(|tags| tags.split(','));
    tags.map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect()
}

/// A Service as a group of one replica: the provisioner reads name, deletion, tags and host name of a workload from a group.
pub fn as_group(service: &Service) -> ProxyGroup {
    let spec = ProxyGroupSpec {
        replicas: Some(1),
        tags: tags(service),
        hostname_prefix: Some(service_label(service)),
        ..ProxyGroupSpec::default()
    };
    let ObjectMeta { uid, deletion_timestamp, .. } = service.metadata.clone();
    let (namespace, name) = (service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
    let name = Some(key(namespace.unwrap_or_default(), name.unwrap_or_default()));
    ProxyGroup { metadata: ObjectMeta { name, uid, deletion_timestamp, ..ObjectMeta::default() }, spec, status: None }
}

/// Names of the workloads of a Service, of which there is one unless the Tailscale operator left several.
///
/// `sets`: `StatefulSet`s and headless Services with the Service's labels. `devices`: Pods whose state Secret has a device. The first of
/// the result is kept: it has a device, or else it is the first by name.
pub fn workloads<'a>(sets: impl Iterator<Item = &'a str>, devices: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let of_devices = devices.iter().filter_map(|pod| pod.rsplit_once('-')).map(|(set, _)| set);
    let mut all: Vec<_> = sets.chain(of_devices).collect::<BTreeSet<_>>().into_iter().collect();
    all.sort_by_key(|set| !devices.contains(names::replica(set, 0).as_str()));
    all
}

/// Name of a new workload: a prefix of the Service's name, and a suffix of the UID's hash.
pub fn new_name(name: &str, uid: &str) -> String {
    let part = name.get(..name.len().min(LONGEST_PART)).unwrap_or(name).trim_end_matches(['-', '.']);
    format!("ts-{part}-{}", &sha256(uid.as_bytes())[..SUFFIX])
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
        let class = |metadata: &Value| class(&service(metadata, &json!({})), Some("default")).map(str::to_owned);
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
        assert_eq!(key(&[(names::PARENT_TYPE, "ingress"), parent[1], parent[2]]), None);
        assert_eq!(key(&[(names::CONFIG_PARENT, "web"), (names::CONFIG_PARENT_NAMESPACE, "default")]).as_deref(), Some("default/web"));
        let metrics = [("ts_proxy_type", "egress_service"), ("ts_proxy_parent_name", "web"), ("ts_proxy_parent_namespace", "default")];
        assert_eq!(key(&metrics).as_deref(), Some("default/web"));
        assert_eq!(parse_key("default/web"), Some(("default", "web")));
        assert_eq!(parse_key("pg"), None);
    }
}

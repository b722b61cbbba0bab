//! Services and Ingresses with a proxy of their own: what they request, and the keys, labels and names of their workloads.
//!
//! An object that requests Tailscale and is assigned to no `ProxyGroup` has a standalone proxy: a workload of one replica. Labels and names
//! are those of the Tailscale operator, so that either operator takes over the other's proxies. The operator generates names at random:
//! existing objects decide, and the name of a new workload is derived from the object's UID.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::condition::PROXY_READY;
use crate::api::names;
use crate::model::base::conditions;
use crate::model::controller::key::{PublishSource, Publisher};
use crate::model::controller::policy::annotations::{annotation, is_on, text};

/// An object that may have a standalone proxy.
#[derive(Debug, Clone, Copy)]
pub enum Parent<'a> {
    Service(&'a Service),
    Ingress(&'a Ingress),
}

/// Whether a Service requests ingress, and whether it requests egress, valid or not.
pub fn directions(service: &Service) -> (bool, bool) {
    let annotations = service.metadata.annotations.as_ref();
    let set = |name: &&str| annotation(annotations, name).is_some();
    let ingress = is_balanced(service) || is_on(annotations, names::EXPOSE);
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
    conditions::of_service(service, PROXY_READY).is_some()
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
    is_on(metadata.annotations.as_ref(), name)
}

/// The label that an Ingress requests, valid or not.
pub fn ingress_label(ingress: &Ingress) -> String {
    let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_ref()?.first()?.hosts.as_ref()?.first());
    match tls.and_then(|host| host.split('.').next()).filter(|label| !label.is_empty()) {
        Some(label) => label.to_owned(),
        None => format!("{}-{}-ingress", text(ingress.metadata.namespace.as_ref()), text(ingress.metadata.name.as_ref())),
    }
}

/// The label that a Service requests, in lower case, as the Tailscale operator accepts it.
pub fn service_label(service: &Service) -> String {
    let metadata = &service.metadata;
    let named = annotation(metadata.annotations.as_ref(), names::HOSTNAME).map(str::to_ascii_lowercase);
    named.unwrap_or_else(|| format!("{}-{}", text(metadata.namespace.as_ref()), text(metadata.name.as_ref())))
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
    fn host_name_of_a_service_is_in_lower_case() {
        let metadata = json!({"name": "web", "namespace": "u", "annotations": {"tailscale.com/hostname": "Grafana"}});
        assert_eq!(service_label(&service(&metadata, &json!({}))), "grafana");
    }
}

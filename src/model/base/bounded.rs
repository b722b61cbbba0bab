//! Bounds of the lists in an object, which its writer chooses: an object of 1.5 MiB has 500,000 empty entries, each many times as large in
//! memory. A list is cut as soon as it is decoded. What passes read of a list is cut one entry above its maximum, so that they refuse the
//! object, alone and by name.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// Maximum ports of a Service.
pub const MAX_PORTS: usize = 1_000;
/// Maximum rules and paths of an Ingress, together.
pub const MAX_ROUTES: usize = 10_000;
/// Maximum entries of `spec.tls` and their hosts, together.
pub const MAX_HOSTS: usize = 5_000;
/// Names of one field of the `ProxyGroupPolicies` of a namespace.
pub const MAX_GROUP_NAMES: usize = 500;
/// Labels or annotations of an object.
const MAX_TEXTS: usize = 1_000;
/// Owner references, finalizers, or subjects of a `RoleBinding`, of which the reconciler writes one.
const MAX_REFERENCES: usize = 50;
/// Other lists: conditions and addresses.
const MAX_ITEMS: usize = 1_000;
/// States of ports of one address.
const MAX_PORT_STATES: usize = 10;
/// Endpoints of a slice, as in the API, and addresses of one.
const MAX_ENDPOINTS: usize = 1_000;
/// Zones in the hints of an endpoint, as in the API.
const MAX_HINTS: usize = 8;
/// Characters of a text of Pods or components of the cluster.
const MAX_TEXT: usize = 500;
/// Length of a label's value, as of a zone or a port, and of a name, as of a node.
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;

/// Prefixes of the labels and annotations that stay if an object has too many.
const READ: [&str; 4] = ["tailscale.com/", "tailyard.io/", "kubernetes.io/", "endpointslice.kubernetes.io/"];

/// Metadata fields that are stored of an object in JSON.
const FIELDS: [&str; 11] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
];

/// Lists of an object in JSON: subjects of a `RoleBinding`, ports and endpoints of an `EndpointSlice`, and those of Services and Ingresses.
const LISTS: [(&str, usize); 6] = [
    ("/subjects", MAX_REFERENCES),
    ("/ports", MAX_PORTS),
    ("/endpoints", MAX_ENDPOINTS),
    ("/spec/ports", MAX_PORTS + 1),
    ("/spec/rules", MAX_ROUTES + 1),
    ("/spec/tls", MAX_HOSTS + 1),
];

/// Cuts the lists of an object's metadata.
pub fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    for texts in [&mut metadata.labels, &mut metadata.annotations].into_iter().flatten() {
        cut_texts(texts);
    }
    cut(&mut metadata.owner_references, MAX_REFERENCES);
    if let Some(finalizers) = &mut metadata.finalizers {
        cut_finalizers(finalizers, |name| is_own(name));
    }
}

/// Cuts the lists that others write into an object in JSON: metadata, the fields of a Secret, and [`LISTS`].
pub fn json(object: &mut Value) {
    if let Some(Value::Object(fields)) = object.get_mut("data")
        && fields.len() > MAX_TEXTS
    {
        *fields = std::mem::take(fields).into_iter().take(MAX_TEXTS).collect();
    }
    for (list, most) in LISTS {
        if let Some(Value::Array(list)) = object.pointer_mut(list) {
            cut_vec(list, most);
        }
    }
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    metadata.retain(|field, _| FIELDS.contains(&field.as_str()));
    for field in ["labels", "annotations"] {
        if let Some(Value::Object(texts)) = metadata.get_mut(field)
            && texts.len() > MAX_TEXTS
        {
            *texts = std::mem::take(texts).into_iter().filter(|(key, _)| is_read(key)).take(MAX_TEXTS).collect();
        }
    }
    if let Some(Value::Array(references)) = metadata.get_mut("ownerReferences") {
        cut_vec(references, MAX_REFERENCES);
    }
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
        cut_finalizers(finalizers, |name| name.as_str().is_some_and(is_own));
    }
}

/// Cuts the lists of a Service.
pub fn service(service: &mut Service) {
    if let Some(spec) = &mut service.spec {
        cut(&mut spec.ports, MAX_PORTS + 1);
        for list in [&mut spec.cluster_ips, &mut spec.external_ips, &mut spec.ip_families, &mut spec.load_balancer_source_ranges] {
            cut(list, MAX_ITEMS);
        }
        spec.selector.iter_mut().for_each(cut_texts);
    }
    let Some(status) = &mut service.status else { return };
    cut(&mut status.conditions, MAX_ITEMS);
    if let Some(balancer) = &mut status.load_balancer {
        cut(&mut balancer.ingress, MAX_ITEMS);
        for ingress in balancer.ingress.iter_mut().flatten() {
            cut(&mut ingress.ports, MAX_PORT_STATES);
        }
    }
}

/// Cuts the lists of an Ingress.
pub fn ingress(ingress: &mut Ingress) {
    if let Some(spec) = &mut ingress.spec {
        cut(&mut spec.rules, MAX_ROUTES + 1);
        let mut room = MAX_ROUTES + 1;
        for http in spec.rules.iter_mut().flatten().filter_map(|rule| rule.http.as_mut()) {
            cut_vec(&mut http.paths, room);
            room -= http.paths.len();
        }
        cut(&mut spec.tls, MAX_HOSTS + 1);
        let mut room = MAX_HOSTS + 1;
        for tls in spec.tls.iter_mut().flatten() {
            cut(&mut tls.hosts, room);
            room -= tls.hosts.as_ref().map_or(0, Vec::len);
        }
    }
    let balancer = ingress.status.as_mut().and_then(|status| status.load_balancer.as_mut());
    if let Some(balancer) = balancer {
        cut(&mut balancer.ingress, MAX_ITEMS);
        for ingress in balancer.ingress.iter_mut().flatten() {
            cut(&mut ingress.ports, MAX_PORT_STATES);
        }
    }
}

/// Cuts an Ingress of another class to its name: the host of the first entry in `spec.tls`. A change of the class delivers it as a whole.
pub fn foreign_ingress(ingress: &mut Ingress) {
    let Some(spec) = &mut ingress.spec else { return };
    (spec.rules, spec.default_backend) = (None, None);
    cut(&mut spec.tls, 1);
    for tls in spec.tls.iter_mut().flatten() {
        cut(&mut tls.hosts, 1);
        tls.secret_name = None;
    }
}

/// Cuts a list of names of `ProxyGroup`s. A name that is too long stays invalid.
pub fn group_names(names: &mut Vec<String>) {
    cut_vec(names, MAX_GROUP_NAMES + 1);
    for name in names.iter_mut().filter(|name| name.len() > MAX_LABEL) {
        *name = name.chars().take(MAX_LABEL + 1).collect();
    }
}

/// Cuts the lists of an EndpointSlice, and texts that no reader needs or that are longer than valid ones.
pub fn slice(slice: &mut EndpointSlice) {
    if let Some(ports) = &mut slice.ports {
        ports.retain(|port| is_text(port.name.as_deref(), MAX_LABEL) && is_text(port.protocol.as_deref(), MAX_LABEL));
        cut_vec(ports, MAX_PORTS);
        for port in ports {
            port.app_protocol = None;
        }
    }
    let Some(endpoints) = &mut slice.endpoints else { return };
    cut_vec(endpoints, MAX_ENDPOINTS);
    let mut spare = MAX_ENDPOINTS - endpoints.len();
    for endpoint in endpoints {
        endpoint.addresses.retain(|address| address.len() <= MAX_NAME);
        cut_vec(&mut endpoint.addresses, 1 + spare);
        spare -= endpoint.addresses.len().saturating_sub(1);
        (endpoint.deprecated_topology, endpoint.hostname, endpoint.target_ref) = (None, None, None);
        endpoint.zone.take_if(|zone| zone.len() > MAX_LABEL);
        endpoint.node_name.take_if(|node| node.len() > MAX_NAME);
        let Some(hints) = &mut endpoint.hints else { continue };
        hints.for_nodes = None;
        if let Some(zones) = &mut hints.for_zones {
            zones.retain(|zone| zone.name.len() <= MAX_LABEL);
            cut_vec(zones, MAX_HINTS);
        }
    }
}

/// Fault of a Service with too many ports, with an action.
pub fn service_excess(service: &Service) -> Option<String> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()).map_or(0, Vec::len);
    (ports > MAX_PORTS).then(|| format!("spec.ports has more than {MAX_PORTS} entries: divide the Service into several."))
}

/// Fault of an Ingress with too many rules or hosts, with an action.
pub fn ingress_excess(ingress: &Ingress) -> Option<String> {
    let spec = ingress.spec.as_ref()?;
    let (rules, tls) = (spec.rules.as_deref().unwrap_or_default(), spec.tls.as_deref().unwrap_or_default());
    let paths: usize = rules.iter().filter_map(|rule| rule.http.as_ref()).map(|http| http.paths.len()).sum();
    let hosts: usize = tls.iter().filter_map(|tls| tls.hosts.as_ref()).map(Vec::len).sum();
    if rules.len().max(paths) > MAX_ROUTES {
        return Some(format!("spec.rules has more than {MAX_ROUTES} rules or paths: divide the Ingress into several."));
    }
    (tls.len().max(hosts) > MAX_HOSTS).then(|| format!("spec.tls has more than {MAX_HOSTS} entries or hosts: remove some of them."))
}

/// Whether a text of another writer has the length of a valid one and no control characters.
pub fn is_clean(text: &str) -> bool {
    text.chars().nth(MAX_TEXT).is_none() && !text.contains(char::is_control)
}

/// A text of another writer, for conditions, Events and terminals: cut, without control characters.
pub fn clean(text: impl Into<String>) -> String {
    let text = text.into();
    if is_clean(&text) {
        return text;
    }
    let (most, end) = if text.chars().nth(MAX_TEXT).is_some() { (MAX_TEXT - 1, "…") } else { (MAX_TEXT, "") };
    let printable = text.chars().take(most).map(|character| if character.is_control() { ' ' } else { character });
    printable.chain(end.chars()).collect()
}

fn cut<T>(list: &mut Option<Vec<T>>, length: usize) {
    if let Some(list) = list {
        cut_vec(list, length);
    }
}

fn cut_vec<T>(list: &mut Vec<T>, length: usize) {
    if list.len() > length {
        list.truncate(length);
        list.shrink_to_fit();
    }
}

/// Whether a text is no longer than valid ones.
fn is_text(text: Option<&str>, length: usize) -> bool {
    text.is_none_or(|text| text.len() <= length)
}

/// Whether a finalizer may be one of the reconciler's.
fn is_own(name: &str) -> bool {
    name.contains("tailscale.com/")
}

/// Cuts finalizers; one of the reconciler's has room at the end.
fn cut_finalizers<T>(finalizers: &mut Vec<T>, is_own: impl Fn(&T) -> bool) {
    if finalizers.len() > MAX_REFERENCES {
        let mut room = MAX_REFERENCES;
        finalizers.retain(|name| {
            let stays = room > 0 && (is_own(name) || room > 1);
            room -= usize::from(stays);
            stays
        });
        finalizers.shrink_to_fit();
    }
}

/// Whether passes read labels and annotations of this key.
pub fn is_read(key: &str) -> bool {
    READ.iter().any(|prefix| key.starts_with(prefix))
}

/// Cuts labels or annotations; without room only those that the reconciler reads stay.
fn cut_texts(texts: &mut BTreeMap<String, String>) {
    if texts.len() > MAX_TEXTS {
        *texts = std::mem::take(texts).into_iter().filter(|(key, _)| is_read(key)).take(MAX_TEXTS).collect();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
    use serde_json::json;

    use super::*;

    #[test]
    fn finalizer_and_annotations_of_ours_stay_among_many_others() {
        let own = "tailscale.com/finalizer";
        let finalizers: Vec<_> = (0..1_000).map(|number| format!("a/{number}")).chain([own.to_owned()]).collect();
        let annotations: BTreeMap<_, _> = (0..5_000)
            .map(|number| format!("a/{number}"))
            .chain(["tailscale.com/proxy-group".to_owned()])
            .map(|key| (key, String::new()))
            .collect();
        let mut value = json!({"metadata": {"name": "x", "finalizers": finalizers, "annotations": annotations, "selfLink": "x"}});
        let mut typed = ObjectMeta { finalizers: Some(finalizers), annotations: Some(annotations), ..ObjectMeta::default() };
        metadata(&mut typed);
        super::json(&mut value);
        let stored: ObjectMeta = serde_json::from_value(value["metadata"].clone()).expect("metadata");
        assert_eq!((&stored.finalizers, &stored.annotations), (&typed.finalizers, &typed.annotations));
        let finalizers = typed.finalizers.expect("finalizers");
        assert_eq!((finalizers.len(), finalizers.last().map(String::as_str)), (MAX_REFERENCES, Some(own)));
        assert_eq!(typed.annotations.expect("annotations").into_keys().collect::<Vec<_>>(), ["tailscale.com/proxy-group"]);
        assert!(value["metadata"]["selfLink"].is_null());
    }

    #[test]
    fn text_of_another_writer_is_cut_and_has_no_control_characters() {
        let long = |count: usize| "é".repeat(count);
        assert_eq!((clean(long(MAX_TEXT)), clean("")), (long(MAX_TEXT), String::new()));
        assert_eq!(clean(long(MAX_TEXT + 1)), long(MAX_TEXT - 1) + "…");
        assert_eq!(clean("a\u{1b}[2J\nb\u{85}"), "a [2J b ");
        assert!([long(9_000), "\n".repeat(9_000)].into_iter().all(|text| is_clean(&clean(text))));
    }

    #[test]
    fn cut_object_is_refused_and_one_at_the_maximum_is_whole() {
        let service_of = |ports: usize| Service {
            spec: Some(ServiceSpec { ports: Some(vec![ServicePort::default(); ports]), ..ServiceSpec::default() }),
            ..Service::default()
        };
        let ingress_of = |rules: usize, paths: usize, tls: usize, hosts: usize| -> Ingress {
            let rule = json!({"http": {"paths": vec![json!({"pathType": "Prefix", "backend": {}}); paths]}});
            let rules = [vec![rule], vec![json!({}); rules - 1]].concat();
            let tls = [vec![json!({"hosts": vec!["a"; hosts]})], vec![json!({}); tls - 1]].concat();
            serde_json::from_value(json!({"spec": {"rules": rules, "tls": tls}})).expect("an Ingress")
        };
        for ports in [MAX_PORTS, MAX_PORTS + 1, 5 * MAX_PORTS] {
            let mut cut = service_of(ports);
            service(&mut cut);
            assert_eq!((service_excess(&cut).is_some(), cut == service_of(ports)), (ports > MAX_PORTS, ports <= MAX_PORTS + 1));
        }
        let most = ingress_of(MAX_ROUTES, MAX_ROUTES, MAX_HOSTS, MAX_HOSTS);
        let mut cut = most.clone();
        ingress(&mut cut);
        assert!(cut == most && ingress_excess(&cut).is_none());
        for at in 0..4 {
            let count = |this: usize| if this == at { MAX_ROUTES + 5 } else { 1 };
            let mut cut = ingress_of(count(0), count(1), count(2), count(3));
            ingress(&mut cut);
            assert!(ingress_excess(&cut).is_some(), "{at}");
        }
    }
}

//! Each annotation of users on objects that are served in each way: it changes a plan, or it is reported.

use super::cluster::Cluster;
use super::*;
use crate::api::names;
use crate::model::controller::policy::ineffective::user_annotations;
use crate::model::controller::workload::actions::GroupPlan;

/// What serves an object of namespace `u`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServedBy {
    AnnotatedGroup,
    DefaultGroup,
    GroupOfClass,
    OwnProxy,
    OtherOperator,
}

/// Kind, name and server of an object. A Service `db` has a target, `files` is published, `plain` requests nothing.
const OBJECTS: [(&str, &str, ServedBy); 15] = [
    ("Service", "db", ServedBy::AnnotatedGroup),
    ("Service", "db", ServedBy::DefaultGroup),
    ("Service", "db", ServedBy::OwnProxy),
    ("Service", "db", ServedBy::OtherOperator),
    ("Service", "files", ServedBy::AnnotatedGroup),
    ("Service", "files", ServedBy::DefaultGroup),
    ("Service", "files", ServedBy::OwnProxy),
    ("Service", "files", ServedBy::OtherOperator),
    ("Service", "plain", ServedBy::DefaultGroup),
    ("Service", "plain", ServedBy::OwnProxy),
    ("Ingress", "shop", ServedBy::AnnotatedGroup),
    ("Ingress", "shop", ServedBy::DefaultGroup),
    ("Ingress", "shop", ServedBy::GroupOfClass),
    ("Ingress", "shop", ServedBy::OwnProxy),
    ("Ingress", "shop", ServedBy::OtherOperator),
];

fn object(name: &str, by: ServedBy) -> Value {
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    let class = if by == ServedBy::OtherOperator { "other" } else { "tailscale" };
    let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
    let (group, mut annotations, spec) = match name {
        "db" => {
            let target = json!({names::TAILNET_FQDN: "db.tail1234.ts.net"});
            ("eg", target, json!({"type": "ExternalName", "externalName": "placeholder", "ports": ports}))
        }
        "files" => ("in", json!({names::EXPOSE: "true"}), json!({"clusterIP": "10.96.0.30", "ports": ports})),
        "plain" => ("in", json!({}), json!({"clusterIP": "10.96.0.31", "ports": ports})),
        _ => ("in", json!({}), json!({"ingressClassName": class, "tls": [{"hosts": [name]}], "defaultBackend": backend})),
    };
    if by == ServedBy::AnnotatedGroup {
        annotations[names::PROXY_GROUP] = json!(group);
    }
    json!({"metadata": {"name": name, "namespace": "u", "annotations": annotations}, "spec": spec})
}

/// A cluster at rest with the object.
fn cluster((kind, name, by): (&'static str, &str, ServedBy)) -> Cluster {
    let mut cluster = Cluster::new();
    let rules = Arc::make_mut(&mut cluster.cache.assignment);
    match by {
        ServedBy::DefaultGroup => rules.defaults = DefaultGroups { ingress: Some("in".into()), egress: Some("eg".into()) },
        ServedBy::OtherOperator => rules.standalone = StandaloneScope::Nowhere,
        ServedBy::GroupOfClass => {
            let parameters = json!({"apiGroup": "tailscale.com", "kind": "ProxyGroup", "name": "in"});
            let spec = json!({"controller": names::INGRESS_CONTROLLER, "parameters": parameters});
            cluster.put("IngressClass", json!({"metadata": {"name": "tailscale"}, "spec": spec}));
        }
        ServedBy::AnnotatedGroup | ServedBy::OwnProxy => {}
    }
    cluster.put("Namespace", json!({"metadata": {"name": "u"}}));
    for (name, kind) in [("eg", "egress"), ("in", "ingress")] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": kind, "replicas": 1}}));
    }
    cluster.put_backends(&["u"]);
    cluster.put(kind, object(name, by));
    assert!(cluster.settles(), "{kind} {name} {by:?}: {:?}", cluster.events);
    cluster
}

/// A valid value of an annotation that changes something.
fn value(key: &str) -> &'static str {
    match key {
        names::HOSTNAME => "renamed",
        names::TAGS => "tag:other",
        names::TAILNET_FQDN => "new.tail1234.ts.net",
        names::TAILNET_IP | names::FORMER_TAILNET_IP => "100.64.0.77",
        names::PROXY_CLASS | names::PROXY_GROUP => "missing",
        names::HTTP_ENDPOINT => "enabled",
        _ => "true",
    }
}

fn plans(cluster: &Cluster) -> BTreeMap<String, GroupPlan> {
    let keys = Cluster::keys(&cluster.cache).into_iter();
    keys.map(|key| (key.clone(), cluster.plan(&cluster.cache, &key))).collect()
}

#[test]
fn annotation_changes_a_plan_or_is_reported() {
    let mut faults = Vec::new();
    for (kind, name, by) in OBJECTS {
        let mut cluster = cluster((kind, name, by));
        let source = if kind == "Ingress" { PublishSource::Ingress } else { PublishSource::Service };
        let publisher = Publisher { source, namespace: "u".into(), name: name.into() };
        let (before, own) = (plans(&cluster), object(name, by)["metadata"]["annotations"].clone());
        assert_eq!(cluster.cache.report_annotations(&publisher), None, "{kind} {name} {by:?}");
        for key in user_annotations().chain(["example.com/other"]) {
            // The opposite of what the object has.
            let is_removed = own[key] == value(key);
            let value = if is_removed { Value::Null } else { json!(value(key)) };
            cluster.patch(kind, "u", name, &json!({"metadata": {"annotations": {key: value}}}));
            let has_effect = plans(&cluster) != before;
            let report = cluster.cache.report_annotations(&publisher);
            let is_reported = !is_removed && report.is_some_and(|(_, message)| message.contains(key));
            let is_silent = by == ServedBy::OtherOperator || key == "example.com/other";
            if (has_effect && is_reported) || (!is_silent && !has_effect && !is_reported) {
                faults.push(format!("{kind} {name} {by:?} {key}: effect {has_effect}, reported {is_reported}"));
            }
            cluster.patch(kind, "u", name, &json!({"metadata": {"annotations": {key: own[key]}}}));
        }
        assert!(plans(&cluster) == before, "{kind} {name} {by:?} is as before");
    }
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

//! Values of `tailscale.com/proxy-group` that are no DNS labels: refused with a condition or an Event, and what is served stays.

use super::cluster::{Cluster, NS};
use super::*;
use crate::api::names;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::egress_config;

/// Values that name no group; those with a slash are keys of other objects.
fn invalid() -> Vec<String> {
    let fixed = [
        "v/nas",
        "ingress/v/shop",
        "x/",
        "/x",
        "ingress//",
        "ingress/v/",
        "a/b/c/d",
        "UPPER",
        "Eg",
        "a.b",
        "a_b",
        "-a",
        "a-",
        "a b",
        "ä",
        "..",
    ];
    // The longest name has 63 characters.
    fixed.into_iter().map(str::to_owned).chain(["a".repeat(64), format!("v/{}", "a".repeat(200))]).collect()
}

fn metadata(namespace: &str, name: &str, group: Option<&str>, more: &Value) -> Value {
    let mut annotations = more.clone();
    if let Some(group) = group {
        annotations[names::PROXY_GROUP] = json!(group);
    }
    json!({"name": name, "namespace": namespace, "annotations": annotations})
}

fn ingress(namespace: &str, name: &str, group: Option<&str>) -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": [name]}], "defaultBackend": backend});
    json!({"metadata": metadata(namespace, name, group, &json!({})), "spec": spec})
}

fn egress(namespace: &str, name: &str, group: Option<&str>) -> Value {
    let annotations = json!({names::TAILNET_FQDN: "db.tail1234.ts.net"});
    json!({"metadata": metadata(namespace, name, group, &annotations),
        "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [{"name": "db", "port": 80, "protocol": "TCP"}]}})
}

fn exposed(namespace: &str, name: &str, group: Option<&str>) -> Value {
    json!({"metadata": metadata(namespace, name, group, &json!({names::EXPOSE: "true"})),
        "spec": {"clusterIP": "10.96.0.30", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}})
}

/// Groups `eg` and `in`, and objects of namespace `v` with proxies of their own.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    for (name, kind) in [("eg", "egress"), ("in", "ingress")] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": kind, "replicas": 1}}));
    }
    for namespace in ["v", "t"] {
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        cluster.put(
            "Service",
            json!({"metadata": metadata(namespace, "web", None, &json!({})), "spec": {"clusterIP": "10.96.0.10", "ports": ports}}),
        );
    }
    cluster.put("Ingress", ingress("v", "shop", None));
    cluster.put("Service", exposed("v", "nas", None));
    assert!(cluster.settles(), "{:?}", cluster.events);
    cluster
}

/// Objects of `t`, by kind and name.
const OBJECTS: [(&str, &str); 3] = [("Ingress", "app"), ("Service", "db"), ("Service", "files")];

fn object(name: &str, group: Option<&str>) -> Value {
    match name {
        "app" => ingress("t", name, group),
        "db" => egress("t", name, group),
        _ => exposed("t", name, group),
    }
}

/// Keys that see an object.
fn seen_by(cluster: &Cluster, kind: &str, name: &str) -> BTreeSet<String> {
    let id = ("t".to_owned(), name.to_owned());
    let members = cluster.cache.indices.workloads.iter();
    let sees = members
        .filter(|(_, members)| if kind == "Ingress" { members.ingresses.contains_key(&id) } else { members.services.contains_key(&id) });
    sees.map(|(key, _)| super::cluster::text(key)).collect()
}

/// The faults that an object reports about its annotation.
fn reports(cluster: &Cluster, (kind, name): (&str, &str), events: usize) -> Vec<String> {
    let all = if kind == "Ingress" {
        cluster.events[events..].iter().filter(|event| event.contains(&format!("t/{name} "))).cloned().collect()
    } else {
        let conditions = cluster.conditions("t", name);
        conditions.into_iter().filter(|condition| condition.contains(" False ")).collect::<Vec<_>>()
    };
    all.into_iter().filter(|report| report.contains(names::PROXY_GROUP)).collect()
}

/// Everything that serves objects of other namespaces.
fn others(cluster: &Cluster) -> Vec<Value> {
    let others = cluster.objects.iter().filter(|((_, namespace, _), _)| namespace == NS || namespace == "v");
    let without_version = others.map(|(_, object)| {
        let mut object = object.clone();
        object["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
        object
    });
    without_version.collect()
}

#[test]
fn new_object_with_an_invalid_group_is_refused_and_joins_no_other_key() {
    let mut faults = Vec::new();
    for value in invalid() {
        for (kind, name) in OBJECTS {
            let mut cluster = cluster();
            let (before, events) = (others(&cluster), cluster.events.len());
            let keys = Cluster::keys(&cluster.cache);
            cluster.put(kind, object(name, Some(&value)));
            if !cluster.settles() {
                faults.push(format!("{kind} {value:?}: no rest"));
            }
            let own = [format!("t/{name}"), format!("ingress/t/{name}"), String::new()];
            let joined: Vec<_> = seen_by(&cluster, kind, name)
                .into_iter()
                .filter(|key| !own.contains(key) && (keys.contains(key) || key.contains('/')))
                .collect();
            if !joined.is_empty() {
                faults.push(format!("{kind} {value:?} joins {joined:?}"));
            }
            if reports(&cluster, (kind, name), events).is_empty() {
                faults.push(format!("{kind} {value:?}: no report about the annotation"));
            }
            let stored = cluster.object(kind, "t", name).expect("the object");
            if stored["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
                faults.push(format!("{kind} {value:?} has finalizers"));
            }
            if others(&cluster) != before {
                faults.push(format!("{kind} {value:?} changes objects of others"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

/// What serves the objects of `t`: the entry in the config of its group, and what its status or `externalName` says.
fn served(cluster: &Cluster, kind: &'static str, name: &str) -> Value {
    let config = |name: &str| cluster.object("ConfigMap", NS, name).expect("a config");
    let stored = cluster.object(kind, "t", name).expect("the object");
    let shown = json!([stored["status"]["loadBalancer"], stored["spec"]["externalName"]]);
    if name == "db" {
        return json!([egress_config(config("eg-egress-config")), shown, stored["metadata"]["finalizers"]]);
    }
    let config = IngressConfigMap::read(config("in-ingress-config"));
    json!([config.origins, config.routes, config.mappings, shown, stored["metadata"]["finalizers"]])
}

#[test]
fn served_object_with_an_invalid_group_stays_served() {
    let mut faults = Vec::new();
    for (kind, name) in OBJECTS {
        let mut cluster = cluster();
        cluster.put(kind, object(name, Some(if name == "db" { "eg" } else { "in" })));
        assert!(cluster.settles(), "{:?}", cluster.events);
        let before = served(&cluster, kind, name);
        assert!(before.to_string().contains(if name == "db" { "t-db" } else { "svc:" }), "{kind} {name} is served: {before}");
        for value in invalid() {
            let events = cluster.events.len();
            cluster.patch(kind, "t", name, &json!({"metadata": {"annotations": {names::PROXY_GROUP: value}}}));
            if !cluster.settles() {
                faults.push(format!("{kind} {name} {value:?}: no rest"));
            }
            let now = served(&cluster, kind, name);
            if now != before {
                faults.push(format!("{kind} {name} {value:?}: served as {now}, before as {before}"));
            }
            if reports(&cluster, (kind, name), events).is_empty() {
                faults.push(format!("{kind} {name} {value:?}: no report about the annotation"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

#[test]
fn standalone_proxy_with_an_invalid_group_stays() {
    let mut faults = Vec::new();
    for (kind, name) in OBJECTS {
        let mut cluster = cluster();
        cluster.put(kind, object(name, None));
        assert!(cluster.settles(), "{:?}", cluster.events);
        let shown = |cluster: &Cluster| {
            let stored = cluster.object(kind, "t", name).expect("the object");
            json!([stored["status"]["loadBalancer"], stored["spec"]["externalName"], stored["metadata"]["finalizers"]])
        };
        let before = (others(&cluster), shown(&cluster));
        let own = if kind == "Ingress" { format!("ingress/t/{name}") } else { format!("t/{name}") };
        for value in invalid() {
            let events = cluster.events.len();
            cluster.patch(kind, "t", name, &json!({"metadata": {"annotations": {names::PROXY_GROUP: value}}}));
            if !cluster.settles() {
                faults.push(format!("{kind} {name} {value:?}: no rest"));
            }
            if (others(&cluster), shown(&cluster)) != before {
                faults.push(format!("{kind} {name} {value:?}: its proxy changes"));
            }
            if seen_by(&cluster, kind, name) != [own.clone()].into() {
                faults.push(format!("{kind} {name} {value:?}: seen by {:?}", seen_by(&cluster, kind, name)));
            }
            if reports(&cluster, (kind, name), events).len() != 1 {
                faults.push(format!("{kind} {name} {value:?}: not one report about the annotation"));
            }
        }
        cluster.patch(kind, "t", name, &json!({"metadata": {"annotations": {names::PROXY_GROUP: null}}}));
        assert!(cluster.settles(), "{:?}", cluster.events);
        assert_eq!(((others(&cluster), shown(&cluster)) == before, reports(&cluster, (kind, name), cluster.events.len()).len()), (true, 0));
    }
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

#[test]
fn served_object_with_an_invalid_group_is_released_when_deleted() {
    for (kind, name) in OBJECTS {
        let mut cluster = cluster();
        cluster.put(kind, object(name, Some(if name == "db" { "eg" } else { "in" })));
        assert!(cluster.settles(), "{:?}", cluster.events);
        cluster.patch(kind, "t", name, &json!({"metadata": {"annotations": {names::PROXY_GROUP: "v/nas"}}}));
        assert!(cluster.settles(), "{:?}", cluster.events);
        cluster.patch(kind, "t", name, &json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}}));
        assert!(cluster.settles(), "{:?}", cluster.events);
        assert_eq!(cluster.object(kind, "t", name), None, "no finalizer is left");
    }
}

#[test]
fn empty_group_opts_out_and_joins_no_other_key() {
    for value in ["", " "] {
        for (kind, name) in OBJECTS {
            let mut cluster = cluster();
            cluster.put(kind, object(name, Some(value)));
            assert!(cluster.settles(), "{:?}", cluster.events);
            let own = if kind == "Ingress" { format!("ingress/t/{name}") } else { format!("t/{name}") };
            assert_eq!(seen_by(&cluster, kind, name), [own].into(), "{kind} {name} {value:?}");
            assert_eq!(cluster.takeovers, [""; 0]);
        }
    }
}

/// An Ingress or a Service that the group `in` serves names another group.
#[test]
fn object_whose_new_group_publishes_nothing_stays_served() {
    for kind in ["Ingress", "Service"] {
        for named in ["typo", "eg"] {
            let mut cluster = Cluster::new();
            for (name, type_) in [("in", "ingress"), ("eg", "egress")] {
                cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": type_, "replicas": 1}}));
            }
            let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
            cluster.put(
                "Service",
                json!({"metadata": {"name": "web", "namespace": "u"}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}}),
            );
            let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/hostname": "shop"});
            let annotations = if kind == "Ingress" { json!({"tailscale.com/proxy-group": "in"}) } else { annotations };
            let spec = match kind {
                "Ingress" => json!({"ingressClassName": "tailscale", "tls": [{"hosts": ["shop"]}],
                    "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}),
                _ => json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports}),
            };
            cluster.put(kind, json!({"metadata": {"name": "shop", "namespace": "u", "annotations": annotations}, "spec": spec}));
            assert!(cluster.settles());
            let record = |cluster: &Cluster, group: &str| {
                let config = cluster.object("ConfigMap", NS, &names::ingress_config(group))?;
                crate::model::controller::workload::objects::ingress::IngressConfigMap::origins(config).get("svc:shop").cloned()
            };
            let before = (
                record(&cluster, "in").expect("a record"),
                cluster.object(kind, "u", "shop").expect("it")["status"]["loadBalancer"].clone(),
            );
            let writes = cluster.writes.len();
            cluster.patch(kind, "u", "shop", &json!({"metadata": {"annotations": {"tailscale.com/proxy-group": named}}}));
            assert!(cluster.settles(), "{kind} {named}");
            let after = (
                record(&cluster, "in").expect("a record"),
                cluster.object(kind, "u", "shop").expect("it")["status"]["loadBalancer"].clone(),
            );
            assert_eq!(before, after, "{kind} {named}");
            assert_eq!(cluster.writes[writes..], [""; 0], "{kind} {named}: nothing of what is served changes");
            let reported = match kind {
                "Ingress" => cluster.events.iter().any(|event| event.contains(&format!("ProxyGroup {named}"))),
                _ => cluster.conditions("u", "shop").iter().any(|one| one.contains(&format!("ProxyGroup {named}"))),
            };
            assert!(reported, "{kind} {named}: {:?} {:?}", cluster.events, cluster.object(kind, "u", "shop"));
            // The group is created: the object moves there.
            if named == "typo" {
                cluster.put("ProxyGroup", json!({"metadata": {"name": "typo"}, "spec": {"type": "ingress", "replicas": 1}}));
                assert!(cluster.settles(), "{kind}");
                // The former group serves it until the new one does; the Service has no endpoint.
                assert_eq!((record(&cluster, "in").is_none(), record(&cluster, "typo").is_some()), (kind == "Ingress", true), "{kind}");
            }
            // Deletion ends.
            let ended = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
            cluster.patch(kind, "u", "shop", &ended);
            assert!(cluster.settles());
            cluster.wait(600);
            assert!(cluster.settles());
            assert_eq!(cluster.object(kind, "u", "shop"), None, "{kind} {named}");
            assert_eq!((record(&cluster, "in"), record(&cluster, "typo")), (None, None), "{kind} {named}");
        }
    }
}

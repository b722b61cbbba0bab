//! Users' Services and Ingresses.

use super::*;

#[test]
fn overlapping_routes_of_groups_and_services_are_named() {
    let with = |object: Value| {
        let mut object = object;
        object["status"]["conditions"] = json!([{"type": "TailyardRoutesOverlap", "status": "True", "message": "covers 10.244.0.0/16"}]);
        object
    };
    finds(&well(), "routes", Finding::Ok, "no proxy");
    let groups = Ok(vec![with(group("eg", "egress"))]);
    finds(&ClusterFacts { groups, ..well() }, "routes", Finding::Warn, "ProxyGroup eg: covers 10.244.0.0/16");
    let services = Ok(vec![with(service("expose", "True", "ProxyCreated", ""))]);
    finds(&ClusterFacts { services, ..well() }, "routes", Finding::Warn, "covers 10.244.0.0/16");
}

#[test]
fn requests_that_new_objects_may_not_have_are_named_with_their_value() {
    let object = |name: &str, annotations: Value, spec: Value| json!({"metadata": {"namespace": "u", "name": name, "annotations": annotations}, "spec": spec});
    let exposed = |more: Value| {
        let mut all = json!({"tailscale.com/expose": "true"});
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        all
    };
    let external = json!({"type": "ExternalName", "externalName": "db.other.svc.cluster.local"});
    let mut db = object("db", json!({}), json!({"clusterIP": "10.96.3.4"}));
    db["metadata"]["namespace"] = json!("other");
    let services = vec![
        object("tagged", exposed(json!({"tailscale.com/tags": "tag:k8s, tag:hr, tag:web-1"})), json!({})),
        object("grouped", exposed(json!({"tailscale.com/tags": "tag:group", "tailscale.com/proxy-group": "web"})), json!({})),
        object("to-db", exposed(json!({})), external),
        object("out", exposed(json!({"tailscale.com/proxy-group": ""})), json!({})),
        object("plain", json!({"tailscale.com/tags": "tag:hr"}), json!({})),
        db,
    ];
    let with = |env: Value, tenants: Value| {
        let mut reconciler = deployment("ts", "tailyard-reconciler", "x", 2);
        reconciler["spec"]["template"]["spec"]["containers"][0]["env"] = env;
        let mut web = group("web", "ingress");
        web["spec"]["tags"] = json!(["tag:group"]);
        let mut restricted = group("tenants", "ingress");
        restricted["spec"]["tailyard"] = json!({"tenants": tenants});
        ClusterFacts { deployments: Ok(vec![reconciler]), groups: Ok(vec![web, restricted]), services: Ok(services.clone()), ..well() }
    };
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let strict = with(json!([variable("PROXY_TAGS", "tag:k8s")]), json!([{"namespaceSelector": {}}]));
    finds(&strict, "policy", Finding::Warn, "Service u/tagged: tag tag:hr is not in permittedTags");
    finds(&strict, "policy", Finding::Warn, "Service u/to-db: db.other.svc.cluster.local is a Service of the cluster");
    let count = |facts: &ClusterFacts| cluster::checks(facts).iter().filter(|check| check.name == "policy").count();
    for name in ["out", "tagged", "to-db"] {
        finds(&strict, "policy", Finding::Warn, &format!("Service u/{name}: it names no ProxyGroup, a ProxyGroup has tenants"));
    }
    assert_eq!(count(&strict), 6, "two tags of one Service, one Service of the cluster, three without a ProxyGroup");
    let default = [variable("PROXY_TAGS", "tag:k8s"), variable("TAILYARD_DEFAULT_INGRESS_GROUP", "web")];
    let default = with(json!(default), json!([{"namespaceSelector": {}}]));
    finds(&default, "policy", Finding::Warn, "Service u/out: it names no ProxyGroup, a ProxyGroup has tenants");
    assert_eq!(count(&default), 4, "the default ProxyGroup serves the others");
    let permitted =
        [("PROXY_TAGS", "tag:k8s"), ("TAILYARD_PERMITTED_TAGS", "tag:hr,tag:web-*"), ("TAILYARD_ALLOWED_TARGETS", "10.96.0.0/16")];
    let permitted = with(json!(permitted.map(|(name, value)| variable(name, value))), json!([]));
    finds(&permitted, "policy", Finding::Ok, "it permits what Services and Ingresses request");
}

#[test]
fn fault_of_an_ingress_is_found_while_its_events_are_repeated() {
    let event = |minutes| Ok(vec![ingress_event("shop", "NameConflict", "Service u/web has the name shop already.", minutes)]);
    let ingress = |uid: &str| Ok(vec![json!({"metadata": {"namespace": "u", "name": "shop", "uid": uid}})]);
    let with = |minutes, uid| ClusterFacts { ingress_events: event(minutes), ingresses: ingress(uid), ..well() };
    finds(&with(34, "shop"), "ingresses", Finding::Warn, "Ingress u/shop: NameConflict: Service u/web has the name shop already.");
    finds(&with(36, "shop"), "ingresses", Finding::Ok, "no Event");
    finds(&with(1, "another"), "ingresses", Finding::Ok, "no Event");
}

#[test]
fn annotation_of_a_standalone_proxy_is_named_where_a_group_serves_by_default_or_class() {
    let mut reconciler = deployment("ts", "tailyard-reconciler", "x", 2);
    set_variables(&mut reconciler, &[("TAILYARD_DEFAULT_INGRESS_GROUP", "in")]);
    let metadata = json!({"namespace": "u", "name": "web", "annotations": {"tailscale.com/expose": "true", "tailyard.io/standby": "true"}});
    let facts = ClusterFacts { deployments: Ok(vec![reconciler]), services: Ok(vec![json!({"metadata": metadata})]), ..well() };
    finds(&facts, "annotations", Finding::Warn, "Service u/web: Annotation tailyard.io/standby is for objects with a proxy of their own");
    let labels = json!({"tailyard.io/default-proxy-group": "disabled"});
    let namespaces = Ok(vec![json!({"metadata": {"name": "u", "labels": labels}})]);
    finds(&ClusterFacts { namespaces, ..facts.clone() }, "annotations", Finding::Ok, "have an effect");
    finds(&ClusterFacts { namespaces: Err(Gap::Forbidden), ..facts.clone() }, "annotations", Finding::Warn, "labels of namespaces");
    let metadata = json!({"namespace": "u", "name": "web", "annotations": {"tailscale.com/proxy-class": "c"}});
    let ingresses = Ok(vec![json!({"metadata": metadata, "spec": {"ingressClassName": "tailscale"}})]);
    let parameters = json!({"apiGroup": "tailscale.com", "kind": "ProxyGroup", "name": "of-class"});
    let mut classes = well().classes.expect("classes");
    classes[0]["spec"]["parameters"] = parameters;
    let of_class = ClusterFacts { services: Ok(vec![]), ingresses, classes: Ok(classes), ..facts };
    finds(&of_class, "annotations", Finding::Warn, "ProxyGroup of-class, which spec.parameters of the IngressClass name, serves this one");
}

#[test]
fn many_objects_with_unknown_annotations_are_counted() {
    let service =
        |n: u32| json!({"metadata": {"namespace": "u", "name": format!("s{n}"), "annotations": {"tailscale.com/exposed": "true"}}});
    let facts = ClusterFacts { services: Ok((0..25).map(service).collect()), ..well() };
    finds(&facts, "annotations", Finding::Warn, "Service u/s9: Annotation tailscale.com/exposed is unknown");
    finds(&facts, "annotations", Finding::Warn, "15 more objects have annotations without effect");
}

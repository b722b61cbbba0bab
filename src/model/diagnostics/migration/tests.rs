use serde_json::{Map, json};

use super::table::{Replacement, VALUES, VARIABLES};
use super::*;
use crate::api::names;
use crate::model::diagnostics::overview::Gap;

mod values;

/// A running Tailscale operator with these variables.
fn operator_with(variables: &[(&str, &str)]) -> Value {
    let usual = [
        ("OPERATOR_SECRET", "acme"),
        ("PROXY_TAGS", "tag:k8s"),
        ("PROXY_IMAGE", "tailscale/tailscale:v1.104.7"),
        ("APISERVER_PROXY", "false"),
    ];
    let env: Map<String, Value> = usual.iter().chain(variables).map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let env: Vec<_> = env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"metadata": {"namespace": "ts", "name": "acme"}, "spec": {"replicas": 1, "template": {"spec": {"containers": [
        {"name": "operator", "image": "mirror.example/ts:1", "env": env}]}}}})
}

fn group(name: &str, type_: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": type_}})
}

fn service(name: &str, annotations: &Value, spec: &Value) -> Value {
    json!({"metadata": {"namespace": "u", "name": name, "annotations": annotations}, "spec": spec})
}

fn ingress(name: &str, class: &str, annotations: &Value) -> Value {
    json!({"metadata": {"namespace": "u", "name": name, "annotations": annotations}, "spec": {"ingressClassName": class}})
}

/// A cluster with an operator, its `IngressClass` and one object of each kind that is taken over.
fn cluster(variables: &[(&str, &str)]) -> MigrationFacts {
    let expose = json!({"tailscale.com/expose": "true"});
    let services = vec![
        service("web", &expose, &json!({})),
        service("db", &json!({"tailscale.com/tailnet-fqdn": "db.t.ts.net", "tailscale.com/proxy-group": "eg"}), &json!({})),
        service("lb", &json!({}), &json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale"})),
        service("other", &json!({}), &json!({"type": "LoadBalancer"})),
    ];
    let facts = ClusterFacts {
        deployments: Ok(vec![operator_with(variables)]),
        groups: Ok(vec![group("eg", "egress"), group("in", "ingress")]),
        services: Ok(services),
        ingresses: Ok(vec![
            ingress("app", "tailscale", &json!({})),
            ingress("site", "tailscale", &json!({"tailscale.com/proxy-group": "in"})),
            ingress("nginx", "nginx", &json!({})),
        ]),
        namespaces: Ok(vec![json!({"metadata": {"name": "u"}})]),
        classes: Ok(vec![json!({"metadata": {"name": "tailscale"}, "spec": {"controller": names::INGRESS_CONTROLLER}})]),
        ..ClusterFacts::new("ts")
    };
    MigrationFacts { cluster: facts, proxy_classes: Ok(vec![json!({"metadata": {"name": "prod"}, "spec": {}})]) }
}

/// The cluster with the reconciler that these values install.
fn planned_with(facts: MigrationFacts, values: &Value) -> MigrationFacts {
    let values = values.as_object().cloned().unwrap_or_default();
    let mut facts = facts;
    facts.cluster.deployments.as_mut().expect("Deployments").push(planned::deployment(&values, "ts"));
    facts
}

/// Changes the facts of a cluster.
fn changed(mut facts: MigrationFacts, change: impl FnOnce(&mut ClusterFacts)) -> MigrationFacts {
    change(&mut facts.cluster);
    facts
}

fn finds(facts: &MigrationFacts, name: &str, finding: Finding, text: &str) {
    let checks = checks(facts);
    let is_found = |check: &Check| check.name == name && check.finding == finding && check.what.contains(text);
    assert!(checks.iter().any(is_found), "no {finding:?} {name} with {text:?} in {checks:#?}");
    assert_eq!(exit_code(&checks) == 1, checks.iter().any(|check| check.finding == Finding::Bad), "{checks:#?}");
}

#[test]
fn cluster_with_kinds_that_tailyard_serves_is_ready() {
    let facts = cluster(&[]);
    let all = checks(&facts);
    assert!(all.iter().all(|check| check.finding == Finding::Ok || check.name == "settings"), "{all:#?}");
    assert_eq!(exit_code(&all), 0);
    for (name, text) in [
        ("operator", "ts/acme runs, image mirror.example/ts:1, state Secret acme"),
        ("api-server-proxy", "no API server proxy"),
        ("proxygroups", "taken over: eg, in"),
        ("services", "taken over: u/web, u/db, u/lb"),
        ("ingresses", "taken over: u/app, u/site"),
        ("proxyclasses", "taken over: prod"),
        ("kinds", "no objects"),
    ] {
        finds(&facts, name, Finding::Ok, text);
    }
    finds(&facts, "settings", Finding::Warn, "operatorConfig.secret=acme");
    let planned = planned_with(facts, &json!({"operatorConfig": {"secret": "acme"}}));
    finds(&planned, "settings", Finding::Ok, "Tailyard has those of the operator");
}

#[test]
fn kinds_that_are_not_served_or_off_are_lost() {
    for (kind, value) in [
        ("Connector", Some("connectors")),
        ("ProxyGroupPolicy", Some("proxyGroupPolicies")),
        ("DNSConfig", Some("dnsConfigs")),
        ("PeerRelay", None),
        ("Recorder", None),
    ] {
        let facts = changed(cluster(&[]), |facts| {
            facts.unreconciled.insert(kind, Ok(vec![json!({"metadata": {"name": "one"}})]));
        });
        finds(&facts, "kinds", Finding::Bad, &format!("{kind} one"));
        let Some(value) = value else { continue };
        let on = planned_with(facts.clone(), &json!({value: {"enabled": true}}));
        // Some of its records end.
        let finding = if kind == "DNSConfig" { Finding::Warn } else { Finding::Ok };
        finds(&on, "kinds", finding, &format!("taken over: {kind} one"));
        finds(&planned_with(facts, &json!({value: {"enabled": false}})), "kinds", Finding::Bad, "off by default");
    }
}

#[test]
fn objects_that_the_planned_values_do_not_serve_are_lost() {
    let lost = |values: Value, name: &str, text: &str| finds(&planned_with(cluster(&[]), &values), name, Finding::Bad, text);
    lost(json!({"standalone": {"enabled": false}}), "services", "u/web: it names no ProxyGroup, and standalone.enabled is false");
    lost(json!({"standalone": {"enabled": false}}), "ingresses", "u/app: it names no ProxyGroup");
    lost(json!({"proxyGroupTypes": ["ingress"]}), "proxygroups", "not reconciled, as proxyGroupTypes omits their type: eg");
    lost(json!({"proxyGroupTypes": ["ingress"]}), "services", "u/db: ProxyGroup eg is not reconciled");
    lost(json!({"watchNamespaces": ["shop"]}), "services", "u/lb: its namespace is not in watchNamespaces");
    lost(json!({"ingress": {"className": "inside"}}), "ingresses", "u/app: its class is not ingress.className, inside");
    let without_class = changed(cluster(&[]), |facts| facts.classes = Ok(vec![]));
    finds(&without_class, "ingresses", Finding::Bad, "u/app: there is no IngressClass tailscale");
    let by_default = planned_with(cluster(&[]), &json!({"standalone": {"enabled": false}, "defaultProxyGroups": {"ingress": "in"}}));
    finds(&by_default, "services", Finding::Ok, "u/db");
}

#[test]
fn load_balancers_without_class_are_lost_where_the_operator_takes_them() {
    let facts = cluster(&[("OPERATOR_DEFAULT_LOAD_BALANCER", "true")]);
    finds(&facts, "services", Finding::Bad, "no loadBalancerClass (OPERATOR_DEFAULT_LOAD_BALANCER): u/other");
    finds(&facts, "settings", Finding::Bad, "OPERATOR_DEFAULT_LOAD_BALANCER of the operator has no counterpart");
}

#[test]
fn ends_of_kubectl_through_devices_are_named() {
    for variable in [("APISERVER_PROXY", "noauth"), ("APISERVER_PROXY", "true"), ("AUTH_PROXY", "true")] {
        let facts = cluster(&[variable, ("OPERATOR_HOSTNAME", "kube")]);
        finds(
            &facts,
            "api-server-proxy",
            Finding::Bad,
            &format!("the device kube ends with the operator, which is an API server proxy ({})", variable.1),
        );
        let planned = planned_with(facts, &json!({"apiServerProxyConfig": {"mode": variable.1}}));
        finds(&planned, "api-server-proxy", Finding::Ok, "taken over");
    }
    let api = |mode: &Value| {
        changed(cluster(&[]), |facts| {
            let mut group = group("kube", "kube-apiserver");
            group["spec"]["kubeAPIServer"] = mode.clone();
            facts.groups = Ok(vec![group]);
        })
    };
    let refused = "may not impersonate users: kube";
    finds(&api(&json!(null)), "proxygroups", Finding::Bad, refused);
    finds(&api(&json!({"mode": "auth"})), "proxygroups", Finding::Bad, refused);
    assert_eq!(exit_code(&checks(&api(&json!({"mode": "noauth"})))), 0);
    let masters = "such as system:masters";
    finds(&api(&json!(null)), "api-server-proxy", Finding::Warn, masters);
    let device = planned_with(cluster(&[("APISERVER_PROXY", "true")]), &json!({"apiServerProxyConfig": {"mode": "true"}}));
    finds(&device, "api-server-proxy", Finding::Warn, masters);
    let listed = json!({"apiServerProxyConfig": {"allowImpersonation": "true", "impersonation": {"groups": ["system:masters"]}}});
    let permitted = planned_with(api(&json!(null)), &listed);
    assert!(checks(&permitted).iter().all(|check| !check.what.contains(masters)), "{:#?}", checks(&permitted));
    assert_eq!(exit_code(&checks(&permitted)), 0);
}

#[test]
fn tags_names_funnel_and_images_that_differ_are_named() {
    let tags = changed(cluster(&[("PROXY_TAGS", "tag:a,tag:b")]), |facts| {
        let annotations = json!({"tailscale.com/expose": "true", "tailscale.com/tags": "tag:hr"});
        facts.services = Ok(vec![service("hr", &annotations, &json!({}))]);
    });
    finds(&tags, "settings", Finding::Warn, r#"tags=["tag:a","tag:b"]"#);
    finds(&tags, "policy", Finding::Warn, "Service u/hr: tag tag:hr is not in permittedTags");
    assert_eq!(exit_code(&checks(&tags)), 0, "what is served stays served");
    let named = json!({"tailscale.com/expose": "true", "tailscale.com/hostname": "same"});
    let same_name = changed(cluster(&[]), |facts| {
        facts.services = Ok(vec![service("a", &named, &json!({})), service("b", &named, &json!({}))]);
    });
    finds(&same_name, "names", Finding::Warn, "same of Service u/a and Service u/b");
    let funnel = changed(cluster(&[]), |facts| {
        let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/funnel": "true"});
        let own = json!({"tailscale.com/funnel": "true"});
        facts.ingresses = Ok(vec![ingress("public", "tailscale", &annotations), ingress("own", "tailscale", &own)]);
    });
    finds(&funnel, "ingresses", Finding::Bad, "on Ingresses of a ProxyGroup: u/public");
    let image = json!({"metadata": {"name": "prod"}, "spec": {"statefulSet": {"pod": {"tailscaleContainer": {"image": "a/tailscale:1"}}}}});
    finds(&MigrationFacts { proxy_classes: Ok(vec![image]), ..cluster(&[]) }, "proxyclasses", Finding::Warn, "names: prod");
    let identity = cluster(&[("CLIENT_ID", "k1")]);
    finds(&identity, "settings", Finding::Warn, "federated identity");
}

#[test]
fn operator_is_found_by_image_or_variable_in_any_namespace() {
    let moved = changed(cluster(&[]), |facts| facts.deployments.as_mut().expect("Deployments")[0]["metadata"]["namespace"] = json!("net"));
    finds(&moved, "operator", Finding::Bad, "net/acme is not in the namespace ts");
    let two = changed(cluster(&[]), |facts| {
        let image = json!([{"name": "o", "image": "docker.io/tailscale/k8s-operator:v1.104.7"}]);
        let other =
            json!({"metadata": {"namespace": "b", "name": "x"}, "spec": {"replicas": 0, "template": {"spec": {"containers": image}}}});
        facts.deployments.as_mut().expect("Deployments").push(other);
    });
    finds(&two, "operator", Finding::Bad, "there are others: b/x");
    let none = changed(cluster(&[]), |facts| facts.deployments = Ok(vec![]));
    finds(&none, "operator", Finding::Warn, "nothing to take over");
}

#[test]
fn unreadable_kind_is_no_success() {
    type Change = fn(&mut MigrationFacts);
    let changes: [Change; 7] = [
        |facts| facts.cluster.deployments = Err(Gap::Forbidden),
        |facts| facts.cluster.groups = Err(Gap::Forbidden),
        |facts| facts.cluster.services = Err(Gap::Forbidden),
        |facts| facts.cluster.ingresses = Err(Gap::Forbidden),
        |facts| facts.cluster.namespaces = Err(Gap::Forbidden),
        |facts| facts.cluster.classes = Err(Gap::Failed("there are 5000 or more".into())),
        |facts| facts.proxy_classes = Err(Gap::Forbidden),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut facts = cluster(&[]);
        change(&mut facts);
        assert_eq!(exit_code(&checks(&facts)), 2, "{index}: {:#?}", checks(&facts));
    }
    for (kind, _) in PLURALS {
        let facts = changed(cluster(&[]), |facts| {
            facts.unreconciled.insert(kind, Err(Gap::Forbidden));
        });
        assert_eq!(exit_code(&checks(&facts)), 2, "{kind}");
    }
    assert_eq!(exit_code(&[Check::bad(API_SERVER, "no answer", "")]), 2);
    let lost = changed(cluster(&[("APISERVER_PROXY", "true")]), |facts| facts.groups = Err(Gap::Forbidden));
    assert_eq!(exit_code(&checks(&lost)), 1, "a loss is more than a gap");
}

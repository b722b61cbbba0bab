//! Both operators in one cluster, and the Tailscale operator alone.

use super::*;

/// A cluster where both operators run, ours with these variables.
fn with_both(variables: &[(&str, &str)]) -> ClusterFacts {
    let mut reconciler = deployment("ts", "tailyard-reconciler", "x", 2);
    set_variables(&mut reconciler, variables);
    let both = vec![reconciler, deployment("tailscale", "operator", "docker.io/tailscale/k8s-operator:v1.102.3", 1)];
    ClusterFacts { deployments: Ok(both), services: Ok(Vec::new()), groups: Ok(Vec::new()), ..well() }
}

#[test]
fn two_operators_are_bad_if_both_write_a_group() {
    let with = |groups| ClusterFacts { groups, ..with_both(&[("TAILYARD_PROXY_GROUP_TYPES", "egress")]) };
    let two = vec![group("web", "ingress"), group("eg", "egress"), group("other", "egress")];
    finds(&with(Ok(two)), "operators", Finding::Bad, "write ProxyGroup eg, ProxyGroup other");
    finds(&with(Ok(vec![group("web", "ingress")])), "operators", Finding::Warn, "no ProxyGroup is of type egress");
    finds(&with(Err(Gap::Forbidden)), "operators", Finding::Warn, "cannot be read");
}

#[test]
fn operator_is_found_by_image_or_variable_whatever_its_name() {
    let mut mirrored = deployment("net", "acme-ts", "registry.example/mirror/ts:1", 1);
    set_variables(&mut mirrored, &[("OPERATOR_SECRET", "acme-ts")]);
    let renamed = deployment("net", "acme-ts", "registry.example/mirror/k8s-operator@sha256:00", 1);
    for operator in [mirrored, renamed] {
        let mut facts = with_both(&[]);
        facts.deployments.as_mut().expect("readable")[1] = operator;
        facts.groups = Ok(vec![group("eg", "egress")]);
        finds(&facts, "operators", Finding::Bad, "the Tailscale operator net/acme-ts both write ProxyGroup eg");
    }
    let own = with_both(&[("OPERATOR_SECRET", "operator")]);
    let ours_alone = ClusterFacts { deployments: own.deployments.map(|all| all[..1].to_vec()), ..with_both(&[]) };
    finds(&ours_alone, "operators", Finding::Ok, "does not run");
}

#[test]
fn two_operators_are_bad_if_both_write_a_service_or_ingress_without_group() {
    let ingress = |name: &str, class: &str, group: &str| {
        let annotations = if group.is_empty() { json!({}) } else { json!({"tailscale.com/proxy-group": group}) };
        json!({"metadata": {"namespace": "u", "name": name, "annotations": annotations}, "spec": {"ingressClassName": class}})
    };
    let all = vec![ingress("app", "tailscale", ""), ingress("other", "nginx", ""), ingress("grouped", "tailscale", "web")];
    let with = |variables: &[(&str, &str)]| ClusterFacts {
        services: Ok(vec![service("expose", "True", "ProxyCreated", "served"), service("hostname", "True", "ProxyCreated", "served")]),
        ingresses: Ok(all.clone()),
        ..with_both(variables)
    };
    let both = "both write Service u/web, Ingress u/app";
    finds(&with(&[]), "operators", Finding::Bad, both);
    finds(&with(&[("TAILYARD_STANDALONE", "on"), ("TAILYARD_WATCH_NAMESPACES", "a, u")]), "operators", Finding::Bad, both);
    let default = [("TAILYARD_STANDALONE", "off"), ("TAILYARD_DEFAULT_EGRESS_GROUP", "eg")];
    finds(&with(&default), "operators", Finding::Bad, "Service u/web");
    let own_class = with(&[("OPERATOR_INGRESS_CLASS_NAME", "tailyard")]);
    finds(&own_class, "operators", Finding::Bad, "both write Service u/web");
    for harmless in [[("TAILYARD_STANDALONE", "off")], [("TAILYARD_WATCH_NAMESPACES", "others")]] {
        finds(&with(&harmless), "operators", Finding::Warn, "no Service or Ingress has a proxy of its own");
    }
    let unread = ClusterFacts { ingresses: Err(Gap::Forbidden), ..with(&[]) };
    finds(&unread, "operators", Finding::Warn, "cannot be read");
}

#[test]
fn api_server_proxy_of_a_running_or_stopped_operator_is_named() {
    let with = |mode: &str, replicas: u8| {
        let mut operator = deployment("tailscale", "operator", "docker.io/tailscale/k8s-operator:v1.102.3", replicas);
        operator["spec"]["replicas"] = json!(replicas);
        set_variables(&mut operator, &[("APISERVER_PROXY", mode)]);
        ClusterFacts { deployments: Ok(vec![operator]), ..well() }
    };
    finds(&with("true", 1), "operators", Finding::Warn, "is an API server proxy (APISERVER_PROXY=true): kubectl through it fails once");
    finds(&with("noauth", 0), "operators", Finding::Warn, "was an API server proxy (APISERVER_PROXY=noauth): kubectl through it fails");
    let mut taken_over = with("true", 0);
    let mut ours = deployment("tailscale", "tailyard-reconciler", "localhost/tailyard:1", 2);
    set_variables(&mut ours, &[("APISERVER_PROXY", "true")]);
    taken_over.deployments.as_mut().expect("Deployments").push(ours);
    for facts in [with("false", 1), with("", 1), taken_over] {
        let checks = cluster::checks(&facts);
        assert!(checks.iter().all(|check| !check.what.contains("API server proxy")), "{checks:#?}");
    }
}

#[test]
fn unreconciled_objects_of_an_absent_operator_are_named() {
    let objects = |names: &[&str]| Ok(names.iter().map(|name| json!({"metadata": {"name": name}})).collect());
    let unreconciled = [("DNSConfig", objects(&["ts-dns"])), ("Recorder", objects(&["a", "b"])), ("Connector", objects(&[]))];
    let facts = ClusterFacts { unreconciled: unreconciled.into(), ..well() };
    finds(&facts, "operators", Finding::Warn, "nothing else reconciles DNSConfig ts-dns, Recorder a b");
}

#[test]
fn kinds_that_are_off_by_default_are_of_both_operators_where_the_reconciler_serves_them() {
    for (kind, setting) in
        [("Connector", "TAILYARD_CONNECTORS"), ("ProxyGroupPolicy", "TAILYARD_PROXY_GROUP_POLICIES"), ("DNSConfig", "TAILYARD_DNS_CONFIGS")]
    {
        let objects = || [(kind, Ok(vec![json!({"metadata": {"name": "exit"}})]))].into();
        let both = |on: &str| ClusterFacts { unreconciled: objects(), ..with_both(&[(setting, on)]) };
        finds(&both("on"), "operators", Finding::Bad, &format!("both write {kind} exit"));
        finds(&both("off"), "operators", Finding::Warn, "both run");
        let without_operator = |on: &str| {
            let facts = both(on);
            ClusterFacts { deployments: facts.deployments.map(|all| all[..1].to_vec()), ..both(on) }
        };
        finds(&without_operator("off"), "operators", Finding::Warn, &format!("nothing else reconciles {kind} exit"));
        finds(&without_operator("on"), "operators", Finding::Ok, "does not run");
    }
}

//! Settings of a tailnet that faults name.

use super::*;

/// Finding, text and fix of each row.
fn rows(facts: &ClusterFacts) -> Vec<(Finding, String, String)> {
    let checks = cluster::checks(facts).into_iter().filter(|check| check.name == "tailnet");
    checks.map(|check| (check.finding, check.what, check.fix)).collect()
}

#[test]
fn fault_of_a_group_service_or_ingress_names_the_setting_of_the_tailnet() {
    let configured = |kind: &str, message: &str| {
        let conditions = json!([{"type": kind, "status": "True", "message": message}]);
        json!({"metadata": {"namespace": "u", "name": "web"}, "status": {"conditions": conditions}})
    };
    let mut own = group("in", "ingress");
    own["spec"]["tags"] = json!(["tag:a", "tag:b"]);
    let well = || ClusterFacts { groups: Ok(vec![own.clone()]), ..well() };
    let of_group = |message| ClusterFacts { groups: Ok(vec![reporting("eg", "egress", message)]), ..well() };
    let of_service = |kind, message| ClusterFacts { services: Ok(vec![configured(kind, message)]), ..well() };
    let of_ingress = |message| {
        let ingress_events = Ok(vec![ingress_event("shop", "PartiallyAdvertised", message, 1)]);
        let ingresses = Ok(vec![json!({"metadata": {"namespace": "u", "name": "shop", "uid": "shop"}})]);
        ClusterFacts { ingresses, ingress_events, ..well() }
    };
    let approval = "1/2 proxy backends ready and advertising; 1 not approved for svc:web: approve them in the admin console, or list their tag in \
        autoApprovers.services";
    let https = "The certificate for shop.ts.net cannot be ordered (HTTPSDisabled): enable HTTPS certificates in the DNS page of the admin console.";
    let routes = "The control plane does not lead 10.0.0.1/32 to the replicas. Approve it there, or by autoApprovers.routes in the policy.";
    let table = [
        (of_group(DENIED_TAG), "ProxyGroup eg: make", r#""tagOwners": {"tag:web": ["tag:k8s-operator"]}"#),
        (of_group("creating auth key: requested tags are invalid"), "ProxyGroup eg: creating", r#"{"tag:k8s": ["tag:k8s-operator"]}"#),
        (of_service("TailscaleProxyReady", DENIED_TAG), "Service u/web: make", r#""tagOwners": {"tag:web""#),
        (of_ingress(DENIED_TAG), "Ingress u/shop: make", r#""tagOwners": {"tag:web""#),
        (
            of_service("TailscaleIngressSvcConfigured", approval),
            "Service u/web: 1/2",
            r#""autoApprovers": {"services": {"tag:a": ["tag:a"], "tag:b": ["tag:b"]}}"#,
        ),
        (of_ingress(approval), "Ingress u/shop: 1/2", r#""autoApprovers": {"services": {"tag:a""#),
        (of_ingress(routes), "Ingress u/shop: The control plane", "\"autoApprovers\""),
        (of_ingress(https), "Ingress u/shop: The certificate", "enable HTTPS certificates on the DNS page of the admin console"),
        (
            ClusterFacts {
                groups: Ok(vec![reporting("kube", "kube-apiserver", "0/2 proxy backends ready and advertising; HTTPSDisabled")]),
                ..well()
            },
            "ProxyGroup kube: 0/2",
            "enable HTTPS",
        ),
        (of_group("1 of 1 certificates cannot be ordered: shop.ts.net (HTTPSDisabled)."), "ProxyGroup eg: 1 of 1", "enable HTTPS"),
    ];
    for (facts, what, fix) in table {
        let rows = rows(&facts);
        let [(Finding::Warn, found, action)] = &rows[..] else { panic!("{what}: {rows:?}") };
        assert!(found.starts_with(what) && action.contains(fix), "{found}: {action}");
    }
    let permitted = "tailscale.com/tags: the tag tag:hr is not permitted: remove it, or have an administrator permit it by permittedTags.";
    for facts in [well(), of_service("TailscaleProxyReady", permitted), of_group("Pod eg-0: not scheduled")] {
        assert!(matches!(&rows(&facts)[..], [(Finding::Ok, ..)]), "{:?}", rows(&facts));
    }
}

#[test]
fn policy_entries_that_groups_need_are_named_without_a_fault() {
    let needs = |groups: &[Value]| rows(&ClusterFacts { groups: Ok(groups.to_vec()), ..well() }).remove(0).1;
    let mut own = group("in", "ingress");
    own["spec"]["tags"] = json!(["tag:a", "tag:b"]);
    let without = "no fault names a setting that it lacks";
    assert_eq!(needs(&[]), without);
    assert_eq!(needs(&[group("eg", "egress")]), format!("{without}; groups need tagOwners for tag:k8s"));
    let api_server = "tagOwners for tag:k8s and autoApprovers.services for tag:k8s, and a grant of tailscale.com/cap/kubernetes to tag:k8s";
    assert_eq!(needs(&[group("kube", "kube-apiserver")]), format!("{without}; groups need {api_server}"));
    let both = [group("eg", "egress"), own];
    assert_eq!(
        needs(&both),
        format!("{without}; groups need tagOwners for tag:a, tag:b, tag:k8s and autoApprovers.services for tag:a, tag:b")
    );
}

//! Groups of type `kube-apiserver`: name, rights, conditions, rename, take-over and end.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::collections::BTreeSet;

use serde_json::Value;

use super::publish::ingress;
use super::*;
use crate::api::proxygroup::Impersonation;
use crate::api::vip::VipService;
use crate::model::controller::workload::identity::DeviceAddresses;

mod endpoint;
mod over_time;
mod taken_over;

const VALID: &str = "KubeAPIServerProxyValid";
const CERTIFIED: &str = "TailyardCertificatesReady";
const CONFIGURED: &str = "KubeAPIServerProxyConfigured";
const ROLE: &str = "tailyard-impersonation-kube";

/// Every user and group but those of Kubernetes itself.
fn all() -> Impersonation {
    Impersonation { users: vec!["*".to_owned()], groups: vec!["*".to_owned()] }
}

/// A reconciler that may grant impersonation.
fn granting() -> World {
    let mut world = World::new();
    world.settings.impersonation = all();
    world
}

/// A group of type `kube-apiserver`, with additional fields, not reconciled yet.
fn kube(more: Value) -> World {
    let mut world = granting();
    world.group("kube", spec(more));
    world
}

fn spec(more: Value) -> Value {
    let mut spec = json!({"type": "kube-apiserver"});
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    spec
}

fn url(world: &World) -> Option<String> {
    world.groups["kube"].status.as_ref().and_then(|status| status.url.clone())
}

fn cluster_wide(kind: Kind) -> ObjectRef {
    ObjectRef::new(kind, "", ROLE)
}

/// The part of a site that is about the API server.
fn site_of(world: &World, name: &str) -> Value {
    serde_json::to_value(&world.config("kube").routes[name].api_server).expect("JSON")
}

/// Status and reason of a condition, if the group has it.
fn state(world: &World, kind: &str) -> Option<(String, String)> {
    let conditions = &world.groups["kube"].status.as_ref()?.conditions;
    let stored = crate::model::base::conditions::get(conditions, kind)?;
    Some((stored.status.clone(), stored.reason.clone()))
}

#[test]
fn group_publishes_the_kubernetes_api_with_an_account_and_rights_of_its_own() {
    let mut world = kube(json!({"tags": ["tag:api"]}));
    world.settle();
    assert_eq!(url(&world).as_deref(), Some("https://kube.tail1234.ts.net"));
    let vip = &world.hosted.vips["svc:kube"];
    assert_eq!((vip.ports.as_slice(), vip.tags.as_slice()), (&["tcp:443".to_owned()][..], &["tag:api".to_owned()][..]));
    let owners: Value = serde_json::from_str(&vip.annotations["tailscale.com/owner-references"]).expect("JSON");
    let uid = world.groups["kube"].metadata.uid.clone();
    let resource = json!({"kind": "ProxyGroup", "name": "kube", "uid": uid});
    assert_eq!(owners["ownerRefs"], json!([{"operatorID": "here", "resource": resource, "tailyardGroup": "kube"}]));

    let config = world.config("kube");
    let origin = serde_json::to_value(&config.origins["svc:kube"]).expect("JSON");
    assert_eq!(origin, json!({"kind": "ProxyGroup", "namespace": "", "name": "kube"}));
    let site = serde_json::to_value(&config.routes["svc:kube"]).expect("JSON");
    let host = json!({"kube.tail1234.ts.net": {"secret": "kube.tail1234.ts.net", "issue": true}});
    let api = json!({"mode": "auth", "sendExtra": true});
    let addresses = DeviceAddresses::parse(vip.addrs.iter().map(String::as_str)).texts();
    assert_eq!(site, json!({"hosts": host, "listeners": {"443": "https"}, "routes": [], "apiServer": api, "addresses": addresses}));

    let certificate = &world.objects[&object(Kind::Secret, "kube.tail1234.ts.net")];
    let labels = &certificate["metadata"]["labels"];
    assert_eq!(
        (&labels["tailscale.com/parent-resource-type"], &labels["tailscale.com/parent-resource"]),
        (&json!("proxygroup"), &json!("kube"))
    );
    let pod = &world.objects[&object(Kind::StatefulSet, "kube")]["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "kube");
    assert_eq!(world.env("kube", "TS_INTERNAL_APP").as_deref(), Some("k8s-operator-proxygroup-kube-apiserver"));
    assert!(world.objects.contains_key(&object(Kind::PodDisruptionBudget, "kube")));
    let binding = &world.objects[&cluster_wide(Kind::ClusterRoleBinding)];
    assert_eq!(binding["roleRef"]["name"], ROLE);
    assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "name": "kube", "namespace": NS}]));
    assert_eq!(
        (state(&world, VALID), state(&world, CONFIGURED)),
        (Some(("True".into(), VALID.into())), Some(("True".into(), CONFIGURED.into())))
    );
    assert_eq!(world.says("kube", CONFIGURED).2, "2/2 proxy backends ready and advertising");
    assert_eq!(world.ready("kube").1, "ProxyGroupReady");
    assert!(world.events.is_empty(), "{:?}", world.events);
}

#[test]
fn group_is_ready_only_after_the_api_is_advertised() {
    let mut world = kube(json!({}));
    let mut states = Vec::new();
    for _ in 0..40 {
        world.round();
        if world.groups["kube"].status.is_none() {
            continue;
        }
        let is_true = |kind| state(&world, kind).is_some_and(|(status, _)| status == "True");
        let now = (is_true(VALID), is_true("ProxyGroupAvailable"), is_true(CONFIGURED), world.ready("kube").1);
        assert!(now.3 != "ProxyGroupReady" || (now.0 && now.1 && now.2), "{now:?}");
        assert!(now.2 == url(&world).is_some(), "{now:?}: {:?}", url(&world));
        if states.last() != Some(&now) {
            states.push(now);
        }
    }
    let creating = |step: &(bool, bool, bool, String)| step.3 == "ProxyGroupCreating";
    assert!(states.iter().any(|step| !step.0 && creating(step)), "{states:?}");
    assert!(states.iter().any(|step| step.0 && !step.2 && creating(step)), "{states:?}");
    assert_eq!(states.last(), Some(&(true, true, true, "ProxyGroupReady".to_owned())));
    assert!(states.iter().all(|step| creating(step) || step.3 == "ProxyGroupReady"), "{states:?}");
}

/// Rules without the extra values, which are always the same.
fn rules(world: &World) -> Option<Value> {
    let role = world.objects.get(&cluster_wide(Kind::ClusterRole))?;
    let mut rules = role["rules"].as_array().expect("rules").clone();
    let extra = rules.pop().expect("a rule");
    let keys = ["userextras/tailyard.io/node", "userextras/tailyard.io/address", "userextras/tailyard.io/login"];
    assert_eq!(extra, json!({"apiGroups": ["authentication.k8s.io"], "resources": keys, "verbs": ["impersonate"]}));
    Some(rules.into())
}

#[test]
fn rights_are_limited_to_the_listed_users_and_groups() {
    let rule = |resource: &str, names: Value| {
        let mut rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["impersonate"]});
        if !names.is_null() {
            rule["resourceNames"] = names;
        }
        rule
    };
    let every = || json!([rule("users", json!(null)), rule("groups", json!(null))]);
    let masters = Impersonation { groups: vec!["*".to_owned(), "system:masters".to_owned()], ..all() };
    let few = Impersonation { users: vec!["a@example.com".to_owned()], groups: Vec::new() };
    let list = |users: Value, groups: Value| json!({"tailyard": {"impersonation": {"users": users, "groups": groups}}});
    let auth = |system: Value| {
        let mut site = json!({"mode": "auth", "sendExtra": true});
        if system != json!([]) {
            site["permitSystem"] = system;
        }
        site
    };
    let cases = [
        (all(), json!({}), Some(every()), auth(json!([]))),
        (masters.clone(), json!({"kubeAPIServer": {"mode": "auth"}}), Some(every()), auth(json!(["system:masters"]))),
        (few.clone(), json!({}), Some(json!([rule("users", json!(["a@example.com"]))])), auth(json!([]))),
        (few, json!({"kubeAPIServer": {"mode": "noauth"}}), None, json!({"mode": "noauth"})),
        (masters.clone(), list(json!(["*"]), json!(["*"])), Some(every()), auth(json!([]))),
        (
            masters,
            list(json!(["*"]), json!(["system:masters", "dev"])),
            Some(json!([rule("users", json!(null)), rule("groups", json!(["system:masters", "dev"]))])),
            auth(json!(["system:masters"])),
        ),
        (
            all(),
            list(json!(["a@example.com"]), json!(["viewers", "tag:ops"])),
            Some(json!([rule("users", json!(["a@example.com"])), rule("groups", json!(["viewers", "tag:ops"]))])),
            auth(json!([])),
        ),
        (all(), list(json!(["*"]), json!([])), Some(json!([rule("users", json!(null))])), auth(json!([]))),
        (
            all(),
            list(json!(["*"]), json!(["system:masters", "dev"])),
            Some(json!([rule("users", json!(null)), rule("groups", json!(["dev"]))])),
            auth(json!([])),
        ),
    ];
    for (granted, more, expected, site) in cases {
        let mut world = kube(more.clone());
        world.settings.impersonation = granted;
        world.settle();
        assert_eq!(rules(&world), expected, "{more}");
        assert_eq!(world.objects.contains_key(&cluster_wide(Kind::ClusterRoleBinding)), expected.is_some(), "{more}");
        assert_eq!(site_of(&world, "svc:kube"), site, "{more}");
        assert_eq!(world.ready("kube").1, "ProxyGroupReady", "{more}");
    }
}

#[test]
fn names_that_the_reconciler_does_not_permit_are_refused_and_reported() {
    let list = |users: Value| json!({"tailyard": {"impersonation": {"users": users, "groups": ["dev", "system:masters", "qa"]}}});
    let mut world = kube(list(json!(["*"])));
    let groups = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let groups_of =
        |world: &World| rules(world).expect("a role").as_array().expect("rules").last().expect("a rule")["resourceNames"].clone();
    world.settings.impersonation.groups = groups(&["dev", "ops"]);
    world.settle();
    assert_eq!((groups_of(&world), site_of(&world, "svc:kube").get("permitSystem")), (json!(["dev"]), None));
    let (_, _, message) = world.says("kube", CONFIGURED);
    assert!(
        message.contains("does not permit \"system:masters\" and 1 more: add the names to apiServerProxyConfig.impersonation"),
        "{message}"
    );
    assert_eq!((state(&world, CONFIGURED).expect("a condition").0.as_str(), world.ready("kube").1.as_str()), ("True", "ProxyGroupReady"));
    // Changes of the reconciler's list change the rights of existing groups.
    for permitted in [&["dev", "system:masters", "qa"][..], &["qa"], &["dev"]] {
        world.settings.impersonation.groups = groups(permitted);
        world.settle();
        assert_eq!(
            (groups_of(&world), world.says("kube", CONFIGURED).2.contains("does not permit")),
            (json!(permitted), permitted.len() < 3)
        );
    }
    world.settings.impersonation.users = groups(&["a@example.com"]);
    world.group("kube", spec(list(json!(["b@example.com"]))));
    world.settle();
    let ready = world.ready("kube");
    assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains("does not permit \"b@example.com\""), "{ready:?}");
}

#[test]
fn change_of_the_mode_changes_rights_and_config_and_restarts_no_pod() {
    let mut world = kube(json!({}));
    world.settle();
    let pods: Vec<_> = world.pods.values().map(|pod| pod.metadata.uid.clone()).collect();
    let template = world.objects[&object(Kind::StatefulSet, "kube")]["spec"]["template"].clone();
    for (mode, has_rights) in [("noauth", false), ("auth", true)] {
        world.group("kube", spec(json!({"kubeAPIServer": {"mode": mode}})));
        world.settle();
        assert_eq!((rules(&world).is_some(), &site_of(&world, "svc:kube")["mode"]), (has_rights, &json!(mode)));
        assert_eq!(world.objects.contains_key(&cluster_wide(Kind::ClusterRoleBinding)), has_rights, "{mode}");
        assert_eq!(world.objects[&object(Kind::StatefulSet, "kube")]["spec"]["template"], template, "{mode}");
        assert_eq!(world.pods.values().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>(), pods, "{mode}");
    }
}

#[test]
fn invalid_groups_get_no_pods_and_a_reason() {
    let cases = [
        (json!({"kubeAPIServer": {"mode": "half"}}), "\"half\" is neither auth nor noauth"),
        (json!({"tailyard": {"impersonation": {"users": []}}}), "spec.tailyard.impersonation.users"),
    ];
    for (more, says) in cases {
        let mut world = kube(more.clone());
        world.settle();
        let ready = world.ready("kube");
        assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains(says), "{more}: {ready:?}");
        assert!(!world.objects.keys().any(|object| object.kind == Kind::StatefulSet), "{more}");
    }
    for (hostname, says) in [("kube-0", "the host name of a replica"), ("a.b", "no DNS label")] {
        let mut world = kube(json!({"kubeAPIServer": {"hostname": hostname}}));
        world.settle();
        assert!(world.ready("kube").1 == "ProxyGroupInvalid" && world.ready("kube").2.contains(says), "{:?}", world.ready("kube"));
        assert!(world.hosted.vips.is_empty() && world.config("kube").routes.is_empty(), "{hostname}");
    }
}

#[test]
fn images_of_the_tailscale_operator_are_refused_with_the_setting_that_names_them() {
    let class = |image: &str| json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": image}}}});
    for (of_class, of_reconciler, says) in [
        (Some("tailscale/k8s-proxy:v1.104.7"), None, "remove the image of spec.proxyClass"),
        (Some("tailscale/tailscale:v1.104.7"), None, "remove the image of spec.proxyClass"),
        (None, Some("tailscale/tailscale:v1.104.7"), "name Tailyard's by proxyImage of the chart"),
        (Some(""), Some("r:5000/k8s-proxy@sha256:ab"), "name Tailyard's by proxyImage of the chart"),
    ] {
        let mut world = kube(json!({}));
        if let Some(image) = of_reconciler {
            world.settings.image = image.to_owned();
        }
        if let Some(image) = of_class {
            world.with_class(class(image));
        }
        world.settle();
        let ready = world.ready("kube");
        assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains(says), "{of_class:?} {of_reconciler:?}: {ready:?}");
        assert!(!world.objects.keys().any(|object| object.kind == Kind::StatefulSet), "{of_class:?} {of_reconciler:?}");
    }
}

#[test]
fn group_that_may_not_impersonate_gets_no_pods_until_it_may() {
    let mut world = kube(json!({}));
    world.settings.impersonation = Impersonation::default();
    world.settle();
    let ready = world.ready("kube");
    assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains("apiServerProxyConfig.allowImpersonation"), "{ready:?}");
    assert!(world.pods.is_empty() && rules(&world).is_none());
    world.group("kube", spec(json!({"kubeAPIServer": {"mode": "noauth"}})));
    world.settle();
    assert_eq!(world.ready("kube").1, "ProxyGroupReady", "no right is needed");
    world.group("kube", spec(json!({})));
    world.settle();
    assert_eq!((world.ready("kube").1.as_str(), site_of(&world, "svc:kube")), ("ProxyGroupInvalid", json!({"mode": "noauth"})));
    world.settings.impersonation = all();
    world.settle();
    assert_eq!(world.ready("kube").1, "ProxyGroupReady");
}

/// A Tailscale Service with these owners.
fn vip(name: &str, owners: Value) -> VipService {
    let annotations = [("tailscale.com/owner-references".to_owned(), json!({ "ownerRefs": owners }).to_string())].into();
    VipService { name: name.into(), annotations, ports: vec!["tcp:443".into()], addrs: vec!["100.99.9.9".into()], ..VipService::default() }
}

#[test]
fn tailscale_service_of_another_owner_is_left_alone_and_reported() {
    let foreign = [
        VipService { annotations: [].into(), ..vip("svc:kube", json!([])) },
        vip("svc:kube", json!([{"operatorID": "them"}])),
        vip("svc:kube", json!([{"operatorID": "here", "tailyardGroup": "web"}])),
        vip("svc:kube", json!([{"operatorID": "them", "resource": {"kind": "ProxyGroup", "name": "kube", "uid": "other"}}])),
    ];
    for existing in foreign {
        let mut world = kube(json!({}));
        world.hosted.vips.insert("svc:kube".into(), existing.clone());
        world.settle();
        assert_eq!(world.hosted.vips["svc:kube"], existing);
        assert_eq!(state(&world, VALID), Some(("False".into(), "KubeAPIServerProxyInvalid".into())), "{existing:?}");
        assert_eq!(
            (state(&world, CONFIGURED).expect("a condition").0, world.ready("kube").1.as_str()),
            ("False".into(), "ProxyGroupInvalid")
        );
        assert_eq!((url(&world), world.event_count("InvalidTailscaleService")), (None, 1), "{existing:?}");
        assert!(
            world.observed_replicas("kube").values().all(|replica| replica.config.as_ref().expect("a config").advertises().count() == 0)
        );
        assert!(!world.objects.contains_key(&object(Kind::Secret, "kube.tail1234.ts.net")), "no certificate is ordered");
        world.hosted.vips.remove("svc:kube");
        world.settle();
        assert_eq!((world.ready("kube").1.as_str(), url(&world).as_deref()), ("ProxyGroupReady", Some("https://kube.tail1234.ts.net")));
    }
}

#[test]
fn former_name_is_served_until_a_replica_serves_the_new_one() {
    let mut world = kube(json!({"kubeAPIServer": {"hostname": "old"}}));
    world.settle();
    assert_eq!(url(&world).as_deref(), Some("https://old.tail1234.ts.net"));
    let advertised = |world: &World| -> BTreeSet<String> {
        let replicas = world.observed_replicas("kube");
        replicas
            .values()
            .flat_map(|replica| replica.config.as_ref().expect("a config").advertises().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    world.hosted.slow_orders = true;
    world.group("kube", spec(json!({"kubeAPIServer": {"hostname": "new"}})));
    for _ in 0..20 {
        world.round();
        assert_eq!(url(&world).as_deref(), Some("https://old.tail1234.ts.net"), "kubeconfigs with the old name work");
        assert!(advertised(&world).contains("svc:old") && world.hosted.vips.contains_key("svc:old"));
        assert!(world.config("kube").routes.contains_key("svc:old"));
        world.now += 60;
    }
    assert!(world.hosted.vips.contains_key("svc:new") && world.config("kube").routes.contains_key("svc:new"));
    world.hosted.slow_orders = false;
    world.settle();
    assert_eq!(url(&world).as_deref(), Some("https://new.tail1234.ts.net"));
    assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), ["svc:new"]);
    assert_eq!(advertised(&world), BTreeSet::from(["svc:new".to_owned()]));
    assert!(!world.objects.contains_key(&object(Kind::Secret, "old.tail1234.ts.net")));
    assert_eq!((world.ready("kube").1.as_str(), world.config("kube").names().len()), ("ProxyGroupReady", 1));
}

#[test]
fn refused_new_name_leaves_the_former_one_served() {
    let mut world = kube(json!({}));
    world.settle();
    world.hosted.vips.insert("svc:new".into(), vip("svc:new", json!([{"operatorID": "them"}])));
    world.group("kube", spec(json!({"kubeAPIServer": {"hostname": "new"}})));
    world.settle();
    assert_eq!(url(&world).as_deref(), Some("https://kube.tail1234.ts.net"));
    assert_eq!((state(&world, VALID).expect("a condition").0.as_str(), world.ready("kube").1.as_str()), ("False", "ProxyGroupInvalid"));
    assert!(world.hosted.vips.contains_key("svc:kube"));
}

#[test]
fn name_of_an_ingress_is_not_taken_and_that_of_the_api_neither() {
    let mut world = granting();
    world.group("in", ingress());
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.ingress("shop", "in", ("kube", "web"));
    world.settle();
    world.group("kube", spec(json!({})));
    world.settle();
    let ready = world.ready("kube");
    assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains("Ingress default/shop has the name kube already"), "{ready:?}");
    world.delete_ingress("shop");
    world.settle();
    assert_eq!(world.ready("kube").1, "ProxyGroupReady");
    world.ingress("shop", "in", ("kube", "web"));
    world.settle();
    assert_eq!(world.event_count("NameConflict"), 1, "{:?}", world.events);
    assert_eq!(world.config("kube").origins["svc:kube"].kind, "ProxyGroup");
}

#[test]
fn ingress_and_services_that_name_the_group_get_a_fault_and_nothing_else() {
    let mut world = kube(json!({}));
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.ingress("shop", "kube", ("shop", "web"));
    world.exposed("db", "kube", "db");
    world.service("eg", to("kube"), &[5432]);
    world.settle();
    assert_eq!(world.ready("kube").1, "ProxyGroupReady");
    assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), ["svc:kube"]);
    assert!(world.event_count("ProxyGroupNotReady") >= 2, "{:?}", world.events);
    assert_eq!(world.condition("eg", EGRESS_SVC_VALID).expect("a condition").1, "ProxyGroupNotReady");
    assert!(world.ingresses[&("default".to_owned(), "shop".to_owned())].metadata.finalizers.is_none());
}

#[test]
fn deleted_group_leaves_nothing() {
    let mut world = kube(json!({}));
    world.settle();
    let finalizers = &mut world.groups.get_mut("kube").expect("a group").metadata.finalizers;
    finalizers.get_or_insert_default().push("tailscale.com/kube-apiserver-finalizer".into());
    world.settle();
    assert_eq!(world.groups["kube"].metadata.finalizers.as_ref().map(Vec::len), Some(2), "that of the other operator stays");
    world.delete_group("kube");
    world.settle();
    assert!(world.groups.is_empty() && world.hosted.vips.is_empty() && world.devices.is_empty());
    let remaining: Vec<_> = world.objects.keys().collect();
    assert!(remaining.is_empty(), "{remaining:?}");
}

#[test]
fn uninstall_deletes_cluster_wide_rights() {
    let mut world = kube(json!({}));
    world.settle();
    world.assignment.uninstall = Some(world.time());
    world.settle();
    let group = &world.groups["kube"];
    assert!(group.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) && world.hosted.vips.is_empty());
    assert_eq!((url(&world), state(&world, CONFIGURED)), (None, None));
    let remaining: Vec<_> = world.objects.keys().collect();
    assert!(remaining.is_empty(), "{remaining:?}");
    assert!(is_released(&world.observe("kube")));
}

#[test]
fn control_plane_without_tailscale_services_is_named_as_the_reason() {
    let mut world = kube(json!({}));
    world.tailnet = headscale();
    world.settle();
    let configured = world.says("kube", CONFIGURED);
    assert!(configured.0 == "False" && configured.2.contains("has no Tailscale Services"), "{configured:?}");
    assert_eq!((url(&world), world.ready("kube").1.as_str()), (None, "ProxyGroupCreating"));
}

#[test]
fn unavailable_control_plane_changes_no_condition_and_no_url() {
    let mut world = kube(json!({}));
    world.settle();
    let before = (state(&world, VALID), state(&world, CONFIGURED), url(&world), world.config("kube"));
    for tailnet in [TailnetState::Asking, TailnetState::Unavailable("no route".into())] {
        world.tailnet = tailnet;
        world.hosted.listed = None;
        world.rounds(10);
        assert_eq!((state(&world, VALID), state(&world, CONFIGURED), url(&world), world.config("kube")), before);
    }
}

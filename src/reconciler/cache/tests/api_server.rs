//! Groups of type `kube-apiserver` in the cache: cluster-wide objects, the name that they request, and others that request it.

use super::cluster::{Cluster, NS};
use super::*;
use crate::api::names;
use crate::api::proxygroup::{ApiServerMode, Impersonation};
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::workload::actions::GroupPlan;

const ROLE: &str = "tailyard-impersonation-kube";

/// A cluster whose reconciler may grant impersonation.
fn cluster() -> Cluster {
    let mut settings = Cluster::new().settings_mut().clone();
    settings.impersonation.users = vec!["*".to_owned()];
    let mut cluster = Cluster::of(settings, "https://controlplane.tailscale.com".to_owned(), BTreeMap::new(), 1_800_000_000);
    cluster.put("IngressClass", json!({"metadata": {"name": "tailscale"}, "spec": {"controller": "tailscale.com/ts-ingress"}}));
    cluster
}

fn put_group(cluster: &mut Cluster, more: &Value) {
    let mut spec = json!({"type": "kube-apiserver"});
    super::cluster::merge(&mut spec, more);
    let mut group = cluster.object("ProxyGroup", "", "kube").cloned().unwrap_or_else(|| json!({"metadata": {"name": "kube"}}));
    group["spec"] = spec;
    cluster.put("ProxyGroup", group);
}

fn url(cluster: &Cluster) -> Option<&str> {
    cluster.object("ProxyGroup", "", "kube")?["status"]["url"].as_str()
}

#[test]
fn roles_without_namespace_are_objects_of_the_group() {
    let mut cluster = cluster();
    put_group(&mut cluster, &json!({}));
    assert!(cluster.settles(), "{:?}", cluster.events);
    assert_eq!(url(&cluster), Some("https://kube.tail1234.ts.net"), "{:?}", cluster.events);
    let is_repaired = |cluster: &mut Cluster, kind: &'static str| {
        cluster.delete_object(kind, "", ROLE);
        assert!(cluster.enqueued.contains(&WorkKey::Workload(WorkloadKey::of_group("kube"))), "{kind}");
        assert!(cluster.settles());
        cluster.object(kind, "", ROLE).is_some()
    };
    assert!(is_repaired(&mut cluster, "ClusterRole") && is_repaired(&mut cluster, "ClusterRoleBinding"));
    for reversed in [false, true] {
        let plan = cluster.plan(&cluster.cache_of(&cluster.objects, reversed), "kube");
        // A list of Tailscale Services may be due.
        let idle = GroupPlan::default();
        assert_eq!((plan.apply, plan.delete, plan.group), (idle.apply, idle.delete, idle.group), "after a restart");
    }
    put_group(&mut cluster, &json!({"kubeAPIServer": {"mode": "noauth"}}));
    assert!(cluster.settles());
    assert!(["ClusterRole", "ClusterRoleBinding"].iter().all(|kind| cluster.object(kind, "", ROLE).is_none()));
    assert_eq!(cluster.takeovers, Vec::<String>::new());
}

#[test]
fn role_of_another_owner_is_not_overwritten() {
    let mut cluster = cluster();
    cluster.put("ClusterRole", json!({"metadata": {"name": ROLE}, "rules": []}));
    put_group(&mut cluster, &json!({}));
    cluster.rounds(30);
    assert_eq!(cluster.object("ClusterRole", "", ROLE).expect("a role")["rules"], json!([]));
    let ready = cluster.object("ProxyGroup", "", "kube").expect("a group")["status"]["conditions"].to_string();
    assert!(ready.contains(&format!("ClusterRole {ROLE} already exists")), "{ready}");
    assert_eq!(cluster.takeovers, Vec::<String>::new());
}

#[test]
fn certificate_of_the_api_belongs_to_its_group() {
    let mut cluster = cluster();
    put_group(&mut cluster, &json!({"kubeAPIServer": {"hostname": "api"}}));
    assert!(cluster.settles(), "{:?}", cluster.events);
    cluster.patch("Secret", NS, "api.tail1234.ts.net", &json!({"metadata": {"annotations": {"x": "y"}}}));
    assert!(cluster.enqueued.contains(&WorkKey::Workload(WorkloadKey::of_group("kube"))), "{:?}", cluster.enqueued);
    assert_eq!(url(&cluster), Some("https://api.tail1234.ts.net"));
}

#[test]
fn name_of_the_api_is_refused_to_an_ingress_and_that_of_an_ingress_to_the_api() {
    for ingress_first in [false, true] {
        let mut cluster = cluster();
        cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress"}}));
        cluster.put_backends(&["u"]);
        for is_ingress in [ingress_first, !ingress_first] {
            if is_ingress {
                cluster.put_ingress("u", "shop", "kube", Some("in"));
            } else {
                put_group(&mut cluster, &json!({}));
            }
            assert!(cluster.settles(), "{:?}", cluster.events);
        }
        let owner = if ingress_first { "Ingress u/shop" } else { "ProxyGroup kube" };
        let refusal = format!("{owner} has the name kube already");
        assert!(cluster.events.iter().any(|event| event.contains(&refusal)), "{refusal}: {:?}", cluster.events);
        assert_eq!(url(&cluster).is_some(), !ingress_first);
    }
}

/// Key of the operator's device.
const DEVICE: &str = "ts/tailyard-api-server";

fn device(hostname: &str, certificate: Option<&str>) -> OperatorDevice {
    let (mode, tags) = (ApiServerMode::Auth, vec!["tag:k8s".to_owned()]);
    let impersonation = Impersonation { users: vec!["*".to_owned()], groups: Vec::new() };
    let (hostname, certificate) = (hostname.to_owned(), certificate.map(str::to_owned));
    OperatorDevice { mode, impersonation, hostname, tags, is_http: false, certificate }
}

fn put_device(cluster: &mut Cluster, hostname: &str, certificate: Option<&str>) {
    let device = device(hostname, certificate);
    let mut service = cluster.object("Service", NS, names::API_SERVER_SERVICE).cloned().unwrap_or_default();
    super::cluster::merge(&mut service, &device.service(NS).value);
    cluster.set_device(device);
    cluster.put("Service", service);
}

/// Whether the last change enqueued the operator's device.
fn is_enqueued(cluster: &Cluster) -> bool {
    cluster.enqueued.contains(&WorkKey::Workload(DEVICE.into()))
}

#[test]
fn operators_device_has_roles_without_namespace_and_the_certificate_of_its_name() {
    let mut cluster = cluster();
    put_device(&mut cluster, "tailscale-operator", None);
    assert!(is_enqueued(&cluster) && cluster.settles(), "{:?}", cluster.events);
    let conditions = cluster.conditions(NS, names::API_SERVER_SERVICE).join("\n");
    assert!(conditions.contains("True ProxyCreated The Kubernetes API is reached"), "{conditions}");
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        let named = |cluster: &Cluster| cluster.objects.keys().find(|(found, ..)| *found == kind).map(|(.., name)| name.clone());
        let name = named(&cluster).expect(kind);
        cluster.delete_object(kind, "", &name);
        assert!(is_enqueued(&cluster) && cluster.settles(), "{kind}");
        assert_eq!(named(&cluster), Some(name));
    }
    let dns = "tailscale-operator.tail1234.ts.net";
    cluster.patch("Secret", NS, dns, &json!({"metadata": {"annotations": {"x": "y"}}}));
    assert!(is_enqueued(&cluster));
    for reversed in [false, true] {
        let plan = cluster.plan(&cluster.cache_of(&cluster.objects, reversed), DEVICE);
        assert_eq!((plan.apply, plan.delete), (Vec::new(), Vec::new()), "after a restart");
    }
    put_device(&mut cluster, "kube", None);
    assert!(cluster.settles(), "{:?}", cluster.events);
    assert!(cluster.object("Secret", NS, dns).is_none() && cluster.object("Secret", NS, "kube.tail1234.ts.net").is_some());
    put_device(&mut cluster, "kube", Some("own"));
    cluster.rounds(5);
    cluster.put("Secret", json!({"metadata": {"name": "own", "namespace": NS, "labels": {"tailyard.io/allow-ingress-tls": "true"}}}));
    assert!(is_enqueued(&cluster), "{:?}", cluster.enqueued);
    assert_eq!(cluster.cache.unread_certificates(&DEVICE.into()), ["own"]);
    assert_eq!(cluster.takeovers, Vec::<String>::new());
}

#[test]
fn name_of_the_operators_device_is_refused_to_others() {
    let mut cluster = cluster();
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress"}}));
    cluster.put_backends(&["u"]);
    put_device(&mut cluster, "kube", None);
    assert!(cluster.settles(), "{:?}", cluster.events);
    cluster.put_ingress("u", "shop", "kube", Some("in"));
    assert!(cluster.settles(), "{:?}", cluster.events);
    let refusal = format!("Service {DEVICE} has the name kube already");
    assert!(cluster.events.iter().any(|event| event.contains(&refusal)), "{refusal}: {:?}", cluster.events);
}

#[test]
fn name_of_the_operators_device_is_its_own_whatever_others_had_or_requested_before() {
    for others in ["Service u/shop", "Ingress u/shop", "Service in", "Ingress in", "ProxyGroup kube"] {
        for is_reserved in [false, true] {
            let case = format!("{others}, {is_reserved}");
            let mut cluster = cluster();
            cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress"}}));
            cluster.put_backends(&["u"]);
            if is_reserved {
                // Its Service was deleted.
                cluster.set_device(device("kube", None));
            }
            let (kind, group) = others.split_once(' ').expect("two words");
            let group = (group == "in").then_some(group);
            match kind {
                "Service" => {
                    let annotations = json!({names::EXPOSE: "true", names::HOSTNAME: "kube", names::PROXY_GROUP: group});
                    let spec = json!({"clusterIP": "10.96.0.11", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]});
                    let mut service = json!({"metadata": {"name": "shop", "namespace": "u"}, "spec": spec});
                    super::cluster::merge(&mut service, &json!({"metadata": {"annotations": annotations}}));
                    cluster.put("Service", service);
                }
                "Ingress" => cluster.put_ingress("u", "shop", "kube", group),
                _ => put_group(&mut cluster, &json!({})),
            }
            assert!(cluster.settles(), "{case}: {:?}", cluster.events);
            put_device(&mut cluster, "kube", None);
            assert!(cluster.settles(), "{case}: {:?}", cluster.events);
            let conditions = cluster.conditions(NS, names::API_SERVER_SERVICE).join("\n");
            assert!(
                conditions.contains("True ProxyCreated The Kubernetes API is reached in the tailnet as https://kube"),
                "{case}: {conditions}"
            );
            let refusal = format!("Service {DEVICE} has the name kube already");
            let texts = ["Service", "ProxyGroup"].map(|kind| match (kind, cluster.object("Service", "u", "shop")) {
                ("Service", Some(_)) => cluster.conditions("u", "shop").join("\n"),
                ("Service", None) => String::new(),
                _ => cluster.object("ProxyGroup", "", "kube").map(Value::to_string).unwrap_or_default(),
            });
            let is_refused = cluster.events.iter().chain(&texts).any(|text| text.contains(&refusal));
            assert!(is_refused, "{case}: {:?} {texts:?}", cluster.events);
            let named: Vec<_> = cluster.devices.values().map(|found| found.hostname.as_str()).filter(|name| *name == "kube").collect();
            assert_eq!(named, ["kube"], "{case}: the name is of one device");
        }
    }
}

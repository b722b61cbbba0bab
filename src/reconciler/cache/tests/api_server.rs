//! Groups of type `kube-apiserver` in the cache: cluster-wide objects, the name that they request, and others that request it.

use super::cluster::{Cluster, NS};
use super::*;
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

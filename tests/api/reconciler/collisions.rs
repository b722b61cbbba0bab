//! Two Services that want one name in the proxies' namespace: the existing child stays with its Service.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;
use tailyard::model::controller::workload::objects::child::child_name;

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::reconciler::{USERS, stage};
use kit::wait::eventually_async;

use crate::reconciler::services::ready;

/// Most writes of the child after the second Service.
const MAX_WRITES: usize = 3;

/// Service `db` of group `g` has a child with the name that Service `evil` computes for its own in this group.
fn two_services_with_one_child_name(group: &'static str) {
    stage(async |stage| {
        let child = child_name(USERS, "evil", group);
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc",
            "tailscale.com/parent-resource": "db", "tailscale.com/parent-resource-ns": USERS,
            "tailscale.com/proxy-group": "g", "tailscale.com/svc-type": "egress"});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": child, "namespace": NAMESPACE, "labels": labels},
            "spec": {"ports": [{"name": "web", "port": 80, "targetPort": 10_000, "protocol": "TCP"}]}});
        stage.apply(stage.here::<Service>(), &child, object).await;
        stage.service("db", "g").await;
        let _running = stage.reconciler("one", 9100);
        ready(&stage, "g").await;
        if group != "g" {
            ready(&stage, group).await;
        }
        stage.served("db", "g", 2).await;
        let host = format!("{child}.{NAMESPACE}.svc.cluster.local");
        assert_eq!(stage.external_name("db").await, host, "an existing child keeps its name");
        let writes = || stage.cluster.writes().iter().filter(|write| write.contains(&child)).count();
        let before = writes();
        stage.service("evil", group).await;
        // The owner of the child is looked at each time.
        let look = async || {
            let owner = stage.here::<Service>().get(&child).await.expect("the child").labels()["tailscale.com/parent-resource"].clone();
            assert_eq!(owner, "db", "the child is taken over");
            let kinds = ["TailscaleEgressSvcValid", "TailscaleEgressSvcConfigured", "TailscaleEgressSvcReady"];
            let mut conditions = Vec::new();
            for kind in kinds {
                conditions.push(stage.condition("evil", kind).await);
            }
            conditions
        };
        let is_refused = |all: &Vec<String>| all.iter().any(|one| one.starts_with("False") && one.contains(&child));
        eventually_async("the younger Service is refused", DEADLINE, look, is_refused).await;
        for _ in 0..20 {
            stage.poke().await;
            look().await;
        }
        assert!(writes() - before <= MAX_WRITES, "{} writes of the child", writes() - before);
        assert_eq!(stage.child("evil").await, []);
        assert_eq!(stage.external_name("evil").await, "placeholder.invalid");
        assert_eq!(stage.external_name("db").await, host);
        assert!(stage.condition("db", "TailscaleEgressSvcReady").await.starts_with("True"));
        // The younger one leaves: the child of the older one stays.
        let uid = stage.here::<Service>().get(&child).await.expect("the child").uid();
        stage.delete(&stage.users(), "evil").await;
        stage.gone(&stage.users(), "evil").await;
        assert_eq!(stage.here::<Service>().get(&child).await.expect("the child").uid(), uid);
    });
}

#[test]
fn two_services_with_one_child_name_in_one_group() {
    two_services_with_one_child_name("g");
}

#[test]
fn two_services_with_one_child_name_in_two_groups() {
    two_services_with_one_child_name("gg");
}

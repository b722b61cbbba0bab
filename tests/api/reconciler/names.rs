//! Names with several claimants: groups, and clusters that share a tailnet.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::DEADLINE;
use kit::reconciler::stage;
use kit::wait::eventually_async;

use super::proxies::{INGRESS, SERVICE};

#[test]
fn name_moves_to_another_group_without_interruption() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.publisher("old", 2).await;
        stage.publisher("new", 2).await;
        stage.ingress("app", "old", "app").await;
        stage.certify("app.tail-lab.ts.net").await;
        stage.serves("app", "old").await;
        stage.annotate("app", json!({"tailscale.com/proxy-group": "new"})).await;
        stage.wait_advertised("new", &["svc:app"]).await;
        stage.wait_advertised("old", &["svc:app"]).await;
        stage.serves("app", "new").await;
        stage.wait_advertised("old", &[]).await;
        stage.advertise("old", 2).await;
        eventually_async(
            "the old one forgets it",
            DEADLINE,
            async || stage.published("old", "tailyard-routes.json").await,
            |routes| *routes == json!({}),
        )
        .await;
        assert_eq!(stage.owners("svc:app").len(), 1);
        let secret = stage.cluster.secret("app.tail-lab.ts.net").await.0;
        assert_eq!(secret["tls.crt"], "a chain");
        stage.wait_advertised("new", &["svc:app"]).await;
    });
}

#[test]
fn ingress_moves_between_its_proxy_and_a_group_with_its_name_and_certificate() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.ingress("app", "g", "shop").await;
        let dns = "shop.tail-lab.ts.net";
        stage.certify(dns).await;
        stage.serves("app", "g").await;
        let certificate = async || stage.here::<Secret>().get(dns).await.expect("a Secret").uid();
        let before = certificate().await;

        // The group serves until the proxy has joined, under a temporary name; then the device gets the name.
        stage.annotate("app", json!({"tailscale.com/proxy-group": null})).await;
        let workload = INGRESS.set(&stage, "app").await.name_any();
        stage.wait_advertised("g", &["svc:shop"]).await;
        assert!(stage.reached("app").await["ingress"][0]["hostname"].is_string());
        INGRESS.join(&stage, "app", "shop-standalone").await;
        INGRESS.rename(&stage, "app", &workload, "shop-standalone").await;
        stage.wait_advertised("g", &[]).await;
        assert!(stage.hosted.vips().contains_key("svc:shop"), "replicas advertise it");
        stage.advertise("g", 2).await;
        INGRESS.rename(&stage, "app", &workload, "shop").await;
        assert!(stage.hosted.vips().is_empty());
        let finalizers = async || stage.ingresses().get("app").await.expect("an Ingress").finalizers().to_vec();
        eventually_async("it is the proxy's", DEADLINE, finalizers, |found| *found == ["tailscale.com/finalizer"]).await;
        let owner = async || stage.here::<Secret>().get(dns).await.expect("a Secret").labels().clone();
        eventually_async("so is the certificate", DEADLINE, owner, |labels| labels.contains_key("tailyard.io/parent-ingress")).await;
        let reached = async || stage.reached("app").await["ingress"].clone();
        let wanted = json!([{"hostname": dns, "ports": [{"port": 443, "protocol": "TCP"}]}]);
        eventually_async("its status", DEADLINE, reached, |found| *found == wanted).await;

        // A group that cannot serve changes nothing, and says so.
        stage.annotate("app", json!({"tailscale.com/proxy-group": "missing"})).await;
        let reported = async || stage.events("app").await;
        let both =
            |all: &Vec<String>| ["ProxyMoving", "ProxyGroupNotReady"].iter().all(|one| all.iter().any(|event| event.starts_with(one)));
        eventually_async("Events", DEADLINE, reported, both).await;
        stage.quiet(&running).await;
        assert_eq!(reached().await, wanted);

        // The device gives up the name; the proxy goes when a replica serves.
        stage.annotate("app", json!({"tailscale.com/proxy-group": "g"})).await;
        INGRESS.rename(&stage, "app", &workload, "shop-standalone").await;
        stage.wait_advertised("g", &["svc:shop"]).await;
        assert_eq!(INGRESS.set(&stage, "app").await.name_any(), workload, "no replica serves it");
        stage.serves("app", "g").await;
        stage.gone(&stage.here::<StatefulSet>(), &workload).await;
        stage.pod_goes(&format!("{workload}-0")).await;
        eventually_async("it is the group's", DEADLINE, finalizers, |found| *found == ["tailscale.com/ingress-pg-finalizer"]).await;
        assert_eq!((certificate().await, reached().await), (before, wanted));
        assert_eq!(INGRESS.objects(&stage, "app").await, [dns], "the certificate, which is the group's");
        assert!(!owner().await.contains_key("tailyard.io/parent-ingress"));
        let refused = stage.hosted.calls("PUT /api/v2/tailnet/-/vip-services/svc:shop");
        assert_eq!(refused, 2, "one for each creation: none was refused");
    });
}

#[test]
fn service_moves_between_its_proxy_and_a_group_with_its_name() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        let put = async |group: Value| {
            let annotations = json!({"tailscale.com/expose": "true", "tailscale.com/hostname": "db", "tailscale.com/proxy-group": group});
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            stage.users().patch("db", &PatchParams::default(), &patch).await.expect("changed");
        };
        stage.backend("db").await;
        stage.endpoint("db", true).await;
        put(Value::Null).await;
        let workload = SERVICE.join(&stage, "db", "db").await;
        let ready = async || stage.condition("db", "TailscaleProxyReady").await;
        eventually_async("it has a proxy", DEADLINE, ready, |found| found.starts_with("True ProxyCreated")).await;

        put(json!("g")).await;
        SERVICE.rename(&stage, "db", &workload, "db-standalone").await;
        stage.wait_advertised("g", &["svc:db"]).await;
        assert_eq!(SERVICE.set(&stage, "db").await.name_any(), workload, "no replica serves it");
        stage.advertise("g", 2).await;
        stage.gone(&stage.here::<StatefulSet>(), &workload).await;
        stage.pod_goes(&format!("{workload}-0")).await;
        let configured = async || (stage.condition("db", "TailscaleIngressSvcConfigured").await, ready().await);
        let is_moved = |found: &(String, String)| found.0.starts_with("True") && found.1.is_empty();
        eventually_async("it is the group's", DEADLINE, configured, is_moved).await;

        put(Value::Null).await;
        let workload = SERVICE.set(&stage, "db").await.name_any();
        eventually_async("it waits", DEADLINE, ready, |found| found.starts_with("False ProxyPending It moves")).await;
        SERVICE.join(&stage, "db", "db-standalone").await;
        stage.wait_advertised("g", &[]).await;
        stage.advertise("g", 2).await;
        SERVICE.rename(&stage, "db", &workload, "db").await;
        eventually_async("it is the proxy's", DEADLINE, configured, |found| found.0.is_empty() && found.1.starts_with("True")).await;
        assert!(stage.hosted.vips().is_empty());
    });
}

#[test]
fn clusters_share_and_release_a_name() {
    stage(async |one| {
        let two = one.second().await;
        let _first = one.reconciler_with("one", 9100, &["--tenancy", "open"]);
        let _second = two.reconciler_with("two", 9101, &["--tenancy", "open"]);
        for stage in [&one, &two] {
            stage.publisher("g", 2).await;
            stage.ingress("app", "g", "app").await;
        }
        let owners = async || one.owners("svc:app");
        let both = eventually_async("both own it", DEADLINE, owners, |owners| owners.len() == 2).await;
        assert_ne!(both[0], both[1]);
        for stage in [&one, &two] {
            stage.certify("app.tail-lab.ts.net").await;
            stage.wait_advertised("g", &["svc:app"]).await;
            stage.serves("app", "g").await;
        }
        one.delete(&one.ingresses(), "app").await;
        one.wait_advertised("g", &[]).await;
        one.advertise("g", 2).await;
        one.gone(&one.ingresses(), "app").await;
        assert_eq!(one.owners("svc:app").len(), 1, "the other one has it still");
        two.wait_advertised("g", &["svc:app"]).await;
        two.delete(&two.ingresses(), "app").await;
        two.wait_advertised("g", &[]).await;
        two.advertise("g", 2).await;
        two.gone(&two.ingresses(), "app").await;
        assert!(one.hosted.vips().is_empty());
    });
}

#[test]
fn name_of_another_cluster_is_a_conflict_without_sharing() {
    stage(async |stage| {
        let made = |owners: Value| {
            let owners = json!({"tailscale.com/owner-references": owners.to_string()});
            json!({"name": "svc:app", "addrs": ["100.99.0.200"], "ports": ["tcp:443"], "tags": ["tag:k8s"], "annotations": owners})
        };
        stage.hosted.add_vip("svc:app", &made(json!({"ownerRefs": [{"operatorID": "them"}]})));
        let running = stage.reconciler_with("one", 9100, &["--cluster-id", "here"]);
        stage.publisher("g", 2).await;
        stage.ingress("app", "g", "app").await;
        let reported = async || stage.events("app").await;
        eventually_async("the conflict is reported", DEADLINE, reported, |reported| {
            reported.iter().any(|event| event.contains("Another cluster has Tailscale Service svc:app"))
        })
        .await;
        assert_eq!(stage.owners("svc:app"), ["them"]);
        let tenants = json!([{"namespaceSelector": {}, "sharedNames": ["app"]}]);
        let shares = Patch::Merge(json!({"spec": {"tailyard": {"tenants": tenants}}}));
        stage.all::<ProxyGroup>().patch("g", &PatchParams::default(), &shares).await.expect("changed");
        eventually_async("it is joined", DEADLINE, async || stage.owners("svc:app"), |owners| *owners == ["them", "here"]).await;
        stage.wait_advertised("g", &["svc:app"]).await;

        let foreign = json!({"name": "svc:mine", "addrs": ["100.99.0.201"], "ports": ["tcp:22"], "tags": ["tag:k8s"]});
        stage.hosted.add_vip("svc:mine", &foreign);
        stage.ingress("mine", "g", "mine").await;
        let reported = async || stage.events("mine").await;
        // The cached list does not have this service yet: the conflict is detected on creation.
        eventually_async("it has another owner", DEADLINE, reported, |reported| {
            reported.iter().any(|event| event.contains("was not made by a cluster"))
        })
        .await;
        assert_eq!(stage.hosted.vips()["svc:mine"], foreign);
        stage.annotate("mine", json!({"tailyard.io/adopt-services": "mine"})).await;
        stage.annotate("mine", json!({"tailyard.io/adopt-service": "true"})).await;
        stage.quiet(&running).await;
        assert_eq!(stage.hosted.vips()["svc:mine"], foreign, "that is not for a tenant to say");
        let adopt = Patch::Merge(json!({"metadata": {"annotations": {"tailyard.io/adopt-services": "other, mine"}}}));
        stage.all::<ProxyGroup>().patch("g", &PatchParams::default(), &adopt).await.expect("changed");
        eventually_async("it is taken over", DEADLINE, async || stage.owners("svc:mine"), |owners| *owners == ["here"]).await;
        assert_eq!(stage.hosted.vips()["svc:mine"]["ports"], json!(["tcp:443"]));
        stage.wait_advertised("g", &["svc:app", "svc:mine"]).await;
        stage.delete(&stage.ingresses(), "mine").await;
        stage.wait_advertised("g", &["svc:app"]).await;
        stage.advertise("g", 2).await;
        stage.gone(&stage.ingresses(), "mine").await;
        let remaining = stage.hosted.vips();
        assert!(remaining["svc:mine"]["annotations"].as_object().is_none_or(serde_json::Map::is_empty), "it is given back: {remaining:?}");
    });
}

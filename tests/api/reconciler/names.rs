//! Names with several claimants: groups, and clusters that share a tailnet.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::DEADLINE;
use kit::reconciler::stage;
use kit::wait::eventually_async;

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

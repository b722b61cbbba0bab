//! One name that several want: groups, and clusters that share a tailnet.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stage::{Stage, stage};

impl Stage {
    /// The clusters that own a Tailscale Service.
    fn owners(&self, name: &str) -> Vec<String> {
        let state = self.hosted.state();
        let text = state.vips.get(name).and_then(|vip| vip["annotations"]["tailscale.com/owner-references"].as_str()).unwrap_or("{}");
        let owners: Value = serde_json::from_str(text).expect("JSON");
        let ids = owners["ownerRefs"].as_array().into_iter().flatten().map(|owner| owner["operatorID"].as_str().expect("an id").to_owned());
        ids.collect()
    }

    async fn annotate(&self, ingress: &str, annotations: Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.ingresses().patch(ingress, &PatchParams::default(), &patch).await.expect("changed");
    }
}

#[test]
fn a_name_moves_to_another_group_without_a_gap() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.publisher("old", 2).await;
        stage.publisher("new", 2).await;
        stage.ingress("app", "old", "app").await;
        stage.certify("app.tail1234.ts.net").await;
        stage.serves("app", "old").await;
        stage.annotate("app", json!({"tailscale.com/proxy-group": "new"})).await;
        stage.told_both("new", &["svc:app"]).await;
        stage.told_both("old", &["svc:app"]).await;
        stage.serves("app", "new").await;
        stage.told_both("old", &[]).await;
        stage.advertise("old", 2).await;
        eventually("the old one forgets it", async || stage.published("old", "tailyard-routes.json").await, |routes| *routes == json!({}))
            .await;
        assert_eq!(stage.owners("svc:app").len(), 1);
        let secret = stage.cluster.secret("app.tail1234.ts.net").await.0;
        assert_eq!(secret["tls.crt"], "a chain");
        stage.told_both("new", &["svc:app"]).await;
    });
}

#[test]
fn clusters_share_a_name_and_leave_it_one_by_one() {
    stage(async |one| {
        let two = one.second().await;
        let _first = one.reconciler("one", 9100);
        let _second = two.reconciler("two", 9101);
        for stage in [&one, &two] {
            stage.publisher("g", 2).await;
            stage.ingress("app", "g", "app").await;
        }
        let owners = async || one.owners("svc:app");
        let both = eventually("both own it", owners, |owners| owners.len() == 2).await;
        assert_ne!(both[0], both[1]);
        for stage in [&one, &two] {
            stage.certify("app.tail1234.ts.net").await;
            stage.told_both("g", &["svc:app"]).await;
            stage.serves("app", "g").await;
        }
        one.delete(&one.ingresses(), "app").await;
        one.told_both("g", &[]).await;
        one.advertise("g", 2).await;
        one.gone(&one.ingresses(), "app").await;
        assert_eq!(one.owners("svc:app").len(), 1, "the other one has it still");
        two.told_both("g", &["svc:app"]).await;
        two.delete(&two.ingresses(), "app").await;
        two.told_both("g", &[]).await;
        two.advertise("g", 2).await;
        two.gone(&two.ingresses(), "app").await;
        assert!(one.hosted.state().vips.is_empty());
    });
}

#[test]
fn a_twin_is_no_surprise_where_sharing_has_to_be_said() {
    stage(async |stage| {
        let made = |owners: Value| {
            let owners = json!({"tailscale.com/owner-references": owners.to_string()});
            json!({"name": "svc:app", "addrs": ["100.99.0.200"], "ports": ["tcp:443"], "tags": ["tag:k8s"], "annotations": owners})
        };
        stage.hosted.state().vips.insert("svc:app".into(), made(json!({"ownerRefs": [{"operatorID": "them"}]})));
        let _running = stage.reconciler_with("one", 9100, &["--shared-names", "opt-in", "--cluster-id", "here"]);
        stage.publisher("g", 2).await;
        stage.ingress("app", "g", "app").await;
        let told = async || stage.events("app").await;
        eventually("the conflict is told", told, |told| {
            told.iter().any(|told| told.contains("Another cluster has Tailscale Service svc:app"))
        })
        .await;
        assert_eq!(stage.owners("svc:app"), ["them"]);
        stage.annotate("app", json!({"tailyard.io/share-name": "true"})).await;
        eventually("it is joined", async || stage.owners("svc:app"), |owners| *owners == ["them", "here"]).await;
        stage.told_both("g", &["svc:app"]).await;

        let foreign = json!({"name": "svc:mine", "addrs": ["100.99.0.201"], "ports": ["tcp:22"], "tags": ["tag:k8s"]});
        stage.hosted.state().vips.insert("svc:mine".into(), foreign.clone());
        stage.ingress("mine", "g", "mine").await;
        let told = async || stage.events("mine").await;
        // The list of before does not have it: it is found when it is to be made.
        eventually("it is somebody's", told, |told| told.iter().any(|told| told.contains("was not made by a cluster"))).await;
        assert_eq!(stage.hosted.state().vips["svc:mine"], foreign);
        stage.annotate("mine", json!({"tailyard.io/adopt-service": "true"})).await;
        eventually("it is taken over", async || stage.owners("svc:mine"), |owners| *owners == ["here"]).await;
        assert_eq!(stage.hosted.state().vips["svc:mine"]["ports"], json!(["tcp:443"]));
    });
}

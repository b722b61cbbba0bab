//! Compromised proxy Pods: their state Secrets cannot make the reconciler change anything at the control plane that is not theirs.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::DEADLINE;
use kit::reconciler::stage;
use kit::wait::eventually_async;

#[test]
fn foreign_device_in_a_state_secret_is_not_deleted() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.group("g", 2).await;
        stage.join("g", 2).await;
        stage.quiet(&running).await;
        stage.hosted.add_device("nVictim", "payroll-0");
        let calls = stage.hosted.all_calls().len();
        let minted = async || stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        let before = minted().await;
        let path = "../tailnet/-/keys/k123?x=";
        for (replica, id) in [("g-0", "nVictim"), ("g-1", path)] {
            stage.cluster.patch_secret(replica, &[("device_id", id), ("reissue_authkey", "")]).await;
        }
        eventually_async("both get another key", DEADLINE, minted, |calls| *calls == before + 2).await;
        stage.delete(&stage.all::<ProxyGroup>(), "g").await;
        stage.gone(&stage.here::<StatefulSet>(), "g").await;
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        for replica in ["g-0", "g-1"] {
            stage.here::<Pod>().delete(replica, &now).await.expect("deleted");
        }
        stage.gone(&stage.all::<ProxyGroup>(), "g").await;
        assert_eq!(stage.hosted.devices(), BTreeSet::from(["nVictim".to_owned()]));
        let deleted: BTreeSet<_> = stage.hosted.all_calls().into_iter().skip(calls).filter(|call| call.starts_with("DELETE")).collect();
        let own = ["DELETE /api/v2/device/ng0", "DELETE /api/v2/device/ng1"].map(str::to_owned);
        let of_keys = |call: &&String| call.starts_with("DELETE /api/v2/tailnet/-/keys/k") && !call.ends_with("k123");
        assert_eq!(deleted.iter().filter(|call| !of_keys(call)).cloned().collect::<BTreeSet<_>>(), own.into());
    });
}

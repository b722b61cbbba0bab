//! Grace period of a replica's own Pod, from a real API server.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::{Pod as Object, ServiceAccount};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use serde_json::json;
use tailyard::model::settings::Pod;
use tailyard::proxy::shutdown::deletion;

use kit::apiserver::{Cluster, DEADLINE, NAMESPACE, cluster};
use kit::wait::until_async;

const NAME: &str = "eg-0";

/// Creates the Pod, on a node: the object of a Pod without one is deleted at once.
async fn create(cluster: &Cluster) -> Pod {
    let api: Api<Object> = Api::namespaced(cluster.admin(), NAMESPACE);
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME},
        "spec": {"nodeName": "n1", "serviceAccountName": NAME, "containers": [{"name": "tailscale", "image": "tailyard"}]}});
    let object = serde_json::from_value(object).expect("a Pod");
    let object = api.create(&PostParams::default(), &object).await.expect("created");
    Pod { object: Some(NAME.to_owned()), uid: object.metadata.uid, ..Pod::default() }
}

async fn delete(cluster: &Cluster, seconds: u32) {
    let api: Api<Object> = Api::namespaced(cluster.admin(), NAMESPACE);
    api.delete(NAME, &DeleteParams::default().grace_period(seconds)).await.expect("deleted");
}

#[test]
fn grace_period_of_a_deletion_is_read_from_the_own_pod() {
    cluster(async |cluster| {
        let account =
            ServiceAccount { metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() }, ..ServiceAccount::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.admin(), NAMESPACE);
        accounts.create(&PostParams::default(), &account).await.expect("a ServiceAccount");
        let client = cluster.pod().await;
        let found = async |pod: &Pod| deletion(Some(&client), pod).await;
        let look = async |pod: &Pod| found(pod).await.map(|deletion| deletion.grace);
        let pod = create(&cluster).await;
        delete(&cluster, 5).await;
        assert_eq!(look(&pod).await, None, "it may not read its Pod");
        cluster.allow("pods", &[NAME], &["get"]).await;
        until_async("the grace period", DEADLINE, async || look(&pod).await == Some(Duration::from_secs(5))).await;
        let began = found(&pod).await.and_then(|deletion| deletion.began).expect("the time of the deletion");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").saturating_sub(began);
        assert!(since < Duration::from_secs(5), "the time of the deletion, not of its end: {since:?}");
        delete(&cluster, 0).await;
        let forced = Some(Duration::from_secs(2));
        assert_eq!(look(&pod).await, forced);
        let successor = create(&cluster).await;
        assert_eq!((look(&pod).await, look(&successor).await), (forced, None));
        cluster.freeze_server();
        let began = Instant::now();
        assert_eq!(look(&pod).await, None);
        assert!(began.elapsed() < Duration::from_secs(1), "a drain begins without an answer");
        cluster.thaw_server();
    });
}

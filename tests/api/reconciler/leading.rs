//! Leader election: two reconcilers, one of which writes.

use k8s_openapi::api::apps::v1::StatefulSet;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, stage};
use kit::wait::{eventually_async, until_async};

#[test]
fn only_the_leader_writes_and_the_standby_takes_over() {
    stage(async |stage| {
        let first = stage.reconciler("first", 9101);
        first.leads(true).await;
        let second = stage.reconciler("second", 9102);
        eventually_async("the other is ready to", DEADLINE, async || second.get("/readyz"), |answer| answer.contains("200 OK")).await;
        second.leads(false).await;
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        assert_eq!(second.metric("tailyard_api_writes_total"), 0, "one writer");
        assert!(first.metric("tailyard_api_writes_total") > 0);
        first.kill();
        let begin = std::time::Instant::now();
        second.leads(true).await;
        println!("another leads after {:?}", begin.elapsed());
        assert!(begin.elapsed() <= std::time::Duration::from_secs(20), "15 s, and what a busy machine adds");
        statefulset_is_restored(&stage).await;
    });
}

#[test]
fn reconciler_continues_after_an_api_server_restart() {
    stage(async |mut stage| {
        let running = stage.reconciler("one", 9101);
        running.leads(true).await;
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        stage.cluster.kill_server();
        running.leads(false).await;
        stage.cluster.start_server().await;
        running.leads(true).await;
        statefulset_is_restored(&stage).await;
    });
}

/// Deletes the group's StatefulSet and waits until the leader has recreated it.
async fn statefulset_is_restored(stage: &Stage) {
    let sets = stage.here::<StatefulSet>();
    stage.delete(&sets, "g").await;
    until_async("the StatefulSet is there again", DEADLINE, async || sets.get_opt("g").await.ok().flatten().is_some()).await;
}

//! kubectl's commands without a session: reads and writes.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Instant;

use kit::cluster::DEADLINE;
use kit::wait::until;
use serde_json::json;

use super::stage::{ALICE, GROUP, SHELL, Stage};
use super::user::printed;

/// Number of clients that discover the API at once.
const CLIENTS: usize = 10;
/// Number of requests of a burst, and of its connections.
const BURST: (usize, usize) = (200, 60);

/// Gets, lists in pages, watches, follows logs, and requests by path and by a local proxy.
pub(crate) fn reads(stage: &Stage) {
    let user = &stage.alice;
    assert_eq!(user.kubectl(&["get", "pod", SHELL, "-o", "jsonpath={.status.phase}"]), "Running");
    let pages = user.try_kubectl(&["get", "configmaps", "--chunk-size=2", "-o", "name", "-v=6"]);
    let (names, requests) = (String::from_utf8_lossy(&pages.stdout), String::from_utf8_lossy(&pages.stderr));
    assert_eq!(names.matches("configmap/page-").count(), 5, "{names}");
    assert!(requests.matches("continue=").count() >= 2, "pages of two: {requests}");

    let watch = user.start("watch", &["get", "configmaps", "--watch", "--output-watch-events", "-o", "name"], &[]);
    until("the watch has begun", DEADLINE, || watch.output().contains("configmap/page-4"));
    stage.cluster.kubectl(&["create", "configmap", "watched"]);
    until("an event", DEADLINE, || watch.output().lines().any(|line| line.contains("configmap/watched")));
    let logs = user.start("logs", &["logs", "--follow", "--tail=1", SHELL], &[]);
    until("lines that the Pod prints meanwhile", DEADLINE, || logs.output().lines().count() >= 3);

    let version = user.kubectl(&["get", "--raw", "/version"]);
    assert!(version.contains("gitVersion"), "{version}");
    let described = user.kubectl(&["describe", "pod", SHELL]);
    assert!(described.contains("Started"), "with its Events: {described}");
    let proxy = user.start("proxy", &["proxy", "--port=18001"], &[]);
    until("the local proxy", DEADLINE, || proxy.output().contains("Starting to serve"));
    let found = user.curl(&format!("http://127.0.0.1:18001/api/v1/namespaces/default/pods/{SHELL}"), &[]).expect("an answer");
    assert_eq!((found.status, &found.json()["metadata"]["name"]), (200, &json!(SHELL)));
    let (log, user) = (stage.logs(), format!("user=\"{ALICE}\""));
    let is_of_watch =
        |line: &str| ["verb=\"watch\"", "resource=\"configmaps\"", "code=200", &user].iter().all(|field| line.contains(field));
    assert!(log.lines().any(is_of_watch), "the access log: {log}");
}

/// Applies, changes and deletes an object, and waits for a Deployment.
pub(crate) fn writes(stage: &Stage) {
    let user = &stage.alice;
    let file = stage.cluster.tailnet.dir().join("applied.json");
    let apply = |value: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"key": value}});
        fs::write(&file, object.to_string()).expect("written");
        user.kubectl(&["apply", "-f", &file.display().to_string()])
    };
    assert_eq!([apply("one"), apply("two")], ["configmap/applied created\n", "configmap/applied configured\n"]);
    assert_eq!(user.kubectl(&["get", "configmap", "applied", "-o", "jsonpath={.data.key}"]), "two");
    user.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file.display().to_string()]);
    user.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    // It waits for the end by a watch.
    user.kubectl(&["delete", "configmap/applied", "configmap/watched", "--timeout=60s"]);
    let gone = user.refused(&["get", "configmap", "applied"]);
    assert!(gone.contains("NotFound"), "{gone}");
}

/// Discovery by several kubectls at once, each with an empty cache, and a burst of requests on many connections of one client.
pub(crate) fn discovery_in_bursts(stage: &Stage) {
    let resources = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let expected = resources(&stage.cluster.kubectl(&["api-resources", "-o", "name"]));
    let begin = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut command = stage.alice.command();
            command.env("KUBECACHEDIR", format!("/run/discovery-{number}")).args(["api-resources", "-o", "name"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter")
        })
        .collect();
    for client in clients {
        let output = client.wait_with_output().expect("a child");
        assert_eq!(resources(&printed("api-resources", &output)), expected, "{}", stage.logs());
    }
    println!("discovery by {CLIENTS} clients at once: {:?}", begin.elapsed());
    let (begin, (requests, connections)) = (Instant::now(), BURST);
    let parallel =
        ["--http1.1", "--parallel", "--parallel-immediate", "--parallel-max", &connections.to_string(), "--fail", "--fail-early"];
    let answers = stage.alice.ask(GROUP, &format!("/apis/apps/v1?request=[1-{requests}]"), &parallel).expect("answers");
    assert_eq!(answers.body.matches("APIResourceList").count(), requests, "{}", stage.logs());
    println!("{requests} requests on {connections} connections: {:?}", begin.elapsed());
}

//! Who a client is to the API server, by WhoIs and grants alone.

use std::time::Duration;

use kit::cluster::DEADLINE;
use kit::machine::Process;
use kit::wait::eventually;
use serde_json::{Value, json};

use super::stage::{ALICE, DEVS, GROUP, MALLORY, SHELL, Stage, TAG, has_group, rule};
use super::streams::FALLBACK;
use super::user::User;

/// Time limit until a revoked grant has ended.
const REVOKED_WITHIN: Duration = Duration::from_secs(10);
/// The same of an open stream: clients are looked up again after 10 s at the earliest, and each minute.
const STREAM_ENDS_WITHIN: Duration = Duration::from_secs(75);

/// Names and groups of a user, a tagged node and a user without grants.
pub(crate) fn callers_are_who_their_nodes_are(stage: &Stage) {
    let tailnet = &stage.cluster.tailnet;
    let node = |name: &str| tailnet.name_of(name);
    for (user, expected, groups, host) in [
        (&stage.alice, ALICE.to_owned(), &[DEVS][..], "alice"),
        (&stage.mallory, MALLORY.to_owned(), &[], "mallory"),
        (&stage.ci, node("ci"), &[TAG], "ci"),
    ] {
        let whoami = user.kubectl(&["auth", "whoami", "-o", "json"]);
        let whoami: Value = serde_json::from_str(&whoami).expect("JSON");
        let found = &whoami["status"]["userInfo"];
        assert_eq!((&found["username"], &found["groups"]), (&json!(expected), &json!([groups, &["system:authenticated"]].concat())));
        let address = tailnet.addresses_of(host)[0].to_string();
        let extra = |key: &str| found["extra"][format!("tailyard.io/{key}")][0].as_str().unwrap_or_default();
        assert_eq!([extra("node"), extra("address")], [&*node(host), &address], "{found}");
    }
    assert!(stage.ci.kubectl(&["get", "pods", "-o", "name"]).contains(SHELL), "view of the tag");
    let forbidden = stage.ci.refused(&["delete", "pod", SHELL]);
    assert!(forbidden.contains(&format!("User \"{}\" cannot delete resource", node("ci"))), "{forbidden}");
    let forbidden = stage.mallory.refused(&["get", "pods"]);
    assert!(forbidden.contains(&format!("User \"{MALLORY}\" cannot list resource \"pods\"")), "RBAC refuses: {forbidden}");
    let forbidden = stage.alice.refused(&["get", "nodes"]);
    assert!(forbidden.contains(&format!("User \"{ALICE}\" cannot list resource \"nodes\"")), "{forbidden}");
}

/// Requests with headers that name other users, have credentials, or hide those from the proxy, in each HTTP version.
pub(crate) fn no_header_names_another_user(stage: &Stage) {
    stage.cluster.kubectl(&["create", "serviceaccount", "root"]);
    stage.cluster.kubectl(&["create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", "--serviceaccount=default:root"]);
    let token = format!("Authorization: Bearer {}", stage.cluster.kubectl(&["create", "token", "root"]).trim());
    let forwarded = format!("X-Forwarded-For: {}", stage.cluster.tailnet.addresses_of("alice")[0]);
    let attempts: [&[&str]; 12] = [
        &["Impersonate-User: admin", "Impersonate-Group: system:masters"],
        &["impersonate-group: system:masters", "Impersonate-Group: devs"],
        &["Impersonate-User: admin", "Impersonate-Uid: 1", "Impersonate-Extra-Scopes: all"],
        &["Impersonate-Extra-tailyard.io%2Fnode: other"],
        &["Impersonate_Group: system:masters", "Impersonate-Group : system:masters"],
        &[&token],
        &[&token, "Impersonate-User: admin"],
        &["X-Remote-User: admin", "X-Remote-Group: system:masters"],
        &["Connection: Impersonate-User, Impersonate-Group", "Impersonate-Group: system:masters"],
        &["Connection: Authorization", "Authorization: Basic YWRtaW46YWRtaW4="],
        &["Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YQ"],
        &[&forwarded, "X-Forwarded-Proto: https", "Forwarded: for=127.0.0.1", "X-Real-Ip: 127.0.0.1"],
    ];
    let own = stage.mallory.identity(GROUP, &[]).expect("an identity");
    for version in ["--http1.1", "--http2"] {
        for headers in attempts {
            let args: Vec<&str> = headers.iter().flat_map(|header| ["-H", header]).chain([version]).collect();
            // A header whose name ends with a space is refused.
            match stage.mallory.identity(GROUP, &args) {
                Ok(found) => assert_eq!(found, own, "{headers:?}"),
                Err(refused) => assert!(headers.iter().any(|header| header.contains(" :")), "{headers:?}: {refused}"),
            }
        }
    }
    stage.cluster.kubectl(&["delete", "clusterrolebinding/all", "serviceaccount/root"]);
}

/// Malformed capabilities, groups outside the lists, and an enforced recorder.
pub(crate) fn refusals_name_their_cause(stage: &Stage) {
    let refused = |user: &User, cause: &str| {
        let message = eventually(&format!("403 with {cause:?}"), DEADLINE, || {
            let answer = user.ask(GROUP, "/api/v1/namespaces/default/pods", &[]).ok().filter(|answer| answer.status == 403)?;
            Some(answer.message()).filter(|message| message.contains(cause))
        });
        let shown = user.refused(&["get", "pods"]);
        assert!(shown.contains(cause), "kubectl shows {message:?}: {shown}");
    };
    stage.grant(&[(ALICE, json!([rule()])), (MALLORY, json!([rule(), {"impersonate": {"groups": DEVS}}]))]);
    refused(&stage.mallory, "impersonate.groups");
    stage.grant(&[(ALICE, json!([rule()])), (MALLORY, json!([[]]))]);
    refused(&stage.mallory, "the rule must be an object");
    stage.grant(&[(ALICE, json!([rule()])), (MALLORY, json!([{"impersonate": {"groups": ["system:masters"]}}]))]);
    refused(&stage.mallory, "system:masters");
    stage.grant(&[(ALICE, json!([rule()])), (MALLORY, json!([{"impersonate": {"groups": ["others"]}}]))]);
    refused(&stage.mallory, "cannot impersonate resource \"groups\"");

    let recorder = json!({"recorderAddrs": ["100.64.0.99:80"], "enforceRecorder": true});
    stage.grant(&[(ALICE, json!([rule(), recorder]))]);
    let exec = ["exec", SHELL, "--", "touch", "/tmp/ran"];
    eventually("exec is refused", DEADLINE, || {
        let output = stage.alice.try_kubectl(&["exec", SHELL, "--", "true"]);
        String::from_utf8_lossy(&output.stderr).contains("enforceRecorder").then_some(())
    });
    for is_websocket in ["true", "false"] {
        let mut command = stage.alice.command();
        let output = command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", is_websocket).arg("-v=4").args(exec).output().expect("nsenter");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains("enforceRecorder"), "{message}");
        assert_eq!(message.contains(FALLBACK), is_websocket == "true", "kubectl tries the other protocol: {message}");
    }
    assert_eq!(stage.cluster.try_in_pod(SHELL, &["ls", "/tmp/ran"]), None, "a refused command has not run");
    assert!(stage.alice.kubectl(&["get", "pods", "-o", "name"]).contains(SHELL), "requests without a session pass");
    stage.restore_grants();
}

/// A grant may be to the Tailscale Service alone, and one to another is none.
pub(crate) fn grant_to_the_service_counts_for_its_clients(stage: &Stage) {
    for (destination, counts) in [("svc:other", false), (&*format!("svc:{GROUP}"), true)] {
        stage.grant_to(destination, &[(ALICE, json!([rule()]))]);
        eventually(destination, DEADLINE, || {
            let user = stage.alice.identity(GROUP, &[]).ok()?;
            (has_group(&user, DEVS) == counts).then_some(())
        });
    }
    stage.restore_grants();
}

/// The next request on a connection that exists is another one's.
pub(crate) fn revoked_grant_ends_with_the_next_request(stage: &Stage) {
    let url = format!("https://{}/api/v1/namespaces/default/configmaps?limit=1&x=[1-100000]", stage.alice.client.name(GROUP));
    let requests = requests(&stage.alice, "revoked", &url, "10/s");
    eventually("requests are answered", DEADLINE, || (answers(&requests).len() >= 3).then_some(()));
    let mut watch = stage.alice.start("revoked-watch", &["get", "configmaps", "--watch", "-o", "name"], &[]);
    eventually("the watch has begun", DEADLINE, || watch.output().contains("page-4").then_some(()));
    stage.grant(&[]);
    let (index, took) = Stage::timed("a request is refused", || answers(&requests).iter().position(|(status, _)| *status == 403));
    let answers = answers(&requests);
    println!("revoked after {took:?}: {:?}", &answers[index.saturating_sub(1)..]);
    // The connection of a client that lost a right is closed, with the request that is under way: 0.
    let before = answers[..index].iter().skip_while(|(status, _)| *status == 200);
    assert!(before.filter(|(status, _)| *status == 0).count() <= 1 && took < REVOKED_WITHIN, "{took:?}: {answers:?}");
    assert!(answers[..index].iter().all(|(status, _)| [200, 0].contains(status)), "{answers:?}");
    eventually("the end of the watch", STREAM_ENDS_WITHIN, || watch.ended().then_some(()));
    let user = stage.alice.identity(GROUP, &[]).expect("an identity");
    assert!(!has_group(&user, DEVS), "{user}");
    stage.restore_grants();
}

/// Requests by curl at a rate, on one connection as long as it exists.
pub(crate) fn requests(user: &User, what: &str, url: &str, rate: &str) -> Process {
    let roots = user.client.roots().display().to_string();
    let format = "%{stderr}%{http_code} %{num_connects} %{errormsg}\n";
    let args = ["/usr/bin/curl", "-s", "--cacert", &roots, "--max-time", "10", "--rate", rate, "-o", "/dev/null", "-w", format, url];
    user.client.machine().spawn(what, &args, &[])
}

/// Status and number of new connections of each request so far; status 0 without a response.
pub(crate) fn answers(requests: &Process) -> Vec<(u16, usize)> {
    let parse = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let output = requests.output();
    let complete = output.rfind('\n').map_or(0, |end| end + 1);
    output[..complete].lines().filter_map(parse).collect()
}

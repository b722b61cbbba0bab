//! Changes of the group, and faults, while clients use it.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::pki::{Leaf, dns_name};
use kit::cluster::{DEADLINE, pods};
use kit::machine::Process;
use kit::wait::{eventually, until};
use nix::sys::signal::Signal;
use serde_json::json;

use super::identity::{answers, requests};
use super::stage::{ALICE, GROUP, RENAMED, SHELL, Stage};
use super::streams::PROTOCOLS;
use super::user::Answer;

/// Timeout of a connection. A client's kernel retransmits after one second, two, three and so on.
const PATIENCE: &str = "10s";
/// Connections per second.
const RATE: &str = "20";
/// Connections per second while a replica is killed.
const BUSY_RATE: &str = "50";
/// Open shells of each protocol on the replica that is killed.
const SHELLS: usize = 3;
/// Bound of the connections that fail with a killed replica: those of six seconds.
const MAX_FAILED: usize = 300;
/// Number of answers after which the API is served again.
const ENOUGH: u64 = 60;
/// Prefix of the API server's root.
const ROOT: &str = "{";
/// Port of the Kubernetes API.
const HTTPS: u16 = 443;
/// Time limit until the API is served again after a kill; the kubelet starts a container within ten seconds.
const SERVED_WITHIN: Duration = Duration::from_secs(40);
/// Program of a session: five lines in four seconds, less than the drain timeout leaves it.
const SESSION: &str = "for line in 1 2 3 4 5; do echo line $line; sleep 1; done";
/// Time limit of the 503 response.
const REFUSED_WITHIN: Duration = Duration::from_secs(15);
/// Duration of an outage of the API server.
const OUTAGE: Duration = Duration::from_secs(25);
const RESTARTS: &str = "{.status.containerStatuses[0].restartCount}";
const READY_SINCE: &str = r#"{.status.conditions[?(@.type=="Ready")].lastTransitionTime}"#;
/// Replaces the token in the volume of a Pod's service account, `$1` is the Pod's UID, as the kubelet does: by a new directory.
const REPLACE_TOKEN: &str = r#"cd /var/lib/kubelet/pods/"$1"/volumes/kubernetes.io~projected/kube-api-access-*
new=$(mktemp -d ..new.XXXXXX)
chmod 755 "$new"
cp ..data/* "$new"/
printf %s "$2" > "$new"/token
ln -s "$new" ..data_tmp
mv -T ..data_tmp ..data
"#;

/// Restarts the group while requests arrive on new connections and on one that exists.
pub(crate) fn restart_fails_no_request(stage: &Stage) {
    let load = stage.alice.client.begin((GROUP, HTTPS), ROOT, RATE, PATIENCE);
    let url = format!("https://{}/version?[1-100000]", stage.alice.client.name(GROUP));
    let mut connected = requests(&stage.alice, "connected", &url, "20/s");
    let set = format!("statefulset/{GROUP}");
    stage.cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, &set]);
    stage.cluster.rolled_out(NAMESPACE, &set);
    let report = load.end();
    connected.signal(Signal::SIGTERM);
    connected.wait();
    let answers = answers(&connected);
    let connects: usize = answers.iter().map(|(_, connects)| connects).sum();
    println!("a rolling restart: {report}; {} requests on {connects} connections", answers.len());
    report.measured("a rolling restart");
    assert!(report.failed() == 0, "{report}\n{}", stage.logs());
    let failed = answers.iter().filter(|(status, _)| *status != 200).count();
    assert!(
        failed == 0 && answers.len() > 100,
        "{failed} failed of those on existing connections: {}\n{}",
        connected.output(),
        stage.logs()
    );
    assert_eq!(stage.pebble.issued(), 1, "a restart orders nothing");
}

/// Deletes the Pod of the replica that has a session and a watch. It serves until the session has ended, and new connections meanwhile.
pub(crate) fn session_ends_before_its_replica(stage: &Stage) {
    let load = stage.alice.client.begin((GROUP, HTTPS), ROOT, RATE, PATIENCE);
    let watch = stage.alice.start("watch-of-drain", &["get", "configmaps", "-w"], &[]);
    let session = stage.alice.start("session-of-drain", &["exec", SHELL, "--", "sh", "-c", SESSION], &[]);
    until("the session", DEADLINE, || session.output().contains("line 1\n"));
    let replica = format!("{GROUP}-{}", stage.primary(GROUP));
    let uid = pods::uid(&stage.cluster, NAMESPACE, &replica);
    stage.cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &replica, "--wait=false"]);
    until("the end of the session", DEADLINE, || session.output().contains("line 5\n"));
    assert_eq!(pods::uid(&stage.cluster, NAMESPACE, &replica), uid, "the replica serves until its drain timeout\n{}", stage.logs());
    let before = watch.output();
    stage.cluster.kubectl(&["create", "configmap", "during-the-drain", "-n", "default"]);
    until("an event of the watch", Duration::from_secs(2), || watch.output().len() > before.len());
    eventually("another Pod", DEADLINE, || (pods::uid(&stage.cluster, NAMESPACE, &replica) != uid).then_some(()));
    stage.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    let report = load.end();
    println!("a drain with a session and a watch: {report}");
    assert!(report.failed() == 0, "{report}\n{}", stage.logs());
}

/// Kills all processes of the replica that receives the connections, with several open shells of both protocols.
pub(crate) fn killed_replica_is_replaced(stage: &Stage) {
    let replica = format!("{GROUP}-{}", stage.primary(GROUP));
    let load = stage.alice.client.begin((GROUP, HTTPS), ROOT, BUSY_RATE, PATIENCE);
    let mut shells: Vec<Process> = PROTOCOLS
        .into_iter()
        .flat_map(|protocol| (0..SHELLS).map(move |number| (protocol, number)))
        .map(|(protocol, number)| {
            let what = format!("shell-{}-{number}", protocol.name);
            stage.alice.start(&what, &["exec", "-i", SHELL, "--", "sh", "-c", "while echo open; do sleep 1; done"], &protocol.env())
        })
        .collect();
    until("the shells", DEADLINE, || shells.iter().all(|shell| shell.output().contains("open")));
    let (killed, uid) = (SystemTime::now(), pods::uid(&stage.cluster, NAMESPACE, &replica));
    pods::signal(&uid, Some("tailyard"), Signal::SIGKILL);
    let answered = load.so_far().answered_so_far();
    let hello = || stage.alice.try_kubectl(&["exec", SHELL, "--", "echo", "hello"]).status.success().then_some(());
    let ((), shell) = Stage::timed("a new shell", hello);
    let ((), took) = Stage::timed("answers", || (load.so_far().answered_so_far() > answered + ENOUGH).then_some(()));
    let ((), ended) = Stage::timed("the end of the shells", || shells.iter_mut().all(Process::ended).then_some(()));
    stage.cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    stage.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    let report = load.end();
    let outage = report.last_failure_after(killed);
    println!("{replica} killed: a new shell after {shell:?}, {ENOUGH} answers {took:?} later, the end of open shells {ended:?} later");
    println!("the last failed connection began after {outage:?}; {report}");
    report.measured("a replica is killed");
    assert!(outage < SERVED_WITHIN && shell < SERVED_WITHIN, "{report}\n{}", stage.logs());
    assert!(report.failed() < MAX_FAILED, "{report}\n{}", stage.logs());
}

/// Replaces the token of the Pod that receives the connections, as the kubelet does: by another valid one under load, by one that the API
/// server refuses, and again by a valid one.
pub(crate) fn replaced_token_is_used_without_a_restart(stage: &Stage) {
    let replica = format!("{GROUP}-{}", stage.primary(GROUP));
    let field = |path: &str| pods::field(&stage.cluster, NAMESPACE, &replica, path);
    let [uid, node, account] = ["{.metadata.uid}", "{.spec.nodeName}", "{.spec.serviceAccountName}"].map(field);
    let node = stage.cluster.nodes.iter().find(|one| one.name == node).expect("a node");
    let bound = ["--bound-object-kind=Pod".to_owned(), format!("--bound-object-name={replica}"), format!("--bound-object-uid={uid}")];
    let create =
        || stage.cluster.kubectl(&["create", "token", &account, "-n", NAMESPACE, &bound[0], &bound[1], &bound[2]]).trim().to_owned();
    let replace = |token: &str| {
        let status = node.machine.command(Path::new("sh")).args(["-ec", REPLACE_TOKEN, "sh", &uid, token]).status();
        assert!(status.expect("nsenter").success(), "the volume of the service account");
    };
    let identity = || stage.alice.identity(GROUP, &[]);
    let (before, restarts) = (identity().expect("an identity"), field(RESTARTS));
    let load = stage.alice.client.begin((GROUP, HTTPS), ROOT, RATE, PATIENCE);
    replace(&create());
    let answered = load.so_far().answered_so_far();
    eventually("answers with another token", DEADLINE, || (load.so_far().answered_so_far() > answered + ENOUGH).then_some(()));
    load.end().assert_no_failures("a replaced token");
    replace("none");
    let refused = || identity().err().filter(|refusal| refusal.contains("status: 401"));
    let (_, unauthorized) = Stage::timed("the refusal of an invalid token", refused);
    replace(&create());
    let (found, took) = Stage::timed("the identity with a valid token", || identity().ok());
    println!("an invalid token is used after {unauthorized:?}, a valid one after {took:?}");
    assert_eq!((found, field("{.metadata.uid}"), field(RESTARTS)), (before, uid.clone(), restarts), "{}", stage.logs());
}

/// Requests get 503 with a `Status` while the API server is down, and the replicas become unready. Both end with the outage, without a restart.
pub(crate) fn outage_of_the_api_server_is_a_status(stage: &Stage) {
    let cluster = &stage.cluster;
    let replicas = [0, 1].map(|ordinal| format!("{GROUP}-{ordinal}"));
    let fields = |path: &str| replicas.each_ref().map(|replica| pods::field(cluster, NAMESPACE, replica, path));
    let [before, restarted, addresses] = ["{.metadata.uid}", RESTARTS, "{.status.podIP}"].map(fields);
    let since = fields(READY_SINCE);
    let ask = || stage.alice.ask(GROUP, "/version", &[]);
    cluster.control.stop_api();
    let begin = Instant::now();
    let mut answer = ask();
    while answer.as_ref().is_ok_and(|answer| answer.status != 503) && begin.elapsed() < REFUSED_WITHIN {
        answer = ask();
    }
    let took = begin.elapsed();
    let unready = addresses.each_ref().map(|address| until_unready(stage, address));
    let unready_after = begin.elapsed();
    while begin.elapsed() < OUTAGE {
        let refused = ask().expect("a response");
        assert_eq!((refused.status, refused.message().is_empty()), (503, false), "{refused:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    cluster.control.start_api(&cluster.pki, &cluster.bin);
    let answer = answer.expect("a response");
    println!("without an API server: {} after {took:?}: {}; unready after {unready_after:?}: {unready:?}", answer.status, answer.message());
    assert_eq!(answer.status, 503, "{answer:?}\n{}", stage.logs());
    let (_, took) = Stage::timed("the API server's answer", || ask().ok().filter(|answer| answer.status == 200));
    println!("answered {took:?} after its start");
    for address in &addresses {
        eventually("ready again", DEADLINE, || (readiness(stage, address).status == 200).then_some(()));
    }
    stage.is_ready(&stage.url(GROUP));
    let changed = || fields(READY_SINCE).iter().zip(&since).all(|(now, before)| now != before).then_some(());
    eventually("Pods that have become ready again", DEADLINE, changed);
    assert_eq!((fields("{.metadata.uid}"), fields(RESTARTS)), (before, restarted), "no replica is replaced, and no container restarts");
}

/// Response of a replica's readiness endpoint.
fn readiness(stage: &Stage, pod: &str) -> Answer {
    let mut command = stage.cluster.nodes[0].machine.command(Path::new("curl"));
    let url = format!("http://{pod}:9002/readyz");
    let output = command.args(["-sS", "--max-time", "5", "-w", "\n%{http_code}", &url]).output().expect("nsenter");
    Answer::read(&output).expect("a response")
}

/// Waits until a replica is unready for the API server, and returns its reason.
fn until_unready(stage: &Stage, pod: &str) -> String {
    eventually("unready", DEADLINE, || {
        let answer = readiness(stage, pod);
        (answer.status == 503 && answer.body.contains("api-server")).then_some(answer.body)
    })
}

/// Renames the API. The former name answers until the new one does.
pub(crate) fn former_name_is_served_until_the_new_one(stage: &Stage) {
    let begin = Instant::now();
    stage.patch(&json!({"spec": {"kubeAPIServer": {"hostname": RENAMED}}}));
    let exists = || stage.alice.client.services().iter().any(|one| one["name"] == format!("svc:{RENAMED}"));
    let answers = |name: &str| stage.alice.ask(name, "/version", &["--max-time", "5"]).is_ok_and(|answer| answer.status == 200);
    let mut is_known = false;
    while !(is_known && answers(RENAMED)) {
        // The new name may be served since.
        assert!(answers(GROUP) || (is_known && answers(RENAMED)), "neither name answers after {:?}\n{}", begin.elapsed(), stage.logs());
        if !is_known && exists() {
            stage.alice.client.resolve(RENAMED);
            is_known = true;
        }
        assert!(begin.elapsed() < DEADLINE, "the new name is not served\n{}", stage.logs());
    }
    println!("another host name: served after {:?}", begin.elapsed());
    stage.is_ready(&stage.url(RENAMED));
    eventually("the former Tailscale Service is deleted", DEADLINE, || {
        stage.alice.client.services().iter().all(|one| one["name"] != format!("svc:{GROUP}")).then_some(())
    });
    stage.alice.configure(RENAMED);
    assert!(stage.alice.kubectl(&["get", "pods", "-o", "name"]).contains("pod/"), "by the new name");
    assert_eq!(stage.pebble.issued(), 2, "one order for the new name");
}

/// Serves the API by HTTP on port 80, inside the tailnet's encryption, and by HTTPS again.
pub(crate) fn plain_http_has_the_same_identity(stage: &Stage) {
    let (https, before) = (stage.url(RENAMED), stage.alice.identity(RENAMED, &[]).expect("an identity"));
    let http = https.replace("https:", "http:");
    stage.patch(&json!({"spec": {"tailyard": {"kubeAPIServer": {"http": true}}}}));
    stage.is_ready(&http);
    stage.alice.configure_by_tailyard(RENAMED, &http);
    assert!(stage.alice.kubectl(&["get", "pods", "-o", "name"]).contains("pod/"), "by HTTP");
    assert_eq!(stage.alice.identity_at(&http, &[]).expect("an identity"), before);
    stage.patch(&json!({"spec": {"tailyard": {"kubeAPIServer": null}}}));
    stage.is_ready(&https);
    stage.alice.configure(RENAMED);
    assert_eq!(stage.alice.identity(RENAMED, &[]).expect("an identity"), before);
}

/// Serves the API with a certificate of the user's own authority, and with that of the control plane again.
pub(crate) fn own_certificate_replaces_that_of_the_control_plane(stage: &Stage) {
    let (url, pki) = (stage.url(RENAMED), &stage.cluster.pki);
    let name = url.trim_start_matches("https://");
    pki.leaf(&Leaf { file: "own", authority: "ca", subject: "/CN=own", names: &[dns_name(name)] });
    let [authority, certificate, key] = ["ca.crt", "own.crt", "own.key"].map(|file| pki.path(file).display().to_string());
    let files = [format!("--cert={certificate}"), format!("--key={key}")];
    stage.cluster.kubectl(&["create", "secret", "tls", "own", "-n", NAMESPACE, &files[0], &files[1]]);
    stage.cluster.kubectl(&["label", "secret", "own", "-n", NAMESPACE, "tailyard.io/allow-ingress-tls=true"]);
    stage.patch(&json!({"spec": {"tailyard": {"kubeAPIServer": {"certificateSecret": "own"}}}}));
    let trusting = ["--cacert", &*authority];
    let (identity, took) = Stage::timed("the own certificate", || stage.alice.identity_at(&url, &trusting).ok());
    println!("a certificate from a Secret: served after {took:?}");
    assert_eq!(identity["username"], ALICE);
    stage.is_ready(&url);
    stage.patch(&json!({"spec": {"tailyard": {"kubeAPIServer": null}}}));
    Stage::timed("the certificate of the control plane", || stage.alice.identity_at(&url, &[]).ok());
    stage.is_ready(&url);
}

//! Site during an outage of the API server.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::{DEADLINE, pods};
use kit::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::{Map, Value};

use crate::ingress::stage::{ANSWER, GROUP, Stage};

/// Time limit until the site is served again; the kubelet starts a container within ten seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// Kills the container of every replica during the outage: the restarted ones serve the site with the certificate that was loaded before.
pub(crate) fn containers_start_without_an_api_server(stage: &Stage) {
    let cluster = &stage.cluster;
    let replicas = [0, 1].map(|ordinal| pods::uid(cluster, NAMESPACE, &format!("{GROUP}-{ordinal}")));
    let daemons = || replicas.each_ref().map(|uid| pods::processes(uid, Some("tailscaled")));
    let before = daemons();
    let copies = || [0, 1].map(|ordinal| copied_names(&replicas[ordinal], ordinal));
    assert!(copies().iter().all(|names| names.contains("web.")), "copies of the certificate: {:?}\n{}", copies(), stage.logs());
    cluster.control.stop_api();
    for uid in &replicas {
        // The container's first process, and with it all others; the Pod's sandbox stays.
        pods::signal(uid, Some("tailyard"), Signal::SIGKILL);
    }
    let killed = Instant::now();
    let others = || daemons().iter().zip(&before).all(|(now, before)| !now.is_empty() && now != before);
    eventually("other tailscaleds", DEADLINE, || others().then_some(()));
    let ask = || stage.user.get("https", "web").is_ok_and(|answer| answer == ANSWER);
    let mut answered = ask();
    while !answered && killed.elapsed() < PATIENCE {
        answered = ask();
    }
    println!("every container killed without an API server: answered ({answered}) after {:?}", killed.elapsed());
    let details =
        if answered { String::new() } else { format!("{:?}\n{}", copies(), replicas.each_ref().map(|uid| metrics(uid)).join("")) };
    cluster.control.start_api(&cluster.pki, &cluster.bin);
    // The replicas' logs are available only now.
    assert!(answered, "no answer within {PATIENCE:?}; copies: {details}{}{}", previous_warnings(stage), stage.logs());
    cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
}

/// Names in a replica's copy of its certificates, or why there is none.
fn copied_names(uid: &str, ordinal: usize) -> String {
    let Some(pid) = pods::processes(uid, Some("tailyard")).first().copied() else { return "no process".to_owned() };
    let text = fs::read(format!("/proc/{pid}/root/etc/tsconfig/{GROUP}-{ordinal}/certificates.json"));
    let names =
        |text: Vec<u8>| serde_json::from_slice(&text).map(|all: Map<String, Value>| all.keys().cloned().collect::<Vec<_>>().join(" "));
    text.map(names).map_or_else(|error| error.to_string(), |names| names.unwrap_or_else(|error| error.to_string()))
}

/// What the metrics of a replica say about the site.
fn metrics(uid: &str) -> String {
    let Some(pid) = pods::processes(uid, Some("tailyard")).first().copied() else { return "no process\n".to_owned() };
    let page = Command::new("nsenter").args(["-t", &pid.to_string(), "-n", "curl", "-sm5", "http://127.0.0.1:9002/metrics"]).output();
    let page = page.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    page.split_inclusive('\n').filter(|line| !line.starts_with('#') && line.contains("web")).collect()
}

/// Warnings of the killed containers, and the site in the group's config.
fn previous_warnings(stage: &Stage) -> String {
    let logs = |ordinal: u32| {
        let pod = format!("{GROUP}-{ordinal}");
        let output = stage.cluster.try_kubectl(&["logs", "-n", NAMESPACE, &pod, "--previous", "-c", "tailscale"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_inclusive('\n').filter(|line| line.contains(" WARN ") && line.contains("certificate")).collect::<String>()
    };
    let config = stage.cluster.try_kubectl(&["get", "configmap", "-n", NAMESPACE, &format!("{GROUP}-ingress-config"), "-o", "json"]);
    let config: Value = serde_json::from_slice(&config.stdout).unwrap_or_default();
    let sizes = config["binaryData"].as_object().into_iter().flatten().map(|(key, text)| format!("{key}: {} ", text.to_string().len()));
    format!("before:\n{}{}config, base64 bytes: {}\n", logs(0), logs(1), sizes.collect::<String>())
}

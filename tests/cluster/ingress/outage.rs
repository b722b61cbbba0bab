//! Site during an outage of the API server.

use std::time::{Duration, Instant};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::{DEADLINE, pods};
use kit::wait::eventually;
use nix::sys::signal::Signal;

use crate::ingress::stage::{ANSWER, GROUP, Stage};

/// Time limit until the site is served again; the kubelet starts a container within ten seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// Kills the container of every replica during the outage: the restarted ones serve the site with the certificate that was loaded before.
pub(crate) fn containers_start_without_an_api_server(stage: &Stage) {
    let cluster = &stage.cluster;
    let replicas = [0, 1].map(|ordinal| pods::uid(cluster, NAMESPACE, &format!("{GROUP}-{ordinal}")));
    let daemons = || replicas.each_ref().map(|uid| pods::processes(uid, Some("tailscaled")));
    let before = daemons();
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
    cluster.control.start_api(&cluster.pki, &cluster.bin);
    // The replicas' logs are available only now.
    assert!(answered, "no answer within {PATIENCE:?}\n{}", stage.logs());
    cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
}

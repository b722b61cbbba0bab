//! Replicas that the reconciler probes: a Pod on a node, with a health server at its address.

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tailyard::model::controller::workload::naming::standby_name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Stage;

const PORT: u16 = 9002;

/// Health server of a replica at an address of its own.
pub struct Health(Arc<Server>, String);

struct Server {
    answering: watch::Sender<bool>,
    /// Times of the requests.
    requests: Mutex<Vec<Instant>>,
}

impl Health {
    async fn start(ip: &str) -> Self {
        let added = Command::new("ip").args(["address", "add", &format!("{ip}/32"), "dev", "lo"]).status();
        assert!(added.expect("the ip command").success());
        let listener = TcpListener::bind((ip, PORT)).await.expect("a listener");
        let server = Arc::new(Server { answering: watch::Sender::new(true), requests: Mutex::default() });
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self(server, ip.to_owned())
    }

    /// Connections stay open and are accepted, as if all processes of the node had stopped.
    pub fn hang(&self) {
        self.0.answering.send_replace(false);
    }

    /// Drops all packets from processes of this group to the replica.
    pub fn cut_off(&self, gid: u32) {
        let rules = format!(
            "add table ip cut; add chain ip cut output {{ type filter hook output priority 0; }}; \
            add rule ip cut output meta skgid {gid} ip daddr {} drop",
            self.1
        );
        assert!(Command::new("nft").arg(rules).status().expect("the nft command").success());
    }

    /// Its address is gone, as if its node were lost.
    pub fn lose(&self) {
        let removed = Command::new("ip").args(["address", "del", &format!("{}/32", self.1), "dev", "lo"]).status();
        assert!(removed.expect("the ip command").success());
        self.hang();
    }

    pub fn resume(&self) {
        self.0.answering.send_replace(true);
    }

    /// The longest time between two probes since the last call; none of them before is zero.
    pub fn longest_gap(&self) -> Duration {
        let requests = std::mem::take(&mut *self.0.requests());
        requests.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

impl Server {
    fn requests(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers requests with an error status, which counts as an answer.
async fn serve(mut stream: TcpStream, server: Arc<Server>) {
    let (mut request, mut answering) = ([0; 1024], server.answering.subscribe());
    while let Ok(1..) = stream.read(&mut request).await {
        server.requests().push(Instant::now());
        let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        if answering.wait_for(|is| *is).await.is_err() || stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

impl Stage {
    /// Simulates the kubelet: creates a ready Pod of a replica on a node of its own, with a health server.
    pub async fn probed_pod(&self, group: &str, ordinal: u8) -> Health {
        let (name, ip) = (format!("{group}-{ordinal}"), format!("10.1.{}.{}", group.len(), ordinal + 1));
        let labels = json!({"tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": group});
        let health = self.running_pod(&name, &ip, (&format!("n{ordinal}"), group), labels).await;
        self.make_ready(&name).await;
        health
    }

    /// Creates the Pods of a standalone Service's proxy with standby, on nodes `n0` and `n1`. The first one is ready. Returns names and health
    /// servers. `number` is that of the proxy.
    pub async fn probed_pair(&self, service: &str, number: u8) -> [(String, Health); 2] {
        let workload = format!("ts-{service}-abcde");
        let labels = json!({"tailscale.com/parent-resource-type": "svc", "tailscale.com/parent-resource": service,
            "tailscale.com/parent-resource-ns": super::USERS});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        self.apply(self.here::<ServiceAccount>(), "default", account).await;
        let [first, second] = [workload.clone(), standby_name(&workload)].map(|set| format!("{set}-0"));
        let active = self.running_pod(&first, &format!("10.2.{number}.1"), ("n0", "default"), labels.clone()).await;
        self.make_ready(&first).await;
        let waiting = self.running_pod(&second, &format!("10.2.{number}.2"), ("n1", "default"), labels).await;
        [(first, active), (second, waiting)]
    }

    /// Creates a running Pod of a proxy on a node, with a `ServiceAccount` and a health server.
    async fn running_pod(&self, name: &str, ip: &str, (node, account): (&str, &str), mut labels: Value) -> Health {
        let health = Health::start(ip).await;
        labels["tailscale.com/managed"] = json!("true");
        let probe = json!({"httpGet": {"path": "/readyz", "port": PORT}});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"serviceAccountName": account, "nodeName": node,
                "containers": [{"name": "tailscale", "image": "x", "readinessProbe": probe}]}});
        self.apply(self.here::<Pod>(), name, object).await;
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        self.here::<Pod>().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
        health
    }

    /// Sets the conditions of a Pod as its kubelet does.
    pub async fn make_ready(&self, name: &str) {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition("ContainersReady"), condition("Ready")]}}));
        self.here::<Pod>().patch_status(name, &PatchParams::default(), &patch).await.expect("a status");
    }
}

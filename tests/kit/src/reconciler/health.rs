//! Replicas that the reconciler probes: a Pod on a node, with a health server at its address.

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Stage;

const PORT: u16 = 9002;

/// Health server of a replica at an address of its own.
pub struct Health(Arc<Server>);

struct Server {
    ip: String,
    answering: watch::Sender<bool>,
    /// Times of the requests.
    requests: Mutex<Vec<Instant>>,
}

impl Health {
    async fn start(ip: &str) -> Self {
        let added = Command::new("ip").args(["address", "add", &format!("{ip}/32"), "dev", "lo"]).status();
        assert!(added.expect("the ip command").success());
        let listener = TcpListener::bind((ip, PORT)).await.expect("a listener");
        let server = Arc::new(Server { ip: ip.to_owned(), answering: watch::Sender::new(true), requests: Mutex::default() });
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self(server)
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
            self.0.ip
        );
        assert!(Command::new("nft").arg(rules).status().expect("the nft command").success());
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
        let health = Health::start(&ip).await;
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": group});
        let probe = json!({"httpGet": {"path": "/readyz", "port": PORT}});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"serviceAccountName": group, "nodeName": format!("n{ordinal}"),
                "containers": [{"name": "tailscale", "image": "x", "readinessProbe": probe}]}});
        self.apply(self.here::<Pod>(), &name, object).await;
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        self.here::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
        self.make_ready(&name).await;
        health
    }

    /// Sets the conditions of a Pod as its kubelet does.
    pub async fn make_ready(&self, name: &str) {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition("ContainersReady"), condition("Ready")]}}));
        self.here::<Pod>().patch_status(name, &PatchParams::default(), &patch).await.expect("a status");
    }
}

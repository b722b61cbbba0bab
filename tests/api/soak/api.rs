//! API server for the replicas' state: a real one with its etcd, at the gateway of the Pod network. Orders make it hang, or kill and
//! restart it; its own thread executes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tailyard::demo::replicas::Launch;
use tailyard::demo::topology::{Topology, pod_nets, route};
use tokio::sync::{mpsc, oneshot};

use crate::soak::schedule::{Outage, REPLICAS};
use kit::apiserver::{Cluster, cluster_in};

/// tailscaled's keys in a state Secret; the scripted tailscaled neither reads nor writes them.
pub(crate) const KEPT: [(&str, &str); 3] = [("_machinekey", "privkey:1"), ("_current-profile", "profile-1"), ("profile-1", "{}")];

/// Values of a state Secret, as text.
pub(crate) type State = BTreeMap<String, String>;

/// Handle to the API server, which ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    orders: mpsc::UnboundedSender<Order>,
    pub(crate) address: SocketAddr,
    /// Directory of the replicas' service account.
    pub(crate) account: PathBuf,
}

/// Order to the API server's thread, with the channel for the reply.
#[derive(Debug)]
enum Order {
    Suffer(Outage, oneshot::Sender<()>),
    States(oneshot::Sender<Vec<State>>),
}

/// Runs the API server in the client's namespace, routed from the replicas; sends its handle once it serves.
pub(crate) fn run(topology: &Topology, reply: oneshot::Sender<Api>) {
    cluster_in(&topology.client, async |cluster| {
        let address: SocketAddr = cluster.url().trim_start_matches("https://").parse().expect("an address");
        lead(topology, address.ip());
        grant(&cluster).await;
        let (orders, taken) = mpsc::unbounded_channel();
        let account = cluster.service_account();
        reply.send(Api { orders, address, account }).expect("the play waits for it");
        serve(cluster, taken).await;
    });
}

/// Routes the replicas to the API server by the gateway of the Pod network.
fn lead(topology: &Topology, api: IpAddr) {
    let [gateway, _] = pod_nets(1);
    for site in &topology.replicas {
        route(&site.namespace, api.into(), gateway.addr()).expect("a route");
    }
}

/// Creates the state Secrets, and grants the permissions that the reconciler grants to a group's replicas.
async fn grant(cluster: &Cluster) {
    let names: Vec<String> = (0..usize::from(REPLICAS)).map(Launch::name).collect();
    for name in &names {
        cluster.make_secret(name, &KEPT).await;
    }
    let configs: Vec<String> = names.iter().map(|name| format!("{name}-config")).collect();
    let both: Vec<&str> = names.iter().chain(&configs).map(String::as_str).collect();
    cluster.allow("secrets", &both, &["get", "list", "watch", "patch", "update"]).await;
}

/// Executes orders in sequence until all handles are dropped.
async fn serve(mut cluster: Cluster, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Suffer(outage, done) => {
                suffer(&mut cluster, outage).await;
                // The requester may have stopped waiting.
                let _ = done.send(());
            }
            Order::States(reply) => {
                let mut states = Vec::new();
                for number in 0..usize::from(REPLICAS) {
                    states.push(cluster.secret(&Launch::name(number)).await.0);
                }
                let _ = reply.send(states);
            }
        }
    }
}

async fn suffer(cluster: &mut Cluster, outage: Outage) {
    match outage {
        Outage::Hangs(lasts) => {
            cluster.freeze_server();
            tokio::time::sleep(lasts).await;
            cluster.thaw_server();
        }
        Outage::Killed(away) => {
            cluster.kill_server();
            tokio::time::sleep(away).await;
            cluster.start_server().await;
        }
    }
}

impl Api {
    /// Causes an outage; returns when the API server serves again.
    pub(crate) async fn suffer(&self, outage: Outage) {
        let (done, is_done) = oneshot::channel();
        self.orders.send(Order::Suffer(outage, done)).expect("an API server");
        is_done.await.expect("an API server");
    }

    /// State Secrets, in the order of the replicas.
    pub(crate) async fn states(&self) -> Vec<State> {
        let (reply, states) = oneshot::channel();
        self.orders.send(Order::States(reply)).expect("an API server");
        states.await.expect("an API server")
    }
}

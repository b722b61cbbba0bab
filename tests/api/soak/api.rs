//! The API server in which the replicas keep their state: a real one, with its etcd, at the gateway of the Pod network. It hangs, and is
//! killed and started again; all of that in the thread that it lives in, by orders.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tailyard::demo::replicas::Launch;
use tailyard::demo::topology::{Topology, pod_nets, route};
use tokio::sync::{mpsc, oneshot};

use crate::soak::schedule::{Outage, REPLICAS};
use kit::apiserver::{Cluster, cluster_in};

/// What tailscaled keeps in a state Secret; the scripted one neither reads nor writes it.
pub(crate) const KEPT: [(&str, &str); 3] = [("_machinekey", "privkey:1"), ("_current-profile", "profile-1"), ("profile-1", "{}")];

/// The values of a state Secret as text.
pub(crate) type State = BTreeMap<String, String>;

/// Whoever can give orders about the API server; it ends with this.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    orders: mpsc::UnboundedSender<Order>,
    /// Where it is.
    pub(crate) address: SocketAddr,
    /// The service account of the replicas.
    pub(crate) account: PathBuf,
}

/// What is asked of it, and who waits for that.
#[derive(Debug)]
enum Order {
    Suffer(Outage, oneshot::Sender<()>),
    States(oneshot::Sender<Vec<State>>),
}

/// Runs the API server in the client's namespace, with ways to it for the replicas; says how to give it orders once it serves.
pub(crate) fn run(topology: &Topology, reply: oneshot::Sender<Api>) {
    cluster_in(&topology.client, async |cluster| {
        let address: SocketAddr = cluster.url().trim_start_matches("https://").parse().expect("an address");
        lead(topology, address.ip());
        grant(&cluster).await;
        let (orders, taken) = mpsc::unbounded_channel();
        let account = cluster.service_account();
        reply.send(Api { orders, address, account }).expect("somebody waits for it");
        serve(cluster, taken).await;
    });
}

/// The replicas reach it by the gateway of the Pod network.
fn lead(topology: &Topology, api: IpAddr) {
    let [gateway, _] = pod_nets(1);
    for site in &topology.replicas {
        route(&site.namespace, api.into(), gateway.addr()).expect("a route");
    }
}

/// The state Secrets, and the rights that the reconciler gives to the replicas of a group.
async fn grant(cluster: &Cluster) {
    let names: Vec<String> = (0..usize::from(REPLICAS)).map(Launch::name).collect();
    for name in &names {
        cluster.make_secret(name, &KEPT).await;
    }
    let configs: Vec<String> = names.iter().map(|name| format!("{name}-config")).collect();
    let both: Vec<&str> = names.iter().chain(&configs).map(String::as_str).collect();
    cluster.allow("secrets", &both, &["get", "list", "watch", "patch", "update"]).await;
    cluster.allow("events", &[], &["create", "get", "patch"]).await;
}

/// Carries out orders, one after the other, until nobody gives any.
async fn serve(mut cluster: Cluster, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Suffer(outage, done) => {
                suffer(&mut cluster, outage).await;
                // Who waited may be gone.
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
    /// Has it suffer an outage; returns when it serves again.
    pub(crate) async fn suffer(&self, outage: Outage) {
        let (done, is_done) = oneshot::channel();
        self.orders.send(Order::Suffer(outage, done)).expect("an API server");
        is_done.await.expect("an API server");
    }

    /// What the state Secrets hold, replica by replica.
    pub(crate) async fn states(&self) -> Vec<State> {
        let (reply, states) = oneshot::channel();
        self.orders.send(Order::States(reply)).expect("an API server");
        states.await.expect("an API server")
    }
}

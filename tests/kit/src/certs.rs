//! Stage of the certificate tests: a cluster with the Secrets of some names, a tailnet, an ACME server, and replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use tailyard::api::names::ACCOUNTS;
use tailyard::api::routes::Host;
use tailyard::edge::acme::AcmeServer;
use tailyard::edge::localapi::{LocalApi, MASK};
use tailyard::model::base::leader::LeaseTerms;
use tailyard::model::base::netmap::NetMap;
use tailyard::model::ingress::cert_orders::OrderTerms;
use tailyard::model::ingress::cert_store::CertStoreState;
use tailyard::model::ingress::certificate::Pair;
use tailyard::model::tailnet::ipn_bus::Fold;
use tailyard::proxy::certs::{self, AccountAt, CertOutputs, Inputs, Settings};
use tailyard::runtime::tasks::Tasks;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::apiserver::{self, Cluster};
use crate::machine::DEADLINE;
use crate::machine::{Machine, Process};
use crate::pebble::{Manner, Pebble};
use crate::tailnet::{Control, Tailnet};
use crate::wait::wait_for_value;

/// The field of the account's key.
pub const FIELD: &str = "_default.acme-account.key.pem";

/// Everything.
pub struct Stage {
    pub cluster: Cluster,
    pub pebble: Pebble,
    pub terms: OrderTerms,
    pub lead: LeaseTerms,
    names: Vec<String>,
    machine: Machine,
    _tailscaled: Process,
    pub tailnet: Tailnet,
}

/// A replica, until it is dropped.
pub struct Replica {
    pub certs: CertOutputs,
    wanted: watch::Sender<Arc<BTreeMap<String, Host>>>,
    tasks: JoinHandle<()>,
    netmap: JoinHandle<()>,
}

/// Runs a test with Secrets for these names.
pub fn stage(names: &[&str], test: impl AsyncFnOnce(Stage) + Send) {
    stage_with(names, Manner::default(), test);
}

/// The same, with an ACME server of this configuration.
pub fn stage_with(names: &[&str], manner: Manner, test: impl AsyncFnOnce(Stage) + Send) {
    apiserver::cluster(async |cluster| {
        let tailnet = Tailnet::start_with([10, 98, 0], Control::Hosted);
        tailnet.plug_in(10);
        let pebble = Pebble::start(&tailnet, manner);
        let (machine, tailscaled) = tailnet.node("replica");
        tailnet.set_cert_domains(names);
        let all: Vec<&str> = names.iter().copied().chain([ACCOUNTS, "g-0", "g-1"]).collect();
        cluster.allow("secrets", &all, &["get", "list", "watch", "patch", "update"]).await;
        cluster.allow_in("coordination.k8s.io", "leases", &["g-issuer"], &["get", "patch"]).await;
        cluster.allow_in("coordination.k8s.io", "leases", &[], &["create"]).await;
        for name in names {
            make_secret(&cluster, name).await;
        }
        cluster.make_secret(ACCOUNTS, &[]).await;
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        test(Stage {
            cluster,
            pebble,
            terms: OrderTerms::ACME,
            lead: LeaseTerms::CERT_LEADER,
            names,
            machine,
            _tailscaled: tailscaled,
            tailnet,
        })
        .await;
    });
}

impl Stage {
    /// Starts the replica with this ordinal and every name.
    pub async fn replica(&self, ordinal: u32) -> Replica {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        self.replica_at(ordinal, &names, &self.pebble.directory()).await
    }

    /// Starts a replica with these names and the ACME server of this directory.
    pub async fn replica_at(&self, ordinal: u32, names: &[&str], directory: &str) -> Replica {
        let (wanted, wanted_seen) = watch::channel(hosts(names));
        let (netmap, netmap_seen) = watch::channel(None);
        let api = LocalApi::new(self.machine.socket());
        let netmap = tokio::spawn(follow(api.clone(), netmap));
        let settings = Settings {
            pod: format!("g-{ordinal}"),
            server: AcmeServer { directory: directory.to_owned(), ca: Some(self.pebble.ca()) },
            account: AccountAt { secret: ACCOUNTS.to_owned(), field: FIELD.to_owned() },
            terms: self.terms,
            lead: self.lead,
            leads: None,
            state: Some(format!("g-{ordinal}")),
            copy: None,
        };
        let inputs = Inputs { cluster: self.cluster.pod().await, api, wanted: wanted_seen, netmap: netmap_seen };
        let mut tasks = Tasks::default();
        let certs = certs::start(&mut tasks, &settings, inputs);
        let tasks = tokio::spawn(async move {
            let ended = tasks.run(std::time::Duration::from_secs(1)).await;
            panic!("the replica ended: {ended:?}");
        });
        Replica { certs, wanted, tasks, netmap }
    }
}

/// Makes a Secret for the certificate of a name, as the reconciler does: with nothing in it.
pub async fn make_secret(cluster: &Cluster, name: &str) {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let data = ["tls.crt", "tls.key"].map(|key| (key.to_owned(), k8s_openapi::ByteString(Vec::new())));
    let secret = Secret { metadata, type_: Some("kubernetes.io/tls".to_owned()), data: Some(data.into()), ..Secret::default() };
    cluster.secrets().create(&PostParams::default(), &secret).await.expect("a Secret");
}

fn hosts(names: &[&str]) -> Arc<BTreeMap<String, Host>> {
    Arc::new(names.iter().map(|name| ((*name).to_owned(), Host { secret: (*name).to_owned(), issue: true })).collect())
}

impl Replica {
    /// Sets the names that it serves.
    pub fn want(&self, names: &[&str]) {
        self.wanted.send_replace(hosts(names));
    }

    /// Waits until it is so.
    pub async fn until(&self, what: &str, holds: impl Fn(&CertStoreState) -> bool) {
        wait_for_value(what, DEADLINE, &mut self.certs.state.clone(), |state| holds(state)).await;
    }

    /// Waits until it orders, or does no more.
    pub async fn until_leads(&self, leads: bool) {
        wait_for_value(&format!("leading: {leads}"), DEADLINE, &mut self.certs.leads.clone(), |now| *now == leads).await;
    }

    /// The certificate of a name, once there is one.
    pub async fn pair(&self, name: &str) -> Pair {
        let mut pairs = self.certs.pairs.clone();
        let found = tokio::time::timeout(DEADLINE, pairs.wait_for(|pairs| pairs.contains_key(name))).await;
        let found = found.unwrap_or_else(|_| panic!("no certificate for {name}: {:?}", self.certs.state.borrow()));
        found.expect("a running replica")[name].clone()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.tasks.abort();
        self.netmap.abort();
    }
}

/// Publishes the netmap as tailscaled's IPN bus does.
async fn follow(api: LocalApi, netmap: watch::Sender<Option<Arc<NetMap>>>) {
    let (mut bus, mut fold) = (api.watch(MASK).await.expect("the bus"), Fold::default());
    while let Ok(Some(message)) = bus.next().await {
        let effect = fold.fold(message);
        if effect.ask_status {
            fold.status(&api.status().await.expect("a status").0);
        }
        netmap.send_replace(fold.snapshot().netmap);
    }
}

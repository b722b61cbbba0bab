//! Certificates of a group: orders those that the group manages, and loads all of them.
//!
//! [`crate::model::ingress::cert_orders`] decides what to order when, and on which replica; this task feeds it and executes its actions.
//! Each Secret is watched, so that handshakes do no I/O. A loaded certificate stays loaded while its Secret is missing or unreadable, and
//! repairs that Secret: nothing is ordered twice because it was lost. Times are the API server's ([`clock`]). In Pods created by our
//! reconciler a file has a copy of the certificates ([`copy`]), so that a restarted container serves them without the API server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::names;
use crate::api::routes::Host;
use crate::edge::acme::AcmeServer;
use crate::edge::kube::{Cluster, Leading, Lease, ObjectEvent, VersionedSecret};
use crate::edge::localapi::LocalApi;
use crate::model::base::backoff::Backoff;
use crate::model::base::leader::{LeaseCandidate, LeaseTerms};
use crate::model::base::netmap::NetMap;
use crate::model::ingress::cert_orders::{Issuer, Moment, OrderEvent, OrderTerms};
use crate::model::ingress::cert_store::{CertNotice, CertStore, CertStoreState};
use crate::model::ingress::certificate::Pair;
use crate::model::settings::{self, StateOut, TailnetMode};
use crate::runtime::tasks::Tasks;
use crate::runtime::watch_ext::put;

mod account;
mod act;
mod clock;
mod copy;

pub use account::AccountAt;
use account::Accounts;
use act::Done;
use clock::CertClock;
use copy::CertCopy;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Pod name: `<group>-<ordinal>`.
    pub pod: String,
    pub server: AcmeServer,
    pub account: AccountAt,
    /// Timeouts of orders.
    pub terms: OrderTerms,
    /// Terms of the cert leader's Lease: time until another replica orders.
    pub lead: LeaseTerms,
    /// Whether this replica orders, if that is configured; else a Lease decides.
    pub leads: Option<bool>,
    /// State Secret, where the Tailscale operator's proxy of one Ingress has its certificate.
    pub state: Option<String>,
    /// File of certificates in use for the next container of this Pod; `None` if no file outlives a container.
    pub copy: Option<PathBuf>,
}

impl Settings {
    /// From the settings; `None` without a place for an account's key.
    pub fn of(settings: &settings::Settings) -> Option<Self> {
        let state = match &settings.state {
            StateOut::Secret(name) => Some(name),
            StateOut::None | StateOut::File(_) => None,
        };
        let issuing = &settings.issuing;
        let dir = match &settings.tailnet {
            TailnetMode::Tailscaled(daemon) => daemon.pod_dir(),
            TailnetMode::Static(_) => None,
        };
        let (secret, field) = issuing.account.clone().or_else(|| Some((state?.clone(), names::ACCOUNT_KEY.to_owned())))?;
        Some(Self {
            pod: settings.pod.name.as_ref().or(state)?.clone(),
            server: AcmeServer { directory: issuing.directory.clone(), ca: issuing.ca.clone() },
            account: AccountAt { secret, field },
            terms: OrderTerms::ACME,
            lead: LeaseTerms { lease_duration: issuing.away, ..LeaseTerms::CERT_LEADER },
            leads: settings.k8s_proxy.as_ref().map(|k8s_proxy| k8s_proxy.config.api_server.issues_certificates),
            state: state.cloned(),
            copy: dir.map(|dir| dir.join("certificates.json")),
        })
    }
}

#[derive(Debug)]
pub struct Inputs {
    /// Cluster and namespace of the group's objects.
    pub cluster: Cluster,
    /// LocalAPI of tailscaled, which sets the DNS records of challenges.
    pub api: LocalApi,
    /// Names to serve.
    pub wanted: watch::Receiver<Arc<BTreeMap<String, Host>>>,
    /// Netmap, with the names that may have certificates.
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
}

#[derive(Debug, Clone)]
pub struct CertOutputs {
    /// Certificates in use, by DNS name.
    pub pairs: watch::Receiver<Arc<BTreeMap<String, Pair>>>,
    pub state: watch::Receiver<Arc<CertStoreState>>,
    /// Whether this replica is the cert leader.
    pub leads: watch::Receiver<bool>,
}

/// Loads the certificates of the requested names; while this replica is the cert leader, orders those of the group.
pub fn start(tasks: &mut Tasks, settings: &Settings, inputs: Inputs) -> CertOutputs {
    // A Pod without group has no other replicas.
    let (group, ordinal) = settings.pod.rsplit_once('-').unwrap_or((&settings.pod, "0"));
    let ordinal = ordinal.parse().unwrap_or_default();
    let (pairs, pairs_seen) = watch::channel(Arc::default());
    let (state, state_seen) = watch::channel(Arc::default());
    let (secret_events, secrets) = mpsc::channel(64);
    let (leads, leading) = watch::channel(settings.leads.unwrap_or_default());
    if settings.leads.is_none() {
        let candidate = LeaseCandidate::new(settings.pod.clone(), Some(ordinal), settings.lead);
        let lease = Lease::new(inputs.cluster.clone(), names::issuer(group), candidate).owned_like(settings.pod.clone());
        let publish = move |leading: Option<Leading>| {
            put(&leads, leading.is_some());
        };
        // A replica without a tailnet cannot prove a name.
        tasks.run_until_stop("issuer", lease.hold(inputs.netmap.clone(), publish, std::future::pending()));
    }
    let accounts = Accounts::new(inputs.cluster.clone(), settings.server.clone(), settings.account.clone());
    let copy = CertCopy::new(settings.copy.clone());
    let work = CertWork {
        issuer: Issuer::new(settings.pod.clone(), settings.terms),
        store: CertStore::with_backup(copy.load()),
        copy,
        accounts: Arc::new(accounts),
        cluster: inputs.cluster,
        api: inputs.api,
        begin: Instant::now(),
        clock: CertClock::local(),
        is_clock_checked: false,
        leads: false,
        watches: BTreeMap::new(),
        sender: secret_events,
        running: JoinSet::new(),
        orders: BTreeMap::new(),
        begun: 0,
        pairs,
        state,
    };
    let state = settings.state.clone();
    let work = work.adopt(state).then({
        let leading = leading.clone();
        move |work| work.run(inputs.wanted, inputs.netmap, leading, secrets)
    });
    tasks.run_until_stop("certificates", work);
    CertOutputs { pairs: pairs_seen, state: state_seen, leads: leading }
}

type SecretEvent = (String, ObjectEvent<VersionedSecret>);

struct CertWork {
    issuer: Issuer,
    store: CertStore,
    copy: CertCopy,
    accounts: Arc<Accounts>,
    cluster: Cluster,
    api: LocalApi,
    begin: Instant,
    clock: CertClock,
    /// Nothing is ordered before the API server's time is known.
    is_clock_checked: bool,
    leads: bool,
    watches: BTreeMap<String, SecretWatch>,
    sender: mpsc::Sender<SecretEvent>,
    running: JoinSet<Done>,
    /// Running orders by name, with number.
    orders: BTreeMap<String, (u64, AbortHandle)>,
    begun: u64,
    pairs: watch::Sender<Arc<BTreeMap<String, Pair>>>,
    state: watch::Sender<Arc<CertStoreState>>,
}

/// Maximum wait for the state Secret.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(3);

/// A task that is aborted on drop.
struct SecretWatch(AbortHandle);

impl Drop for SecretWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CertWork {
    /// Reads certificates that tailscaled stored in the state Secret: a proxy that is taken over orders none. A new Pod waits for that at
    /// most [`ADOPTION_TIMEOUT`].
    async fn adopt(mut self, state: Option<String>) -> Self {
        if let Some(state) = state.filter(|_| !self.store.has_backup())
            && let Ok(Ok(Some(secret))) = timeout(ADOPTION_TIMEOUT, self.cluster.secret(&state)).await
        {
            self.store.add_backup(copy::from_values(&secret));
        }
        self
    }

    async fn run(
        mut self,
        mut wanted: watch::Receiver<Arc<BTreeMap<String, Host>>>,
        mut netmap: watch::Receiver<Option<Arc<NetMap>>>,
        mut leads: watch::Receiver<bool>,
        mut secrets: mpsc::Receiver<SecretEvent>,
    ) {
        self.leads = *leads.borrow_and_update();
        let cluster = self.cluster.clone();
        self.running.spawn(async { Done::ClockRead(clock::read_after(Duration::ZERO, cluster).await) });
        self.want(&wanted.borrow_and_update().clone(), netmap.borrow_and_update().clone().as_deref());
        loop {
            self.publish();
            let wake = self.wake();
            tokio::select! {
                Ok(()) = wanted.changed() => self.want(&wanted.borrow_and_update().clone(), netmap.borrow().clone().as_deref()),
                Ok(()) = netmap.changed() => self.want(&wanted.borrow().clone(), netmap.borrow_and_update().clone().as_deref()),
                Ok(()) = leads.changed() => {
                    self.leads = *leads.borrow_and_update();
                    self.lead();
                }
                Some((secret, event)) = secrets.recv() => self.update_secret(&secret, event),
                Some(done) = self.running.join_next() => self.done(done),
                () = sleep_until(wake) => self.step(OrderEvent::Tick),
            }
        }
    }

    /// Watches exactly the Secrets of these names, and orders certificates for permitted names.
    fn want(&mut self, wanted: &Arc<BTreeMap<String, Host>>, netmap: Option<&NetMap>) {
        let permitted = netmap.map(|netmap| netmap.cert_domains.iter().cloned().collect()).unwrap_or_default();
        let secrets = self.store.want(wanted.clone(), permitted, self.clock.now());
        self.watches.retain(|secret, _| secrets.contains(secret));
        for secret in secrets {
            if !self.watches.contains_key(&secret) {
                let watch = self.follow(secret.clone());
                self.watches.insert(secret, watch);
            }
        }
        for (name, record) in self.store.records() {
            self.step(OrderEvent::Seen(name, record));
        }
        let ours = self.store.ours();
        self.step(OrderEvent::Wanted(ours));
    }

    fn follow(&self, secret: String) -> SecretWatch {
        let (events, sender) = (self.cluster.watch_note(&secret, Backoff::WATCH), self.sender.clone());
        let work = async move {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                if sender.send((secret.clone(), event)).await.is_err() {
                    return;
                }
            }
        };
        SecretWatch(tokio::spawn(work).abort_handle())
    }

    fn update_secret(&mut self, secret: &str, event: ObjectEvent<VersionedSecret>) {
        let records = match event {
            ObjectEvent::Current(noted) => self.store.put(secret, noted, self.clock.now()),
            ObjectEvent::Gone => self.store.gone(secret),
            ObjectEvent::Live => return,
            ObjectEvent::Lost(error) => {
                if self.store.lost(secret, error.reason()) {
                    tracing::warn!(reason = error.reason(), "cannot read certificate Secrets; loaded certificates stay in use: {error}");
                }
                return;
            }
        };
        for (name, record) in records {
            self.step(OrderEvent::Seen(name, record));
        }
    }

    fn lead(&mut self) {
        self.step(OrderEvent::Leads(self.leads && self.is_clock_checked));
    }

    fn step(&mut self, event: OrderEvent) {
        let now = Moment { at: self.begin.elapsed(), wall: self.clock.now() };
        let actions = self.issuer.step(event, now, fastrand::f64());
        for action in actions {
            self.act(action);
        }
    }

    /// Time of the next step without events.
    fn wake(&self) -> Instant {
        let own = self.issuer.wake().map(|at| self.begin + at);
        let ends = self.store.next_end(self.clock.now()).map(|wait| Instant::now() + wait);
        let far = Instant::now() + std::time::Duration::from_hours(1);
        own.into_iter().chain(ends).chain(self.copy.retry_at()).fold(far, Ord::min)
    }

    fn publish(&mut self) {
        self.store.take_notices().iter().for_each(log);
        let now = self.clock.now();
        let pairs = Arc::new(self.store.pairs(now));
        // The first certificates are published together: a host with several names is advertised with the first.
        let begun = self.store.is_loaded() || self.store.serves_backup() || !self.pairs.borrow().is_empty();
        if begun {
            put(&self.pairs, pairs);
        }
        if begun || self.copy.retry_at().is_some() {
            self.copy.save(self.store.copy(now), Instant::now());
        }
        put(&self.state, Arc::new(self.store.state(now)));
    }
}

/// Effect of a missing certificate.
const ALONE: &str = "a certificate that was loaded before stays in use, else TLS handshakes for this name fail";

fn log(notice: &CertNotice) {
    match notice {
        CertNotice::Absent { name, secret } => {
            tracing::warn!(name, secret, "the Secret of a user-provided certificate does not exist: {ALONE}");
        }
        CertNotice::Invalid { name, secret, error } => {
            tracing::warn!(reason = error.reason(), name, secret, "the Secret has an invalid certificate ({error}): {ALONE}");
        }
        CertNotice::Untimely { name, secret, reason, from, until } => {
            tracing::warn!(reason, name, secret, %from, %until, "the certificate is not valid now: handshakes for the name fail unless an older one is loaded; renew it, or correct the clock");
        }
        CertNotice::Restored { name } => tracing::warn!(name, "restored a certificate that was missing from its Secret"),
        CertNotice::Issued { name, until } => tracing::info!(name, %until, "a certificate was issued"),
        CertNotice::Failed { name, failure, reason, message } => {
            tracing::warn!(reason, name, retry_after = ?failure.retry_after, "{message}");
        }
    }
}

const NOTE: &str = names::ISSUANCE;

#[cfg(test)]
mod tests;

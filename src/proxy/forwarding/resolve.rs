//! DNS resolver task: executes the schedule of [`crate::model::tailnet::resolve`] and publishes the addresses.
//!
//! Never withdraws an answer; a name is removed when it is no longer requested.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use crate::edge::dns::Dns;
use crate::model::config::IngressConfig;
use crate::model::plan;
use crate::model::tailnet::resolve::{LookupFailure, LookupOutcome, NameStatus, ResolveEvent, ResolveSchedule};
use crate::runtime::tasks::Stop;
use crate::runtime::timer::until;
use crate::runtime::watch_ext::put;

/// Last good addresses of every name.
pub type ResolvedNames = Arc<BTreeMap<String, BTreeSet<IpAddr>>>;

/// State of the names, for health and metrics.
#[derive(Debug, Clone, Default)]
pub struct ResolveReport {
    pub names: BTreeMap<Arc<str>, NameStatus>,
    /// Number of failed lookups by reason.
    pub failures: BTreeMap<LookupFailure, u64>,
}

#[derive(Debug)]
pub struct ResolveOutputs {
    /// Addresses, sent only when changed.
    pub names: watch::Sender<ResolvedNames>,
    /// State, sent after every lookup.
    pub report: watch::Sender<Arc<ResolveReport>>,
}

#[derive(Debug)]
pub struct Inputs {
    /// Resolver config, `/etc/resolv.conf` in a Pod.
    pub resolv_conf: PathBuf,
    pub wanted: watch::Receiver<BTreeSet<String>>,
    /// Maximum concurrent lookups.
    pub in_flight: usize,
}

/// Channels of [`ResolveOutputs`], empty.
pub fn outputs() -> (ResolveOutputs, watch::Receiver<ResolvedNames>, watch::Receiver<Arc<ResolveReport>>) {
    let ((names, names_seen), (report, report_seen)) = (watch::channel(ResolvedNames::default()), watch::channel(Arc::default()));
    (ResolveOutputs { names, report }, names_seen, report_seen)
}

/// Resolves the requested names until the stop.
pub async fn run(inputs: Inputs, outputs: ResolveOutputs, stop: Stop) {
    let Inputs { resolv_conf, mut wanted, in_flight } = inputs;
    let mut task = Task {
        schedule: ResolveSchedule::new(in_flight),
        dns: Dns::new(&resolv_conf),
        lookups: JoinSet::new(),
        in_flight: BTreeMap::new(),
    };
    let mut event = ResolveEvent::Wanted(wanted.borrow_and_update().clone());
    loop {
        let wake = task.step(event, &outputs).await;
        event = tokio::select! {
            biased;
            () = stop.requested() => return,
            Ok(()) = wanted.changed() => ResolveEvent::Wanted(wanted.borrow_and_update().clone()),
            Some(answered) = task.answered() => answered,
            () = until(wake) => ResolveEvent::Tick,
        };
    }
}

/// Publishes the requested names: the replica's own setting and those of the L3 ingress config. Never ends by itself: a final config stays
/// in force.
pub async fn want(own: Option<String>, mut ingress: watch::Receiver<Option<Arc<IngressConfig>>>, wanted: watch::Sender<BTreeSet<String>>) {
    loop {
        let config = ingress.borrow_and_update().clone();
        let names: BTreeSet<String> = config.iter().flat_map(|config| plan::names(config)).map(str::to_owned).chain(own.clone()).collect();
        put(&wanted, names);
        if ingress.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

struct Task {
    schedule: ResolveSchedule,
    dns: Dns,
    lookups: JoinSet<LookupOutcome>,
    in_flight: BTreeMap<Id, Arc<str>>,
}

impl Task {
    /// Handles an event, publishes changes and starts due lookups. Returns the next wake-up time.
    async fn step(&mut self, event: ResolveEvent, outputs: &ResolveOutputs) -> Option<Instant> {
        let actions = self.schedule.step(event, Instant::now().into_std(), &mut fastrand::f64);
        if actions.changed {
            outputs.names.send_replace(Arc::new(self.schedule.answers()));
        }
        let report = ResolveReport { names: self.schedule.statuses(), failures: self.schedule.failures().clone() };
        outputs.report.send_replace(Arc::new(report));
        if !actions.lookup.is_empty() {
            self.start(actions.lookup).await;
        }
        actions.wake.map(Instant::from)
    }

    async fn start(&mut self, names: Vec<Arc<str>>) {
        let client = self.dns.client().await.inspect_err(|error| tracing::warn!(reason = error.reason(), "{error}")).ok();
        for name in names {
            let (client, in_flight) = (client.clone(), Arc::clone(&name));
            let lookup = self.lookups.spawn(async move {
                match client {
                    Some(client) => client.lookup(&in_flight).await,
                    None => LookupOutcome { v4: Err(LookupFailure::Network), v6: Err(LookupFailure::Network) },
                }
            });
            self.in_flight.insert(lookup.id(), name);
        }
    }

    /// Next finished lookup; `None` if none is running.
    async fn answered(&mut self) -> Option<ResolveEvent> {
        let (id, outcome) = match self.lookups.join_next_with_id().await? {
            Ok(done) => done,
            // A panicked lookup was logged; it counts as failed.
            Err(error) => (error.id(), LookupOutcome { v4: Err(LookupFailure::Network), v6: Err(LookupFailure::Network) }),
        };
        let name = self.in_flight.remove(&id)?;
        for (family, failure) in [("A", outcome.v4.as_ref().err()), ("AAAA", outcome.v6.as_ref().err())] {
            if let Some(failure) = failure {
                tracing::debug!(%name, family, reason = failure.reason(), "lookup failed: {failure}");
            }
        }
        Some(ResolveEvent::Answered(name, outcome))
    }
}

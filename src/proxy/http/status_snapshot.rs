//! Sources of all responses: the newest state of every other task.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::Fetch;
use crate::api::failover::UnreachableNote;
use crate::api::replica::{PeerCounts, Rejects};
use crate::edge::conntrack::{Conntrack, Pressure};
use crate::edge::health_probe::ping;
use crate::edge::link::LinkState;
use crate::model::base::net::InterfaceName;
use crate::model::base::netmap::NetMap;
use crate::model::config::source::{Document, EgressDocument, InForce, IngressDocument, ServeDocument};
use crate::model::failover::Reception;
use crate::model::firewall::Traffic;
use crate::model::flows::drain::hook_limit;
use crate::model::flows::prestop_hook::HealthProbe;
use crate::model::plan::Planned;
use crate::model::tailnet::advertise::AdvertiseStatus;
use crate::model::tailnet::health::{DaemonHealth, HealthInputs, Paths, Rules, RulesetLag, RulesetWrites, readiness};
use crate::model::tailnet::serve_config::FunnelError;
use crate::model::tailnet::supervise::machine::DaemonPhase;
use crate::proxy::api_server::start::ApiServerPart;
use crate::proxy::certs::CertOutputs;
use crate::proxy::forwarding::flow_cleanup::TerminatedFlows;
use crate::proxy::forwarding::resolve::ResolveReport;
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::forwarding::start::ForwardingPart;
use crate::proxy::front_end::FrontEnd;
use crate::proxy::metrics::{self, CertState, ConfigState, Metrics, Snapshot};
use crate::proxy::replica::Replica;
use crate::proxy::state_secret::writer::WriterHealth;
use crate::proxy::tailnet::daemon::DaemonState;
use crate::proxy::tailnet::peer_warmup::WarmupProgress;
use crate::proxy::tailnet::start::TailnetPart;
use crate::runtime::tasks::{HEARTBEAT_TIMEOUT, Heartbeats, Stop, Tasks};

/// Timeout of the kernel's counters, so that a hung tool does not block a scrape.
pub(super) const COUNTER_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a request to a service's health endpoint.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// Requests a URL and returns the responding Pod.
pub type HealthPing = Arc<dyn Fn(String) -> BoxFuture<'static, HealthProbe> + Send + Sync>;

/// Newest state of every other task, and values fetched on demand.
pub struct SnapshotSources {
    pub metrics: Arc<Metrics>,
    /// The Pod's addresses by settings; see [`Self::own`].
    pub pod_ips: BTreeSet<IpAddr>,
    /// Whether the kernel forwards.
    pub forwards: bool,
    /// Start of the replica; origin of config times.
    pub start: Instant,
    /// Signal to drain.
    pub leaving: Stop,
    /// File with the note that this replica is unreachable, if the kubelet writes one.
    pub unreachable_note: Option<PathBuf>,
    pub heartbeats: Heartbeats,
    pub egress: Option<watch::Receiver<InForce<EgressDocument>>>,
    pub ingress: Option<watch::Receiver<InForce<IngressDocument>>>,
    pub serve: Option<watch::Receiver<InForce<ServeDocument>>>,
    /// tailscaled, if supervised.
    pub daemon: Option<watch::Receiver<DaemonState>>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    pub names: watch::Receiver<Arc<ResolveReport>>,
    pub planned: watch::Receiver<Option<Arc<Planned>>>,
    /// Ruleset in the kernel.
    pub programmed: watch::Receiver<Programmed>,
    pub ended: watch::Receiver<TerminatedFlows>,
    /// Number of restarts after crashes.
    pub crashes: u64,
    /// Name of the tailnet interface.
    pub interface: InterfaceName,
    /// State of that interface, if the kernel forwards.
    pub link: Option<watch::Receiver<LinkState>>,
    /// Peer warm-up, if tailscaled is supervised.
    pub paths: Option<watch::Receiver<WarmupProgress>>,
    /// Status of advertised services, if decided here.
    pub advertise_status: Option<watch::Receiver<AdvertiseStatus>>,
    /// Commands for sysctls that are off.
    pub switches: watch::Receiver<Vec<String>>,
    pub report: Option<watch::Receiver<WriterHealth>>,
    pub sites: Option<FrontEnd>,
    /// The API server proxy, if the front end serves.
    pub api_server: Option<ApiServerPart>,
    /// Certificates, if used.
    pub certs: Option<CertOutputs>,
    /// Traffic counters by match port.
    pub traffic: Fetch<Traffic>,
    /// Usage of the conntrack table.
    pub pressure: Fetch<Pressure>,
    pub peers: Fetch<PeerCounts>,
    pub rejects: Fetch<Rejects>,
    /// tailscaled's own metrics.
    pub usermetrics: Fetch<String>,
    /// Probe of a service.
    pub ping: HealthPing,
    /// Maximum wait of the preStop hook.
    pub patience: Duration,
    /// Addresses with a running call of the preStop hook.
    pub(super) hook_callers: Mutex<BTreeSet<IpAddr>>,
    pub(super) lag: Mutex<RulesetLag>,
    pub(super) reception: Mutex<Reception>,
}

impl SnapshotSources {
    pub fn new(replica: &Replica, metrics: Arc<Metrics>, leaving: Stop, tasks: &Tasks) -> Self {
        let Replica { settings, configs, tailnet, forwarding, ingress, state } = replica;
        let sites = ingress.as_ref().and_then(|ingress| ingress.front_end.as_ref());
        Self {
            metrics,
            pod_ips: settings.pod.ips.clone(),
            forwards: forwarding.enabled,
            start: Instant::now(),
            leaving,
            unreachable_note: settings.unreachable_note.clone(),
            heartbeats: tasks.heartbeats(),
            egress: settings.egress.is_some().then(|| configs.egress.state.clone()),
            ingress: settings.ingress.is_some().then(|| configs.ingress.state.clone()),
            serve: settings.serve.is_some().then(|| configs.serve.state.clone()),
            daemon: tailnet.daemon.as_ref().map(crate::proxy::tailnet::daemon::DaemonHandle::state),
            netmap: tailnet.netmap.clone(),
            names: forwarding.names.clone(),
            planned: forwarding.planned.clone(),
            programmed: forwarding.programmed.clone(),
            ended: forwarding.ended.clone(),
            crashes: settings.init.as_ref().map_or(0, |init| init.restarts),
            interface: settings.interface.clone(),
            link: forwarding.link.clone(),
            paths: forwarding.warmup.clone(),
            advertise_status: ingress.as_ref().map(|ingress| ingress.advertise_status.clone()),
            switches: forwarding.switches.clone(),
            report: state.as_ref().map(|state| state.ledger.health()),
            sites: sites.map(|sites| sites.handle.clone()),
            api_server: sites.map(|sites| sites.api_server.clone()),
            certs: sites.and_then(|sites| sites.certs.clone()),
            traffic: traffic(forwarding),
            pressure: Arc::new(|| Box::pin(pressure())),
            peers: super::daemon_values::peers(tailnet),
            rejects: super::daemon_values::rejects(tailnet),
            usermetrics: usermetrics(tailnet),
            ping: Arc::new(|url| Box::pin(async move { ping(&url, HEALTH_TIMEOUT).await })),
            patience: hook_limit(settings.drain_timeout),
            hook_callers: Mutex::default(),
            lag: Mutex::default(),
            reception: Mutex::default(),
        }
    }

    pub fn facts(&self) -> HealthInputs {
        let netmap = self.netmap.borrow();
        let missing_configs = [
            ("egress", is_missing(self.egress.as_ref())),
            ("ingress", is_missing(self.ingress.as_ref())),
            ("serve", is_missing(self.serve.as_ref())),
        ];
        HealthInputs {
            leaving: self.leaving.is_requested(),
            unreachable: self.unreachable(),
            missing_configs: missing_configs.into_iter().filter(|(_, missing_configs)| *missing_configs).map(|(name, _)| name).collect(),
            daemon: self.daemon.as_ref().map_or(DaemonHealth::Foreign, |state| {
                let state = state.borrow();
                match state.phase {
                    DaemonPhase::Running => DaemonHealth::Running,
                    DaemonPhase::Starting if self.open(state.restarts) => DaemonHealth::Running,
                    phase => DaemonHealth::Away(phase.to_string()),
                }
            }),
            netmap: netmap.is_some(),
            addressed: netmap.as_ref().and_then(|netmap| netmap.node.as_ref()).is_some_and(|node| !node.addresses.is_empty()),
            interface: self.link.as_ref().and_then(|link| link_fault(&self.interface, &link.borrow())),
            paths: self.paths(),
            services: self.services(),
            api_server: self.api_server.as_ref().and_then(|part| part.fault.borrow().clone()),
            funnel_errors: self.funnel_errors().into_iter().map(|(service, why)| (service, why.to_string())).collect(),
            rules: self.rules(Instant::now()),
            switches: if self.forwards { self.switches.borrow().clone() } else { Vec::new() },
        }
    }

    /// The note that this replica is unreachable, if it is in force. The file is small and in memory.
    fn unreachable(&self) -> Option<UnreachableNote> {
        let text = std::fs::read_to_string(self.unreachable_note.as_ref()?).unwrap_or_default();
        self.reception().unreachable(&text, Instant::now().into_std())
    }

    /// Records a health probe by a reconciler that reaches other nodes.
    pub(super) fn record_probe(&self) {
        self.reception().record_probe(Instant::now().into_std());
    }

    fn reception(&self) -> MutexGuard<'_, Reception> {
        self.reception.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every probed path works since tailscaled's start.
    fn open(&self, restarts: u64) -> bool {
        self.paths.as_ref().is_some_and(|paths| {
            let tried = paths.borrow();
            tried.open && tried.has_ended(restarts)
        })
    }

    /// State of the paths to the targets. A restart of tailscaled resets them.
    fn paths(&self) -> Paths {
        let (Some(paths), Some(daemon)) = (&self.paths, &self.daemon) else { return Paths::Tried };
        let tried = paths.borrow();
        if tried.has_ended(daemon.borrow().restarts) { Paths::Tried } else { Paths::Untried { waiting: tried.waiting.clone() } }
    }

    /// Services that are awaited since tailscaled's start.
    fn services(&self) -> BTreeMap<String, String> {
        let (Some(advertise_status), Some(daemon)) = (&self.advertise_status, &self.daemon) else { return BTreeMap::new() };
        let advertise_status = advertise_status.borrow();
        if advertise_status.settled == Some(daemon.borrow().restarts) { BTreeMap::new() } else { advertise_status.waiting.clone() }
    }

    pub(super) fn funnel_errors(&self) -> BTreeMap<String, FunnelError> {
        self.advertise_status.as_ref().and_then(|advertise_status| advertise_status.borrow().funnel_errors.clone()).unwrap_or_default()
    }

    /// State of the ruleset; records the start of a lag.
    fn rules(&self, now: Instant) -> Rules {
        if !self.forwards {
            return Rules::Unneeded;
        }
        let programmed = self.programmed.borrow().clone();
        let newest = self.planned.borrow().clone();
        let in_force = programmed.planned.as_ref().filter(|_| programmed.at.is_some());
        let is_newest = |in_force: &Arc<Planned>| newest.as_ref().is_none_or(|newest| Arc::ptr_eq(newest, in_force));
        let writes = RulesetWrites {
            written_at: in_force.and(programmed.at).map(|at| at.saturating_duration_since(self.start)),
            count: programmed.writes,
            newest: programmed.current && in_force.is_some_and(is_newest),
            damaged: programmed.damaged,
            fault: programmed.fault.as_ref().map(|(fault, _)| (fault.reason, fault.message.clone())),
        };
        let mut lag = self.lag.lock().unwrap_or_else(PoisonError::into_inner);
        lag.observe(writes, now.saturating_duration_since(self.start))
    }

    /// Current ruleset lag: zero if up to date, `None` before the first write.
    fn behind(&self, now: Instant) -> Option<Duration> {
        match self.rules(now) {
            Rules::Current => Some(Duration::ZERO),
            Rules::Behind { since, .. } => Some(since),
            Rules::Unneeded | Rules::Missing { .. } | Rules::Damaged { .. } => None,
        }
    }

    /// The Pod's addresses: by settings, else from its links.
    pub fn own(&self) -> BTreeSet<IpAddr> {
        if !self.pod_ips.is_empty() {
            return self.pod_ips.clone();
        }
        self.planned.borrow().as_ref().map(|planned| planned.world.pod_ips.clone()).unwrap_or_default()
    }

    /// Everything for a scrape.
    pub async fn snapshot(&self) -> Snapshot {
        let (traffic, pressure) = tokio::join!(timeout(COUNTER_TIMEOUT, (self.traffic)()), timeout(COUNTER_TIMEOUT, (self.pressure)()));
        let now = Instant::now();
        let mut configs = BTreeMap::new();
        configs.extend(self.egress.as_ref().map(|state| ("egress", self.config(&state.borrow(), now))));
        configs.extend(self.ingress.as_ref().map(|state| ("ingress", self.config(&state.borrow(), now))));
        configs.extend(self.serve.as_ref().map(|state| ("serve", self.config(&state.borrow(), now))));
        Snapshot {
            now,
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            behind: self.behind(now),
            blockers: readiness(&self.facts()),
            stalled: self.heartbeats.stalled(HEARTBEAT_TIMEOUT),
            planned: self.planned.borrow().clone(),
            programmed: self.programmed.borrow().clone(),
            traffic: traffic.ok().flatten(),
            pressure: pressure.ok().flatten(),
            ended: self.ended.borrow().clone(),
            configs,
            names: Arc::clone(&self.names.borrow()),
            daemon: self.daemon.as_ref().map(|state| state.borrow().clone()),
            crashes: self.crashes,
            report: self.report.as_ref().map(|health| health.borrow().clone()),
            sites: self.sites.as_ref().map(FrontEnd::sample),
            api_server: self.api_server.as_ref().map(|part| part.stats.sample()).unwrap_or_default(),
            funnel_errors: self.funnel_errors(),
            certs: self.certs.as_ref().map(|certs| CertState { state: Arc::clone(&certs.state.borrow()), leads: *certs.leads.borrow() }),
        }
    }

    /// Number of new flows so far.
    pub async fn flows(&self) -> Option<u64> {
        let traffic = timeout(COUNTER_TIMEOUT, (self.traffic)()).await.ok().flatten()?;
        Some(traffic.values().map(|port| port.flows).sum())
    }

    /// Counts events between scrapes and updates the ruleset lag. Never ends by itself, even without forwarding.
    pub async fn follow(self: Arc<Self>) {
        let (mut planned, mut programmed) = (self.planned.clone(), self.programmed.clone());
        let counting = metrics::follow(Arc::clone(&self.metrics), planned.clone(), programmed.clone());
        let looking = async {
            loop {
                self.rules(Instant::now());
                let changed = tokio::select! {
                    changed = planned.changed() => changed,
                    changed = programmed.changed() => changed,
                };
                if changed.is_err() {
                    return;
                }
            }
        };
        tokio::join!(counting, looking);
        std::future::pending::<()>().await;
    }

    fn config<D>(&self, state: &InForce<D>, now: Instant) -> ConfigState {
        ConfigState {
            source: state.source.map(crate::model::config::source::CopySource::name),
            age: now.saturating_duration_since(self.start).saturating_sub(state.since),
            fault: state.fault.as_ref().map(crate::model::config::source::DocumentFault::reason),
        }
    }
}

fn is_missing<D: Document>(state: Option<&watch::Receiver<InForce<D>>>) -> bool {
    state.is_some_and(|state| state.borrow().document.is_none())
}

fn traffic(forwarding: &ForwardingPart) -> Fetch<Traffic> {
    let firewall = forwarding.firewall.clone();
    Arc::new(move || {
        let firewall = firewall.borrow().clone();
        Box::pin(async move {
            let counters = firewall?.counters().await;
            counters.inspect_err(|fault| tracing::debug!(reason = fault.reason, "no counters: {}", fault.message)).ok()
        })
    })
}

async fn pressure() -> Option<Pressure> {
    let read = spawn_blocking(|| Conntrack::open()?.pressure()).await.ok()?;
    read.inspect_err(|error| tracing::debug!(reason = error.reason(), "the connection table cannot be read: {error}")).ok()
}

fn usermetrics(tailnet: &TailnetPart) -> Fetch<String> {
    let api = tailnet.daemon.as_ref().map(|daemon| daemon.api.clone());
    Arc::new(move || {
        let api = api.clone();
        Box::pin(async move {
            let bytes =
                api?.usermetrics().await.inspect_err(|error| tracing::debug!(reason = error.reason(), "no usermetrics: {error}")).ok()?;
            String::from_utf8(bytes.into()).ok()
        })
    })
}

/// Fault of an interface, if any.
fn link_fault(name: &InterfaceName, link: &LinkState) -> Option<String> {
    match (link.present, link.up) {
        (false, _) => Some(format!("there is no interface {name}")),
        (true, false) => Some(format!("interface {name} is down")),
        (true, true) => None,
    }
}

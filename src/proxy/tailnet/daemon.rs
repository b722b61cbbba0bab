//! Supervisor task of tailscaled: owns its process and its bus, and executes the decisions of [`Machine`].
//!
//! The loop never blocks on a response: calls to the daemon, to the state writer and to the `tailscale` command run as separate tasks. The
//! last good netmap stays published while the daemon is down.

mod act;
mod bus;
mod conf;
pub mod state_backup;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};
use tracing::{info, warn};

use self::bus::{BusView, Reader};
use self::conf::Conf;
use crate::api::localapi::MaskedPrefs;
use crate::edge::daemon::RunningDaemon as Process;
use crate::edge::localapi::{LocalApi, LocalApiError};
use crate::model::base::netmap::NetMap;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::tailnet::advertise::Advertised;
use crate::model::tailnet::ipn_bus::BackendState;
use crate::model::tailnet::supervise::state_backup::StateBackup;
use crate::model::tailnet::supervise::{AuthEvent, BusState, DaemonEvent, DaemonPhase, DaemonSettings, Machine, Secret, StateWrite};
use crate::runtime::tasks::Stop;
use crate::runtime::timer::until;

/// Interval of config directory checks; each reads one file of some hundred bytes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Key of tailscaled's health warning when it cannot read its stored state and starts without it (1.90 and newer).
const STORELESS: &str = "state-store-health";

/// A request to the writer of the state Secret.
#[derive(Debug)]
pub struct StateRequest {
    pub write: StateWrite,
    /// Signalled when written; dropped if the write will not happen, and then the request is repeated.
    pub done: oneshot::Sender<()>,
}

pub struct DaemonInputs {
    /// Newest auth key, from a watch of the config Secret, which is faster than the mount.
    pub keys: watch::Receiver<Option<Secret>>,
    /// ID of the device that was deleted at the control plane, if this can be known.
    pub deleted: Option<watch::Receiver<Option<DeviceId>>>,
    pub writes: mpsc::Sender<StateRequest>,
    /// Backup of tailscaled's keys in the state Secret.
    pub backup: watch::Receiver<StateBackup>,
    /// Check whether the state Secret is readable; `None` if tailscaled's state is elsewhere.
    pub reach: Option<state_backup::Reach>,
    /// Services of the config that may be advertised; `None` if the config alone decides.
    pub advertise: Option<watch::Receiver<Advertised>>,
    /// tailscaled outlives this process: the next supervisor process takes it over.
    pub outlives: bool,
    /// The netmap has peers; without, tailscaled reports none of them, which saves memory in large tailnets.
    pub peers: bool,
}

#[derive(Debug, Clone, Default)]
pub struct DaemonState {
    pub phase: DaemonPhase,
    /// Start of this phase.
    pub since: Option<Instant>,
    pub backend: BackendState,
    /// Login state, as text.
    pub login: String,
    pub restarts: u64,
    /// tailscaled was started from a copy of its state, because the state Secret was not readable.
    pub from_file: bool,
    /// Exit status of the last process.
    pub last_exit: Option<String>,
    /// Last error: its kind (closed set) and its text.
    pub last_error: Option<(&'static str, String)>,
    /// Error of the mounted config, while the last good one is in force.
    pub config_fault: Option<String>,
    pub capver: Option<u32>,
    pub pid: Option<i32>,
    /// Tailscale Services in the config; `None` before the first good config.
    pub configured: Option<Arc<BTreeSet<String>>>,
    pub advertised: Arc<BTreeSet<String>>,
    /// Whether shields-up is on, as reported by tailscaled: it rejects new connections.
    pub shields_up: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NeverStarted(pub String);

#[derive(Debug, Clone)]
pub struct DaemonHandle {
    pub api: LocalApi,
    commands: mpsc::Sender<DaemonCommand>,
    state: watch::Receiver<DaemonState>,
    netmap: watch::Receiver<Option<Arc<NetMap>>>,
}

#[derive(Debug)]
enum DaemonCommand {
    /// Stop reading the config, because its services are being withdrawn.
    Freeze(oneshot::Sender<()>),
    Stop(Duration),
}

struct Supervisor {
    settings: Arc<DaemonSettings>,
    machine: Machine,
    begin: Instant,
    process: Option<Process>,
    epoch: watch::Sender<u64>,
    epochs: u64,
    greeted: u64,
    from_file: bool,
    /// The current or last process could not read its stored state.
    no_store: bool,
    /// A daemon that was taken over advertises its previous services until this time.
    advertises_until: Option<Instant>,
    view: watch::Receiver<BusView>,
    netmap: watch::Receiver<Option<Arc<NetMap>>>,
    api: LocalApi,
    inputs: DaemonInputs,
    commands: mpsc::Receiver<DaemonCommand>,
    work: JoinSet<Option<DaemonEvent>>,
    conf: Option<Conf>,
    frozen: bool,
    wake: Option<Instant>,
    gave_up: Option<NeverStarted>,
    state: watch::Sender<DaemonState>,
}

/// Creates the task and its handle. After [`DaemonHandle::stop`] the task only waits for `stop`: on shutdown tailscaled ends before
/// everything else, and the consumers of its state must not take that for the end of the process.
pub fn daemon(
    settings: DaemonSettings,
    inputs: DaemonInputs,
    stop: Stop,
) -> (DaemonHandle, impl Future<Output = Result<(), NeverStarted>> + Send) {
    let api = LocalApi::new(&settings.socket);
    let (epoch, epoch_seen) = watch::channel(0);
    let (view, view_seen) = watch::channel(BusView::default());
    let (netmap, netmap_seen) = watch::channel(None);
    let (state, state_seen) = watch::channel(DaemonState { since: Some(Instant::now()), ..DaemonState::default() });
    let (commands, requests) = mpsc::channel(8);
    let reader = Reader { api: api.clone(), epoch: epoch_seen, view, netmap, peers: inputs.peers };
    let mut supervisor = Supervisor {
        machine: Machine::new(&settings),
        conf: Conf::new(&settings, inputs.advertise.as_ref().map(|advertise| advertise.borrow().clone())),
        settings: Arc::new(settings),
        begin: Instant::now(),
        process: None,
        epoch,
        epochs: 0,
        greeted: 0,
        from_file: false,
        no_store: false,
        advertises_until: None,
        view: view_seen,
        netmap: netmap_seen.clone(),
        api: api.clone(),
        inputs,
        commands: requests,
        work: JoinSet::new(),
        frozen: false,
        wake: None,
        gave_up: None,
        state,
    };
    let task = async move {
        // A separate task, so that decisions do not delay reading. It ends with this future.
        let mut reading = JoinSet::new();
        reading.spawn(reader.run());
        supervisor.run().await?;
        stop.requested().await;
        Ok(())
    };
    (DaemonHandle { api, commands, state: state_seen, netmap: netmap_seen }, task)
}

impl DaemonHandle {
    /// State of the daemon; updated within milliseconds of a change, an exit included.
    pub fn state(&self) -> watch::Receiver<DaemonState> {
        self.state.clone()
    }

    /// The netmap: `None` before the first complete one, the last good one while the daemon is down.
    pub fn netmap(&self) -> watch::Receiver<Option<Arc<NetMap>>> {
        self.netmap.clone()
    }

    /// Stops advertising Tailscale Services, and the routes of a Connector, for good: the config is no longer read. The next tailscaled advertises
    /// what its config says. True if any were advertised.
    pub async fn stop_advertising(&self, connector: bool) -> Result<bool, LocalApiError> {
        let (done, frozen) = oneshot::channel();
        if self.commands.send(DaemonCommand::Freeze(done)).await.is_ok() {
            drop(frozen.await);
        }
        if !connector && self.api.prefs().await?.advertise_services.is_empty() {
            return Ok(false);
        }
        let advertise_routes = connector.then(Vec::new);
        let none = MaskedPrefs { advertise_services: Some(Vec::new()), advertise_routes, ..MaskedPrefs::default() };
        self.api.edit_prefs(&none).await.map(|_| true)
    }

    /// Stops the daemon, with SIGKILL after `grace`. Returns when it has exited. A second call can only shorten the grace period.
    pub async fn stop(&self, grace: Duration) {
        let mut state = self.state.clone();
        if self.commands.send(DaemonCommand::Stop(grace)).await.is_ok() {
            drop(state.wait_for(|state| state.phase == DaemonPhase::Exited).await);
        }
    }
}

impl Supervisor {
    async fn run(&mut self) -> Result<(), NeverStarted> {
        self.prepare().await;
        let mut look = interval(POLL_INTERVAL);
        self.happened(vec![DaemonEvent::Tick]).await;
        loop {
            if let Some(fault) = self.gave_up.take() {
                return Err(fault);
            }
            if self.state.borrow().phase == DaemonPhase::Exited {
                return Ok(());
            }
            let events = tokio::select! {
                status = async { match &mut self.process { Some(process) => process.wait().await, None => std::future::pending().await } } => {
                    vec![self.ended(status.unwrap_or_else(|fault| fault.to_string()))]
                }
                Ok(()) = self.view.changed() => self.viewed(),
                Some(done) = self.work.join_next() => done.ok().flatten().into_iter().collect(),
                () = until(self.wake) => vec![DaemonEvent::Tick],
                Some(command) = self.commands.recv() => match command {
                    DaemonCommand::Stop(grace) => vec![DaemonEvent::Stop { grace }],
                    DaemonCommand::Freeze(done) => {
                        self.frozen = true;
                        let _ = done.send(());
                        continue;
                    }
                },
                Ok(()) = changed(&mut self.inputs.advertise) => {
                    self.advertise();
                    continue;
                }
                Ok(()) = changed(&mut self.inputs.deleted) => self.deleted(),
                Ok(()) = self.inputs.keys.changed() => self.inputs.keys.borrow_and_update().clone().map(DaemonEvent::Key).into_iter().collect(),
                _ = look.tick(), if self.conf.is_some() && !self.frozen => {
                    self.compare();
                    match self.look() { Some(event) => vec![event], None => continue }
                }
            };
            self.happened(events).await;
        }
    }

    /// Passes events to the machine, executes the resulting actions and their immediate events, and publishes the new state.
    async fn happened(&mut self, events: Vec<DaemonEvent>) {
        self.wake = None;
        let mut events = VecDeque::from(events);
        if events.is_empty() {
            events.push_back(DaemonEvent::Tick); // the machine must request its wake-up again
        }
        while let Some(event) = events.pop_front() {
            let actions = self.machine.step(event, self.begin.elapsed(), fastrand::f64());
            for action in actions {
                events.extend(self.act(action).await);
            }
        }
        self.publish();
    }

    fn ended(&mut self, how: String) -> DaemonEvent {
        let pid = self.process.take().map(|process| process.pid());
        self.epoch.send_replace(0);
        info!(pid, how, "tailscaled has ended");
        self.state.send_modify(|state| state.last_exit = Some(how));
        DaemonEvent::Exited
    }

    /// The reader's current view as events; ignored if it is of an earlier process.
    fn viewed(&mut self) -> Vec<DaemonEvent> {
        let view = self.view.borrow_and_update().clone();
        if view.epoch != self.epochs || self.process.is_none() {
            return Vec::new();
        }
        // The end of a daemon without its state is no fault of its own.
        if let Some(fault) = view.fault.filter(|_| !self.no_store) {
            self.state.send_modify(|state| state.last_error = Some(fault));
        }
        if !view.connected {
            return vec![DaemonEvent::Disconnected];
        }
        if let (Some(conf), Some(capver)) = (&mut self.conf, view.capver) {
            conf.capver = capver;
        }
        if self.greeted != view.epoch {
            self.greeted = view.epoch;
            self.greet();
        }
        let snapshot = view.snapshot;
        let no_store = snapshot.health.contains(STORELESS);
        if no_store && !self.no_store {
            // A state file that cannot be read may be the only copy.
            self.no_store = !self.from_file;
            self.fault("StateStore", &"it cannot read its stored state; restarting it until it can");
        }
        let shields_up = snapshot.prefs.as_ref().is_some_and(|prefs| prefs.shields_up);
        let advertised: BTreeSet<String> = snapshot.prefs.iter().flat_map(|prefs| prefs.advertise_services.clone()).collect();
        let (login_broken, have_node_key) = (snapshot.login_broken(), snapshot.have_node_key);
        let bus = BusState { state: snapshot.state, login_broken, have_node_key, no_store };
        self.state.send_modify(|state| {
            (state.capver, state.backend) = (view.capver, snapshot.state);
            state.shields_up = shields_up;
            if *state.advertised != advertised {
                state.advertised = Arc::new(advertised);
            }
        });
        vec![DaemonEvent::Connected, DaemonEvent::Backend(bus)]
    }

    /// An event if the deleted device is this one. headscale leaves its session open, so that tailscaled does not know.
    fn deleted(&mut self) -> Vec<DaemonEvent> {
        let deleted = self.inputs.deleted.as_mut().and_then(|deleted| deleted.borrow_and_update().clone());
        let own = self.netmap.borrow().as_ref().and_then(|netmap| Some(netmap.node.as_ref()?.stable_id.clone()));
        let Some(deleted) = deleted.filter(|deleted| own.as_deref() == Some(deleted.as_str())) else {
            return Vec::new();
        };
        warn!(device = deleted.as_str(), "this device was deleted at the control plane; restarting tailscaled so that it joins again");
        vec![DaemonEvent::DeviceDeleted]
    }

    fn publish(&self) {
        let phase = self.machine.phase(self.begin.elapsed());
        let login = self.machine.auth().to_string();
        let fault = self.conf.as_ref().and_then(|conf| conf.fault().map(str::to_owned));
        let pid = self.process.as_ref().map(Process::pid);
        let configured = self.conf.as_ref().and_then(Conf::services).cloned();
        self.state.send_if_modified(|state| {
            let same = state.phase == phase && state.login == login && state.config_fault == fault && state.pid == pid;
            let same = same && state.configured == configured;
            state.configured = configured;
            if state.phase != phase {
                info!(from = %state.phase, to = %phase, "tailscaled");
                state.since = Some(Instant::now());
            }
            (state.restarts, state.from_file) = (self.machine.restarts(), self.from_file);
            (state.phase, state.login, state.config_fault, state.pid) = (phase, login, fault, pid);
            !same
        });
    }
}

/// Waits for a change of an optional receiver.
pub(in crate::proxy) async fn changed<T>(receiver: &mut Option<watch::Receiver<T>>) -> Result<(), watch::error::RecvError> {
    match receiver {
        Some(receiver) => receiver.changed().await,
        None => std::future::pending().await,
    }
}

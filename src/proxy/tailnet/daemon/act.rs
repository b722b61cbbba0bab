//! Execution of the machine's actions.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::conf::{ConfReading, key};
use super::{Advertised, AuthEvent, DaemonEvent, NeverStarted, Process, StateRequest, StateWrite, Supervisor};
use crate::api::localapi::{MaskedPrefs, StartOptions};
use crate::edge::daemon;
use crate::edge::dns;
use crate::edge::files::{remove, replace_private};
use crate::edge::localapi::LocalApi;
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::supervise::argv::command_line;
use crate::model::tailnet::supervise::login::{LoginPlan, plan, prefs};
use crate::model::tailnet::supervise::state_backup::to_file;
use crate::model::tailnet::supervise::{DaemonAction, DaemonPhase, Login, Secret, TwoStep};

/// `NetfilterMode` in which tailscaled creates its own chains but no jumps to them.
const NODIVERT: i64 = 1;
/// Time during which a daemon that was taken over keeps its advertised services, whatever this process finds to be in place.
const TAKEOVER_GRACE: Duration = Duration::from_secs(10);
/// Default socket path of the `tailscale` command.
const WELL_KNOWN: &str = "/var/run/tailscale/tailscaled.sock";

impl Supervisor {
    /// Prepares the first start.
    pub(super) async fn prepare(&mut self) {
        self.from_file = self.inputs.backup.borrow().is_ahead();
        if !self.settings.userspace
            && let Err(fault) = daemon::ensure_tun(Path::new("/dev/net/tun"))
        {
            self.fault(fault.reason(), &fault);
        }
        if let Err(fault) = daemon::link_socket(&self.settings.socket, Path::new(WELL_KNOWN)) {
            info!(%fault, "the tailscale command will need --socket");
        }
        if let Some(conf) = &mut self.conf {
            match daemon::capver(&self.settings.tailscale).await {
                Ok(capver) => conf.capver = capver,
                Err(fault) => warn!(%fault, assumed = conf.capver, "tailscaled's capability version is not known before its first start"),
            }
        }
    }

    /// Executes one action; returns its immediate event.
    pub(super) async fn act(&mut self, action: DaemonAction) -> Option<DaemonEvent> {
        let api = self.api.clone();
        match action {
            DaemonAction::Spawn => return Some(self.spawn().await),
            DaemonAction::Terminate => self.signal(Signal::SIGTERM),
            DaemonAction::Kill => self.signal(Signal::SIGKILL),
            DaemonAction::Wake(at) => {
                let at = self.begin + at;
                self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
            }
            DaemonAction::TellPrefs => {
                let wanted = self.two_step().and_then(prefs);
                self.work.spawn(async move { Some(DaemonEvent::Auth(AuthEvent::Applied(log_in(&api, wanted).await))) });
            }
            DaemonAction::Login => self.login(),
            DaemonAction::LoginWith(key) => {
                info!("trying another key");
                self.work.spawn(async move { Some(DaemonEvent::Auth(AuthEvent::LoggedIn(login_with(&api, &key).await))) });
            }
            DaemonAction::DisconnectControl => {
                warn!("the key to log in with has failed; asking for another");
                self.work.spawn(async move {
                    if let Err(fault) = api.disconnect_control().await {
                        info!(%fault, "leaving the control server");
                    }
                    Some(DaemonEvent::Auth(AuthEvent::Left))
                });
            }
            DaemonAction::Write(write) => {
                let writes = self.inputs.writes.clone();
                self.work.spawn(async move { request_write(&writes, write).await });
            }
            DaemonAction::GiveUp(text) => {
                let cause = self.state.borrow().last_error.as_ref().map(|(_, cause)| cause.clone());
                let text = format!("{text}: {}", cause.as_deref().unwrap_or("its log says why"));
                error!("{text}");
                self.gave_up = Some(NeverStarted(text));
            }
        }
        None
    }

    async fn spawn(&mut self) -> DaemonEvent {
        // The newest config counts; the machine needs its key before the daemon uses it.
        if let Some(event @ DaemonEvent::Key(_)) = self.look() {
            self.machine.step(event, self.begin.elapsed(), 0.0);
        }
        let config = match &mut self.conf {
            None => None,
            Some(conf) => match conf.for_start() {
                Ok(Some(path)) => Some(path.to_owned()),
                Ok(None) => return DaemonEvent::Exited,
                Err(fault) => {
                    self.fault(fault.reason(), &fault);
                    return DaemonEvent::Exited;
                }
            },
        };
        let orphan = if self.inputs.outlives && self.epochs == 0 { Process::orphan() } else { None };
        if let Some((process, args)) = orphan {
            return self.take_over(process, &args, config.as_deref());
        }
        let no_store = std::mem::take(&mut self.no_store);
        let state = self.stand_in(no_store).await;
        let args = command_line(&self.settings, config.as_deref(), state.as_deref());
        match Process::spawn(&self.settings.tailscaled, &args, &self.settings.env, self.inputs.outlives) {
            Ok(process) => {
                info!(pid = process.pid(), args = args.join(" "), "tailscaled is started");
                self.begin(process)
            }
            Err(fault) => {
                self.fault(fault.reason(), &fault);
                DaemonEvent::Exited
            }
        }
    }

    fn begin(&mut self, process: Process) -> DaemonEvent {
        self.process = Some(process);
        self.epochs += 1;
        self.epoch.send_replace(self.epochs);
        DaemonEvent::Spawned
    }

    /// Takes over the daemon of the previous process; a daemon with other arguments is terminated and restarted.
    fn take_over(&mut self, process: Process, args: &str, config: Option<&Path>) -> DaemonEvent {
        let line = |state: Option<PathBuf>| command_line(&self.settings, config, state.as_deref()).join(" ");
        let file = self.settings.state_file();
        let from_file = file.is_some_and(|file| args == line(Some(file)));
        let same = from_file || args == line(None);
        info!(pid = process.pid(), args, "tailscaled runs already{}", if same { "" } else { ", and not as it should: it is ended" });
        self.from_file = from_file;
        self.advertises_until = Some(Instant::now() + TAKEOVER_GRACE);
        let event = self.begin(process);
        if !same {
            self.signal(Signal::SIGTERM);
        }
        event
    }

    /// The file to start from instead of the Secret: if the Secret is not readable, if the previous daemon never answered or could not read the
    /// Secret (`no_store`), or if its changes are only in the file.
    async fn stand_in(&mut self, no_store: bool) -> Option<PathBuf> {
        let file = self.settings.state_file()?;
        let backup = self.inputs.backup.borrow().clone();
        let before = self.from_file;
        let answered = (self.epochs == 0 || self.greeted == self.epochs) && !no_store;
        let is_newer = self.from_file && !backup.given_back;
        // No check if the other conditions decide already.
        let away = match &self.inputs.reach {
            Some(reach) if backup.content.is_some() && answered && !is_newer => !reach().await,
            _ => false,
        };
        self.from_file = match (self.from_file, backup.content) {
            (true, _) => answered && (away || is_newer),
            (false, Some(content)) if away || !answered => match replace_private(&file, &to_file(&content)) {
                Ok(()) => true,
                Err(fault) => {
                    warn!(reason = fault.reason(), "tailscaled cannot start without its Secret: {fault}");
                    false
                }
            },
            (false, _) => false,
        };
        if before && !self.from_file {
            // The Secret has this content now; the file would become older than the Secret.
            remove(&file).unwrap_or_else(|fault| warn!(reason = fault.reason(), "the next container may start with an old state: {fault}"));
        }
        self.from_file.then_some(file)
    }

    /// Applies runtime settings to a daemon when it first answers.
    pub(super) fn greet(&mut self) {
        let api = self.api.clone();
        if self.settings.udp_gro_forwarding && !self.settings.userspace {
            let api = api.clone();
            self.work.spawn(async move {
                if let Err(fault) = api.set_udp_gro_forwarding().await {
                    warn!(%fault, "UDP GRO forwarding");
                }
                None
            });
        }
        if let Some(address) = self.settings.address_cut_off(&dns::servers(Path::new(dns::RESOLV_CONF))) {
            self.work.spawn(async move {
                let change = MaskedPrefs { netfilter_mode: Some(NODIVERT), ..MaskedPrefs::default() };
                if let Err(fault) = api.edit_prefs(&change).await {
                    warn!(%fault, %address, "an address of the cluster is inside 100.64.0.0/10 and tailscaled's own filter may drop its traffic");
                    return None;
                }
                info!(%address, "an address of the cluster is inside 100.64.0.0/10: tailscaled's own filter would drop its traffic and is off");
                None
            });
        }
    }

    /// Reads the config; passes a good new one to the daemon and its key to the machine.
    pub(super) fn look(&mut self) -> Option<DaemonEvent> {
        match self.conf.as_mut()?.look() {
            ConfReading::Same => None,
            ConfReading::Fault(fault) => {
                self.fault(fault.reason(), &fault);
                Some(DaemonEvent::Tick)
            }
            ConfReading::Changed(file) => {
                info!("the config file has changed");
                if self.process.is_some() {
                    self.reload();
                }
                match key(&file) {
                    Ok(key) => Some(DaemonEvent::Key(key)),
                    Err(fault) => {
                        self.fault(fault.reason(), &fault);
                        Some(DaemonEvent::Tick)
                    }
                }
            }
        }
    }

    pub(super) fn advertise(&mut self) {
        let Some(advertise) = &mut self.inputs.advertise else { return };
        let advertised = advertise.borrow_and_update().clone();
        if self.conf.as_mut().is_some_and(|conf| conf.advertise(&advertised)) {
            let Advertised { services, withheld, shields_up } = &advertised;
            info!(?services, ?withheld, shields_up, "what is advertised has changed");
            if self.process.is_some() && !self.advertises_on() {
                self.reload();
            }
        }
    }

    /// Reloads the config if the daemon's state differs from it: an earlier reload may have met a busy or absent daemon.
    pub(super) fn compare(&mut self) {
        let state = self.state.borrow();
        let differs = self.conf.as_ref().is_some_and(|conf| conf.differs(&state));
        let running = state.phase == DaemonPhase::Running;
        drop(state);
        if differs && running && self.work.is_empty() && !self.advertises_on() {
            self.reload();
        }
    }

    /// Whether a daemon that was taken over still keeps its advertised services: this process must first find out what it serves.
    fn advertises_on(&self) -> bool {
        self.advertises_until.is_some_and(|until| Instant::now() < until)
    }

    fn reload(&mut self) {
        if let Some(Err(fault)) = self.conf.as_ref().map(super::Conf::for_reload) {
            self.fault(fault.reason(), &fault);
            return;
        }
        let (api, state) = (self.api.clone(), self.state.clone());
        self.work.spawn(async move {
            if let Err(fault) = api.reload_config().await {
                warn!(%fault, "the config in force stays");
                state.send_modify(|state| state.last_error = Some((fault.reason(), fault.to_string())));
            }
            None
        });
    }

    fn login(&mut self) {
        let Some(settings) = self.two_step() else { return };
        let (api, tailscale) = (self.api.clone(), self.settings.tailscale.clone());
        let plan = plan(settings, &self.settings.socket.display().to_string());
        self.work.spawn(async move {
            let answer = match plan {
                LoginPlan::Command { args, stdin } => {
                    daemon::login(&tailscale, &args, stdin.as_ref()).await.map_err(|fault| fault.to_string())
                }
                LoginPlan::Direct { prefs, auth_key } => match log_in(&api, Some(*prefs)).await {
                    Ok(()) => login_with(&api, &auth_key.unwrap_or_default()).await,
                    refused => refused,
                },
            };
            if let Err(text) = &answer {
                warn!(text, "login failed; it will be tried again");
            }
            Some(DaemonEvent::Auth(AuthEvent::LoggedIn(answer)))
        });
    }

    fn two_step(&self) -> Option<&TwoStep> {
        match &self.settings.login {
            Login::TwoStep(settings) => Some(settings),
            Login::ConfigDir(_) => None,
        }
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        if let Some(Err(fault)) = self.process.as_ref().map(|process| process.signal(signal)) {
            self.fault(fault.reason(), &fault);
        }
    }

    pub(super) fn fault(&self, kind: &'static str, fault: &dyn Display) {
        let fault = Some((kind, fault.to_string()));
        // Each retry has the same one.
        if self.state.borrow().last_error != fault
            && let Some((kind, fault)) = &fault
        {
            warn!(kind, fault, "tailscaled");
        }
        self.state.send_modify(|state| state.last_error = fault);
    }
}

async fn log_in(api: &LocalApi, prefs: Option<MaskedPrefs>) -> Result<(), String> {
    let Some(prefs) = prefs else { return Ok(()) };
    api.edit_prefs(&prefs).await.map(drop).map_err(|fault| fault.to_string())
}

/// Logs in with a key: starts the engine with the key, then requests the login.
async fn login_with(api: &LocalApi, secret: &Secret) -> Result<(), String> {
    let secret = daemon::key(secret).map_err(|fault| fault.to_string())?;
    let options = StartOptions { auth_key: secret.reveal().to_owned() };
    api.start(&options).await.map_err(|fault| fault.to_string())?;
    api.login_interactive().await.map_err(|fault| fault.to_string())
}

/// Requests a write until it is done; without a writer there is nothing to wait for.
async fn request_write(writes: &mpsc::Sender<StateRequest>, write: StateWrite) -> Option<DaemonEvent> {
    let mut retry = Backoff::DAEMON;
    loop {
        let (done, written) = oneshot::channel();
        if writes.send(StateRequest { write: write.clone(), done }).await.is_err() {
            warn!(?write, "no writer of the state Secret");
            return None;
        }
        if written.await.is_ok() {
            return Some(DaemonEvent::Auth(AuthEvent::Written(write)));
        }
        sleep(retry.next(fastrand::f64())).await;
    }
}

//! State machine that keeps tailscaled running and logged in.
//!
//! [`Machine::step`] maps an event, the time and a random number to actions. Once the daemon has responded, it is restarted without limit, with
//! growing delays; the ruleset stays in force.

use std::fmt;
use std::time::Duration;

use super::actions::{At, BusState, DaemonAction};
use super::auth::{Auth, AuthEvent};
use super::settings::{DaemonSettings, Login, Secret, StateStore};
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::ipn_bus::BackendState;

/// Time without response before a daemon counts as hung. It can block for 30 s on an API server, and forwards meanwhile.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time without bus before the node counts as degraded: reopening takes milliseconds.
const BUS_GRACE: Duration = Duration::from_secs(1);
/// Maximum delay before the restart of a daemon that could not read its state: its API server or DNS server may be back at any moment.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time in `NoState` after which a daemon is restarted. It is in this state while the control server does not answer; a restart then costs
/// nothing, because the daemon has no netmap.
const STUCK_TIMEOUT: Duration = Duration::from_mins(5);
/// Run time after which the next crash counts as the first.
const MIN_STABLE_RUN: Duration = Duration::from_mins(1);

/// Phase of the daemon, for readiness, status and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum DaemonPhase {
    /// No process; the next start is due.
    #[default]
    Down,
    /// A process that does not respond yet.
    Spawned,
    SocketUp,
    /// Initial state.
    NoState,
    /// Login required.
    NeedsLogin,
    /// Approval by an administrator required.
    NeedsMachineAuth,
    /// Stopped by preferences.
    Stopped,
    Starting,
    Running,
    /// Was running and is not now; the ruleset stays.
    Degraded,
    Draining,
    Exited,
}

#[derive(Debug, Clone, PartialEq)]
pub enum DaemonEvent {
    /// Start of the process, or a requested time.
    Tick,
    Spawned,
    /// The process has ended, or could not be started.
    Exited,
    Connected,
    Disconnected,
    Backend(BusState),
    /// An auth key: of the config file, or a newer one from the API.
    Key(Secret),
    /// A response for [`Auth`].
    Auth(AuthEvent),
    /// The control plane has deleted the device, and the daemon does not know. Started again, it needs a login.
    DeviceDeleted,
    Stop {
        /// Time before it is killed.
        grace: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChildProcess {
    Down { until: At },
    Starting,
    Alive { since: At },
    Gone,
}

#[derive(Debug, Clone)]
pub struct Machine {
    child: ChildProcess,
    /// State of the bus, and since when.
    bus: (bool, At),
    last_state: Option<BusState>,
    /// Time of the last change of [`BusState::state`].
    state_since: At,
    auth: Auth,
    retry: Backoff,
    restarts: u64,
    boot_deadline: At,
    started: bool,
    answered: bool,
    /// This process has not been connected yet.
    fresh: bool,
    kill_at: Option<At>,
}

impl Machine {
    /// A machine in its initial state; its first event is [`DaemonEvent::Tick`].
    pub fn new(settings: &DaemonSettings) -> Self {
        let in_secret = matches!(settings.state, StateStore::KubeSecret { .. });
        let auth = match &settings.login {
            Login::ConfigDir(_) => Auth::one_step(in_secret),
            Login::TwoStep(two) => Auth::two_step(two.once, in_secret),
        };
        Self {
            child: ChildProcess::Down { until: At::ZERO },
            bus: (false, At::ZERO),
            last_state: None,
            state_since: At::ZERO,
            auth,
            retry: Backoff::DAEMON,
            restarts: 0,
            boot_deadline: settings.boot_timeout,
            started: false,
            answered: false,
            fresh: false,
            kill_at: None,
        }
    }

    pub fn step(&mut self, event: DaemonEvent, now: At, random: f64) -> Vec<DaemonAction> {
        let mut actions = Vec::new();
        match event {
            DaemonEvent::Spawned => {
                self.child = ChildProcess::Alive { since: now };
                self.auth.started();
                actions.extend(self.kill_at.map(|_| DaemonAction::Terminate));
            }
            DaemonEvent::Exited => self.ended(now, random),
            DaemonEvent::Connected => {
                self.bus = (true, now);
                self.answered = true;
            }
            DaemonEvent::Disconnected if self.bus.0 => self.bus = (false, now),
            DaemonEvent::Tick | DaemonEvent::Disconnected => {}
            DaemonEvent::Backend(last_state) => self.backend(last_state, now),
            DaemonEvent::Key(key) => {
                // The start may have failed because the config was missing or invalid.
                if let ChildProcess::Down { until } = &mut self.child {
                    *until = now.min(*until);
                }
                self.auth.key(key);
            }
            DaemonEvent::DeviceDeleted => actions.extend(self.fresh.then_some(DaemonAction::Kill)),
            DaemonEvent::Auth(event) => self.auth.done(event, now, random, &mut actions),
            DaemonEvent::Stop { grace } => self.stop(now, grace, &mut actions),
        }
        self.proceed(now, &mut actions);
        actions
    }

    pub fn phase(&self, now: At) -> DaemonPhase {
        match self.child {
            ChildProcess::Gone => return DaemonPhase::Exited,
            _ if self.kill_at.is_some() => return DaemonPhase::Draining,
            ChildProcess::Down { .. } | ChildProcess::Starting => return DaemonPhase::Down,
            ChildProcess::Alive { .. } => {}
        }
        let (open, since) = self.bus;
        let Some(last_state) = self.last_state else { return if open { DaemonPhase::SocketUp } else { DaemonPhase::Spawned } };
        if self.fresh && (last_state.state != BackendState::Running || (!open && now.saturating_sub(since) >= BUS_GRACE)) {
            return DaemonPhase::Degraded;
        }
        match last_state.state {
            BackendState::NoState => DaemonPhase::NoState,
            BackendState::NeedsLogin => DaemonPhase::NeedsLogin,
            BackendState::NeedsMachineAuth | BackendState::InUseOtherUser => DaemonPhase::NeedsMachineAuth,
            BackendState::Stopped => DaemonPhase::Stopped,
            BackendState::Starting => DaemonPhase::Starting,
            BackendState::Running => DaemonPhase::Running,
        }
    }

    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    fn backend(&mut self, last_state: BusState, now: At) {
        if matches!(self.child, ChildProcess::Alive { .. }) {
            if self.last_state.is_none_or(|before| before.state != last_state.state) {
                self.state_since = now;
            }
            self.last_state = Some(last_state);
            self.fresh |= last_state.state == BackendState::Running;
        }
    }

    fn ended(&mut self, now: At, random: f64) {
        let (worked, no_store) = (self.fresh, self.last_state.is_some_and(|state| state.no_store));
        if let ChildProcess::Alive { since } = self.child
            && now.saturating_sub(since) >= MIN_STABLE_RUN
            && worked
        {
            self.retry.reset();
        }
        (self.bus, self.last_state, self.fresh) = ((false, now), None, false);
        let wanted = self.auth.ended();
        if self.kill_at.is_some() {
            self.child = ChildProcess::Gone;
            return;
        }
        // A daemon that worked restarts at once; one that exits soon again, or never worked, with growing delays.
        let first = worked && self.retry.failures() == 0;
        let wait = if wanted { Duration::ZERO } else { self.retry.next(random) };
        let wait = if no_store { wait.min(STORE_RETRY_DELAY) } else { wait };
        self.child = ChildProcess::Down { until: if first { now } else { now + wait } };
    }

    fn stop(&mut self, now: At, grace: Duration, actions: &mut Vec<DaemonAction>) {
        let at = now + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        match self.child {
            ChildProcess::Alive { .. } => actions.push(DaemonAction::Terminate),
            ChildProcess::Down { .. } => self.child = ChildProcess::Gone,
            ChildProcess::Starting | ChildProcess::Gone => {}
        }
    }

    /// Actions of the current state, after any event.
    fn proceed(&mut self, now: At, actions: &mut Vec<DaemonAction>) {
        match self.child {
            ChildProcess::Gone | ChildProcess::Starting => {}
            ChildProcess::Down { until } => self.down(until, now, actions),
            ChildProcess::Alive { since } => self.alive(since, now, actions),
        }
    }

    fn down(&mut self, until: At, now: At, actions: &mut Vec<DaemonAction>) {
        self.auth.proceed(None, now, actions);
        if self.auth.holds_start() {
            return;
        }
        if !self.answered && self.started && now >= self.boot_deadline {
            let limit = self.boot_deadline;
            actions.push(DaemonAction::GiveUp(format!("tailscaled did not answer within {limit:?} of the start (TS_BOOT_TIMEOUT)")));
        } else if now < until {
            actions.push(DaemonAction::Wake(until));
        } else {
            self.restarts += u64::from(std::mem::replace(&mut self.started, true));
            (self.child, self.bus) = (ChildProcess::Starting, (false, now));
            actions.push(DaemonAction::Spawn);
        }
    }

    fn alive(&mut self, since: At, now: At, actions: &mut Vec<DaemonAction>) {
        if let Some(at) = self.kill_at {
            actions.push(if now >= at { DaemonAction::Kill } else { DaemonAction::Wake(at) });
            return;
        }
        if self.last_state.is_some_and(|last| last.no_store) {
            actions.push(DaemonAction::Kill);
            return;
        }
        self.auth.proceed(self.last_state, now, actions);
        let (open, changed) = self.bus;
        if open {
            self.stuck(now, actions);
            return;
        }
        let silent_since = changed.max(since);
        let limit = if self.answered { silent_since + RESPONSE_TIMEOUT } else { (silent_since + RESPONSE_TIMEOUT).min(self.boot_deadline) };
        if now >= limit {
            actions.push(DaemonAction::Kill);
        } else {
            actions.push(DaemonAction::Wake(if now < changed + BUS_GRACE { limit.min(changed + BUS_GRACE) } else { limit }));
        }
    }

    /// Kills a daemon that answers and stays in its initial state.
    fn stuck(&self, now: At, actions: &mut Vec<DaemonAction>) {
        if !self.fresh && self.last_state.is_some_and(|last| last.state == BackendState::NoState) {
            let limit = self.state_since + STUCK_TIMEOUT;
            actions.push(if now >= limit { DaemonAction::Kill } else { DaemonAction::Wake(limit) });
        }
    }
}

impl fmt::Display for DaemonPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;

//! Login state machine.
//!
//! A one-step node with a failed key requests another and applies it *in place*: disconnect from the control server, mark the state Secret,
//! wait for a different key, clear the marker, log in. If that fails, the daemon (not the process) restarts as another device. A two-step
//! node gets its preferences and is logged in when required.

use std::fmt;
use std::time::Duration;

use super::actions::{At, BusState, DaemonAction, StateWrite};
use super::settings::Secret;
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::ipn_bus::BackendState;

/// Time of reported login failure, without an earlier login, before the key counts as failed.
const LOGIN_FAILURE_GRACE: Duration = Duration::from_secs(10);
/// Timeout for a new key to connect the node.
const KEY_TIMEOUT: Duration = Duration::from_mins(1);
/// Timeout for the daemon to exit before a restart.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval between logins of a two-step node.
const MIN_LOGIN_INTERVAL: Duration = Duration::from_secs(10);

/// Response to an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthEvent {
    /// Disconnected from the control server, or the call failed, which makes no difference.
    Left,
    Written(StateWrite),
    /// Result of a login call.
    LoggedIn(Result<(), String>),
    /// Result of setting preferences.
    Applied(Result<(), String>),
}

/// Progress of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AuthStep {
    /// No login in progress.
    Idle,
    /// A login failure is reported; it may recover until then.
    Doubting { until: At },
    /// tailscaled disconnects from the control server.
    Leaving { failed: Secret },
    /// The request for another key is being written.
    Marking { failed: Secret },
    /// Waits for another key in the config.
    AwaitingKey { failed: Secret },
    /// The request is being removed.
    Clearing,
    /// The daemon has the key; waits for the connection.
    Applying { until: At },
    /// The daemon exits for a restart; it is killed at this time.
    Ending { until: At },
    /// The old device's identity must be removed before the daemon starts.
    Forgetting { requested: bool },
    /// A two-step login or its preferences are in progress.
    LoggingIn,
    /// Waits for the next two-step login.
    Resting { until: At },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    OneStep,
    TwoStep { once: bool },
}

#[derive(Debug, Clone)]
pub struct Auth {
    mode: Mode,
    in_secret: bool,
    step: AuthStep,
    /// Newest known key.
    current: Secret,
    /// Key that the daemon has tried.
    tried: Secret,
    prefs_sent: bool,
    removed: bool,
    retry: Backoff,
}

impl Auth {
    /// A node with a config file. `in_secret`: its state is in a Secret that an operator watches.
    pub fn one_step(in_secret: bool) -> Self {
        Self::new(Mode::OneStep, in_secret)
    }

    /// A node that gets its preferences by API. `once`: only when it needs a login.
    pub fn two_step(once: bool, in_secret: bool) -> Self {
        Self::new(Mode::TwoStep { once }, in_secret)
    }

    fn new(mode: Mode, in_secret: bool) -> Self {
        let (current, tried) = (Secret::default(), Secret::default());
        Self { mode, in_secret, step: AuthStep::Idle, current, tried, prefs_sent: false, removed: false, retry: Backoff::DAEMON }
    }

    /// Records a key: the config file's or a newer one.
    pub fn key(&mut self, key: Secret) {
        self.current = key;
    }

    /// Whether the daemon must not be started yet.
    pub(super) fn holds_start(&self) -> bool {
        matches!(self.step, AuthStep::Forgetting { .. })
    }

    /// Records the daemon's start: it reads its config file with the key again.
    pub(super) fn started(&mut self) {
        (self.tried, self.prefs_sent) = (self.current.clone(), false);
    }

    /// Records the daemon's exit; true if it was requested here.
    pub(super) fn ended(&mut self) -> bool {
        let wanted = matches!(self.step, AuthStep::Ending { .. });
        self.step = match std::mem::replace(&mut self.step, AuthStep::Idle) {
            AuthStep::Ending { .. } if self.in_secret => AuthStep::Forgetting { requested: false },
            AuthStep::Ending { .. }
            | AuthStep::Doubting { .. }
            | AuthStep::Applying { .. }
            | AuthStep::LoggingIn
            | AuthStep::Resting { .. } => AuthStep::Idle,
            going_on => going_on,
        };
        wanted
    }

    /// Handles a response.
    pub(super) fn done(&mut self, event: AuthEvent, now: At, random: f64, actions: &mut Vec<DaemonAction>) {
        self.step = match (std::mem::replace(&mut self.step, AuthStep::Idle), event) {
            (AuthStep::Leaving { failed }, AuthEvent::Left) => {
                actions.push(DaemonAction::Write(StateWrite::RequestReissue { failed: failed.clone() }));
                AuthStep::Marking { failed }
            }
            (AuthStep::Marking { failed }, AuthEvent::Written(StateWrite::RequestReissue { .. })) => AuthStep::AwaitingKey { failed },
            (AuthStep::Clearing, AuthEvent::Written(StateWrite::ClearReissue { .. })) => self.apply(now, actions),
            (AuthStep::Applying { .. }, AuthEvent::LoggedIn(Err(_))) => end(now, actions),
            (AuthStep::LoggingIn, AuthEvent::LoggedIn(answer)) => {
                let pause = self.retry.next(random);
                AuthStep::Resting { until: now + if answer.is_ok() { pause.max(MIN_LOGIN_INTERVAL) } else { pause } }
            }
            (AuthStep::Forgetting { .. }, AuthEvent::Written(StateWrite::ClearReissue { .. }))
            | (AuthStep::LoggingIn, AuthEvent::Applied(Ok(()))) => AuthStep::Idle,
            (AuthStep::LoggingIn, AuthEvent::Applied(Err(_))) => {
                self.prefs_sent = false;
                AuthStep::Resting { until: now + self.retry.next(random) }
            }
            (step, _) => step,
        };
    }

    /// Actions of the current state for a daemon in this bus state (`None`: not reported yet).
    pub(super) fn proceed(&mut self, bus: Option<BusState>, now: At, actions: &mut Vec<DaemonAction>) {
        if let AuthStep::Forgetting { requested } = &mut self.step {
            if !std::mem::replace(requested, true) {
                actions.push(DaemonAction::Write(StateWrite::ClearReissue { identity: true }));
            }
            return;
        }
        let Some(observed) = bus else { return };
        if observed.state == BackendState::Running {
            self.retry.reset();
        }
        match self.mode {
            Mode::OneStep => self.one(observed, now, actions),
            Mode::TwoStep { once } => self.two(observed, once, now, actions),
        }
    }

    fn one(&mut self, bus: BusState, now: At, actions: &mut Vec<DaemonAction>) {
        let running = bus.state == BackendState::Running;
        let broken = bus.login_broken && !bus.have_node_key && !running;
        self.step = match std::mem::replace(&mut self.step, AuthStep::Idle) {
            AuthStep::Idle | AuthStep::Doubting { .. } if bus.state == BackendState::NeedsLogin => self.fail(now, actions),
            AuthStep::Idle if broken => wait(now + LOGIN_FAILURE_GRACE, actions, |until| AuthStep::Doubting { until }),
            AuthStep::Doubting { .. } if !broken => AuthStep::Idle,
            AuthStep::Doubting { until } if now >= until => self.fail(now, actions),
            AuthStep::Doubting { until } => wait(until, actions, |until| AuthStep::Doubting { until }),
            AuthStep::AwaitingKey { failed } if running || (!self.current.is_empty() && self.current != failed) => {
                self.clear(now, running, actions)
            }
            AuthStep::Applying { .. } if running => AuthStep::Idle,
            AuthStep::Applying { until } if now >= until => end(now, actions),
            AuthStep::Applying { until } => wait(until, actions, |until| AuthStep::Applying { until }),
            AuthStep::Ending { until } => {
                actions.push(if now >= until { DaemonAction::Kill } else { DaemonAction::Wake(until) });
                AuthStep::Ending { until }
            }
            step => step,
        };
    }

    /// The tried key failed: use a newer one, or request one.
    fn fail(&mut self, now: At, actions: &mut Vec<DaemonAction>) -> AuthStep {
        if !self.current.is_empty() && self.current != self.tried {
            return self.apply(now, actions);
        }
        let failed = self.tried.clone();
        if !self.in_secret {
            return AuthStep::AwaitingKey { failed };
        }
        actions.push(DaemonAction::DisconnectControl);
        AuthStep::Leaving { failed }
    }

    /// Another key exists, or the node runs without one.
    fn clear(&mut self, now: At, running: bool, actions: &mut Vec<DaemonAction>) -> AuthStep {
        match (self.in_secret, running) {
            (false, true) => AuthStep::Idle,
            (false, false) => self.apply(now, actions),
            (true, _) => {
                actions.push(DaemonAction::Write(StateWrite::ClearReissue { identity: false }));
                AuthStep::Clearing
            }
        }
    }

    fn apply(&mut self, now: At, actions: &mut Vec<DaemonAction>) -> AuthStep {
        self.tried = self.current.clone();
        actions.push(DaemonAction::LoginWith(self.current.clone()));
        wait(now + KEY_TIMEOUT, actions, |until| AuthStep::Applying { until })
    }

    fn two(&mut self, bus: BusState, once: bool, now: At, actions: &mut Vec<DaemonAction>) {
        if let AuthStep::Resting { until } = self.step
            && now >= until
        {
            self.step = AuthStep::Idle;
        }
        let running = bus.state == BackendState::Running;
        match self.step {
            AuthStep::Resting { .. } if running && self.prefs_sent => self.step = AuthStep::Idle,
            AuthStep::Resting { until } => actions.push(DaemonAction::Wake(until)),
            AuthStep::Idle if bus.state == BackendState::NeedsLogin => {
                actions.push(DaemonAction::Login);
                (self.step, self.prefs_sent) = (AuthStep::LoggingIn, true);
            }
            AuthStep::Idle if !self.prefs_sent && (running || !once) => {
                actions.push(DaemonAction::TellPrefs);
                (self.step, self.prefs_sent) = (AuthStep::LoggingIn, true);
            }
            _ => {}
        }
        if running && once && self.in_secret && !std::mem::replace(&mut self.removed, true) {
            actions.push(DaemonAction::Write(StateWrite::RemoveAuthKey));
        }
    }
}

/// Ends the daemon, so that it restarts.
fn end(now: At, actions: &mut Vec<DaemonAction>) -> AuthStep {
    actions.push(DaemonAction::Terminate);
    wait(now + EXIT_TIMEOUT, actions, |until| AuthStep::Ending { until })
}

/// Enters a step with a deadline.
fn wait(until: At, actions: &mut Vec<DaemonAction>, step: impl FnOnce(At) -> AuthStep) -> AuthStep {
    actions.push(DaemonAction::Wake(until));
    step(until)
}

impl fmt::Display for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.step {
            AuthStep::Idle => "settled",
            AuthStep::Doubting { .. } => "in doubt",
            AuthStep::Leaving { .. } => "leaving the control server",
            AuthStep::Marking { .. } => "asking for another key",
            AuthStep::AwaitingKey { .. } => "waiting for another key",
            AuthStep::Clearing => "clearing the request",
            AuthStep::Applying { .. } => "trying another key",
            AuthStep::Ending { .. } => "ending the daemon",
            AuthStep::Forgetting { .. } => "forgetting the device",
            AuthStep::LoggingIn => "logging in",
            AuthStep::Resting { .. } => "waiting to log in again",
        })
    }
}

//! How the node stays logged in, as states.
//!
//! A one-step node whose key has failed asks the operator for another and takes it *in place*: leave the control server, mark the
//! state Secret, wait for a different key, clear the marker, log in. Only where that leads nowhere is the daemon (never the
//! process) started anew, as another device. A two-step node is told its preferences and logged in when it needs to be.

use std::fmt;
use std::time::Duration;

use super::machine::{Action, At, Seen, StateWrite};
use super::settings::Secret;
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::ipn_bus::BackendState;

/// How long a login may be reported broken, with no earlier one to fall back on, before the key is taken for bad.
const DOUBT: Duration = Duration::from_secs(10);
/// How long a new key may take to make the node run.
const APPLY: Duration = Duration::from_mins(1);
/// How long the daemon may take to end where it has to start anew.
const END: Duration = Duration::from_secs(5);
/// The least time between two logins of a two-step node.
const LOGIN_PAUSE: Duration = Duration::from_secs(10);

/// An answer that was waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthEvent {
    /// The control server was left, or the call for it failed, which makes no difference.
    Left,
    /// The state Secret was written.
    Written(StateWrite),
    /// The call for a login was taken (or why not).
    LoggedIn(Result<(), String>),
    /// The preferences were taken (or why not).
    Told(Result<(), String>),
}

/// How far a login is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Nothing to do.
    Idle,
    /// The login is reported broken; until then it may heal.
    Doubting { until: At },
    /// Leaving the control server.
    Leaving { failed: Secret },
    /// Marking the state Secret.
    Marking { failed: Secret },
    /// Waiting for the operator, or whoever writes the config, to give another key.
    AwaitingKey { failed: Secret },
    /// The marker is being cleared.
    Clearing,
    /// The key was given to the daemon.
    Applying { until: At },
    /// The daemon has to end.
    Ending { until: At },
    /// The old device's identity has to be forgotten before the daemon starts.
    Forgetting { asked: bool },
    /// A two-step login or its preferences are on their way.
    LoggingIn,
    /// The next two-step login is not due.
    Resting { until: At },
}

/// The mode of login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    OneStep,
    TwoStep { once: bool },
}

/// The login of a node.
#[derive(Debug, Clone)]
pub struct Auth {
    mode: Mode,
    in_secret: bool,
    step: Step,
    /// The newest key that is known.
    known: Secret,
    /// The key that the daemon has tried.
    tried: Secret,
    told: bool,
    removed: bool,
    retry: Backoff,
}

impl Auth {
    /// A node with a config file; `in_secret`: its state is in a Secret that an operator watches.
    #[must_use]
    pub fn one_step(in_secret: bool) -> Self {
        Self::new(Mode::OneStep, in_secret)
    }

    /// A node that is told what to be; `once`: only when it needs a login.
    #[must_use]
    pub fn two_step(once: bool, in_secret: bool) -> Self {
        Self::new(Mode::TwoStep { once }, in_secret)
    }

    fn new(mode: Mode, in_secret: bool) -> Self {
        let (known, tried) = (Secret::default(), Secret::default());
        Self { mode, in_secret, step: Step::Idle, known, tried, told: false, removed: false, retry: Backoff::DAEMON }
    }

    /// A key is known: the config file's or a newer one.
    pub fn key(&mut self, key: Secret) {
        self.known = key;
    }

    /// Whether another key is being waited for.
    #[must_use]
    pub fn awaits_key(&self) -> bool {
        matches!(self.step, Step::Leaving { .. } | Step::Marking { .. } | Step::AwaitingKey { .. })
    }

    /// Whether the daemon may not be started yet.
    #[must_use]
    pub(super) fn holds_start(&self) -> bool {
        matches!(self.step, Step::Forgetting { .. })
    }

    /// The daemon starts: it reads its config file, and the key in it, anew.
    pub(super) fn started(&mut self) {
        (self.tried, self.told) = (self.known.clone(), false);
    }

    /// The daemon has ended; true where that was wanted here.
    pub(super) fn ended(&mut self) -> bool {
        let wanted = matches!(self.step, Step::Ending { .. });
        self.step = match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Ending { .. } if self.in_secret => Step::Forgetting { asked: false },
            Step::Ending { .. } | Step::Doubting { .. } | Step::Applying { .. } | Step::LoggingIn | Step::Resting { .. } => Step::Idle,
            going_on => going_on,
        };
        wanted
    }

    /// Takes an answer in.
    pub(super) fn done(&mut self, event: AuthEvent, now: At, random: f64, actions: &mut Vec<Action>) {
        self.step = match (std::mem::replace(&mut self.step, Step::Idle), event) {
            (Step::Leaving { failed }, AuthEvent::Left) => {
                actions.push(Action::Write(StateWrite::RequestReissue { failed: failed.clone() }));
                Step::Marking { failed }
            }
            (Step::Marking { failed }, AuthEvent::Written(StateWrite::RequestReissue { .. })) => Step::AwaitingKey { failed },
            (Step::Clearing, AuthEvent::Written(StateWrite::ClearReissue { .. })) => self.apply(now, actions),
            (Step::Applying { .. }, AuthEvent::LoggedIn(Err(_))) => end(now, actions),
            (Step::LoggingIn, AuthEvent::LoggedIn(answer)) => {
                let pause = self.retry.next(random);
                Step::Resting { until: now + if answer.is_ok() { pause.max(LOGIN_PAUSE) } else { pause } }
            }
            (Step::Forgetting { .. }, AuthEvent::Written(StateWrite::ClearReissue { .. })) | (Step::LoggingIn, AuthEvent::Told(Ok(()))) => {
                Step::Idle
            }
            (Step::LoggingIn, AuthEvent::Told(Err(_))) => {
                self.told = false;
                Step::Resting { until: now + self.retry.next(random) }
            }
            (step, _) => step,
        };
    }

    /// What the state demands of a daemon that was seen like this (`None`: it has not said anything).
    pub(super) fn proceed(&mut self, seen: Option<Seen>, now: At, actions: &mut Vec<Action>) {
        if let Step::Forgetting { asked } = &mut self.step {
            if !std::mem::replace(asked, true) {
                actions.push(Action::Write(StateWrite::ClearReissue { identity: true }));
            }
            return;
        }
        let Some(seen) = seen else { return };
        if seen.state == BackendState::Running {
            self.retry.reset();
        }
        match self.mode {
            Mode::OneStep => self.one(seen, now, actions),
            Mode::TwoStep { once } => self.two(seen, once, now, actions),
        }
    }

    fn one(&mut self, seen: Seen, now: At, actions: &mut Vec<Action>) {
        let running = seen.state == BackendState::Running;
        let broken = seen.login_broken && !seen.have_node_key && !running;
        self.step = match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Idle | Step::Doubting { .. } if seen.state == BackendState::NeedsLogin => self.fail(now, actions),
            Step::Idle if broken => wait(now + DOUBT, actions, |until| Step::Doubting { until }),
            Step::Doubting { .. } if !broken => Step::Idle,
            Step::Doubting { until } if now >= until => self.fail(now, actions),
            Step::Doubting { until } => wait(until, actions, |until| Step::Doubting { until }),
            Step::AwaitingKey { failed } if running || (!self.known.is_empty() && self.known != failed) => {
                self.clear(now, running, actions)
            }
            Step::Applying { .. } if running => Step::Idle,
            Step::Applying { until } if now >= until => end(now, actions),
            Step::Applying { until } => wait(until, actions, |until| Step::Applying { until }),
            Step::Ending { until } => {
                actions.push(if now >= until { Action::Kill } else { Action::Wake(until) });
                Step::Ending { until }
            }
            step => step,
        };
    }

    /// The key that was tried does not work: take a newer one, or ask for one.
    fn fail(&mut self, now: At, actions: &mut Vec<Action>) -> Step {
        if !self.known.is_empty() && self.known != self.tried {
            return self.apply(now, actions);
        }
        let failed = self.tried.clone();
        if !self.in_secret {
            return Step::AwaitingKey { failed };
        }
        actions.push(Action::DisconnectControl);
        Step::Leaving { failed }
    }

    /// There is another key, or the node runs without.
    fn clear(&mut self, now: At, running: bool, actions: &mut Vec<Action>) -> Step {
        match (self.in_secret, running) {
            (false, true) => Step::Idle,
            (false, false) => self.apply(now, actions),
            (true, _) => {
                actions.push(Action::Write(StateWrite::ClearReissue { identity: false }));
                Step::Clearing
            }
        }
    }

    fn apply(&mut self, now: At, actions: &mut Vec<Action>) -> Step {
        self.tried = self.known.clone();
        actions.push(Action::LoginWith(self.known.clone()));
        wait(now + APPLY, actions, |until| Step::Applying { until })
    }

    fn two(&mut self, seen: Seen, once: bool, now: At, actions: &mut Vec<Action>) {
        if let Step::Resting { until } = self.step
            && now >= until
        {
            self.step = Step::Idle;
        }
        let running = seen.state == BackendState::Running;
        match self.step {
            Step::Resting { .. } if running && self.told => self.step = Step::Idle,
            Step::Resting { until } => actions.push(Action::Wake(until)),
            Step::Idle if seen.state == BackendState::NeedsLogin => {
                actions.push(Action::Login);
                (self.step, self.told) = (Step::LoggingIn, true);
            }
            Step::Idle if !self.told && (running || !once) => {
                actions.push(Action::TellPrefs);
                (self.step, self.told) = (Step::LoggingIn, true);
            }
            _ => {}
        }
        if running && once && self.in_secret && !std::mem::replace(&mut self.removed, true) {
            actions.push(Action::Write(StateWrite::RemoveAuthKey));
        }
    }
}

/// Ends the daemon, so that it starts anew.
fn end(now: At, actions: &mut Vec<Action>) -> Step {
    actions.push(Action::Terminate);
    wait(now + END, actions, |until| Step::Ending { until })
}

/// Waits until then in the step that is made of it.
fn wait(until: At, actions: &mut Vec<Action>, step: impl FnOnce(At) -> Step) -> Step {
    actions.push(Action::Wake(until));
    step(until)
}

impl fmt::Display for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.step {
            Step::Idle => "settled",
            Step::Doubting { .. } => "in doubt",
            Step::Leaving { .. } => "leaving the control server",
            Step::Marking { .. } => "asking for another key",
            Step::AwaitingKey { .. } => "waiting for another key",
            Step::Clearing => "clearing the request",
            Step::Applying { .. } => "trying another key",
            Step::Ending { .. } => "ending the daemon",
            Step::Forgetting { .. } => "forgetting the device",
            Step::LoggingIn => "logging in",
            Step::Resting { .. } => "waiting to log in again",
        })
    }
}

use proptest::prelude::*;

use super::*;
use crate::model::tailnet::supervise::StateWrite;
use crate::model::tailnet::supervise::TwoStep;
use crate::model::tailnet::supervise::settings::tests::settings;

/// A machine with a manual clock.
struct Lab {
    machine: Machine,
    now: At,
}

fn backend(state: BackendState) -> DaemonEvent {
    DaemonEvent::Backend(BusState { state, have_node_key: true, ..BusState::default() })
}

impl Lab {
    fn new(settings: &DaemonSettings) -> Self {
        Self { machine: Machine::new(settings), now: At::ZERO }
    }

    fn in_secret() -> Self {
        let state = StateStore::KubeSecret { name: "eg-0".into(), dir: None };
        Self::new(&DaemonSettings { state, ..settings() })
    }

    fn two_step(once: bool) -> Self {
        let login = Login::TwoStep(Box::new(TwoStep { once, ..TwoStep::default() }));
        Self::new(&DaemonSettings { login, ..settings() })
    }

    /// Actions of an event, without wake-ups.
    fn on(&mut self, event: DaemonEvent) -> Vec<DaemonAction> {
        let mut actions = self.machine.step(event, self.now, 0.0);
        actions.retain(|action| !matches!(action, DaemonAction::Wake(_)));
        actions
    }

    fn all<const N: usize>(&mut self, events: [DaemonEvent; N]) {
        for event in events {
            self.on(event);
        }
    }

    fn after(&mut self, wait: Duration, event: DaemonEvent) -> Vec<DaemonAction> {
        self.now += wait;
        self.on(event)
    }

    fn phase(&self) -> DaemonPhase {
        self.machine.phase(self.now)
    }

    /// Starts the daemon until its socket answers.
    fn connect(&mut self) {
        assert_eq!(self.on(DaemonEvent::Tick), [DaemonAction::Spawn]);
        self.all([DaemonEvent::Spawned, DaemonEvent::Connected]);
    }

    fn running(mut self) -> Self {
        self.connect();
        self.on(backend(BackendState::Running));
        assert_eq!(self.phase(), DaemonPhase::Running);
        self
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn daemon_start_passes_through_its_phases() {
    let mut lab = Lab::new(&settings());
    assert_eq!(lab.phase(), DaemonPhase::Down);
    assert_eq!(lab.on(DaemonEvent::Tick), [DaemonAction::Spawn]);
    let steps = [
        (DaemonEvent::Spawned, DaemonPhase::Spawned),
        (DaemonEvent::Connected, DaemonPhase::SocketUp),
        (backend(BackendState::NoState), DaemonPhase::NoState),
        (backend(BackendState::Starting), DaemonPhase::Starting),
        (backend(BackendState::Running), DaemonPhase::Running),
        (backend(BackendState::Stopped), DaemonPhase::Degraded),
        (backend(BackendState::Running), DaemonPhase::Running),
    ];
    for (event, phase) in steps {
        assert_eq!(lab.on(event), []);
        assert_eq!(lab.phase(), phase);
    }
}

#[test]
fn crash_of_a_running_daemon_restarts_it_at_once() {
    let mut lab = Lab::new(&settings()).running();
    assert_eq!(lab.on(DaemonEvent::Exited), [DaemonAction::Spawn]);
    assert_eq!((lab.phase(), lab.machine.restarts()), (DaemonPhase::Down, 1));
    lab.all([DaemonEvent::Spawned, DaemonEvent::Connected, backend(BackendState::Running)]);
    assert_eq!(lab.on(DaemonEvent::Exited), [], "not again and again");
    assert_eq!(lab.after(Duration::from_millis(399), DaemonEvent::Tick), []);
    assert_eq!(lab.after(Duration::from_millis(1), DaemonEvent::Tick), [DaemonAction::Spawn]);
}

#[test]
fn crash_during_start_is_retried_with_backoff() {
    let mut lab = Lab::new(&settings());
    assert_eq!(lab.on(DaemonEvent::Tick), [DaemonAction::Spawn]);
    lab.on(DaemonEvent::Spawned);
    assert_eq!(lab.on(DaemonEvent::Exited), []);
    assert_eq!(lab.after(Duration::from_millis(200), DaemonEvent::Tick), [DaemonAction::Spawn]);
}

#[test]
fn repeated_crashes_back_off_until_a_steady_run() {
    let mut lab = Lab::new(&settings()).running();
    assert_eq!(lab.on(DaemonEvent::Exited), [DaemonAction::Spawn]);
    lab.on(DaemonEvent::Spawned);
    let mut waits = Vec::new();
    for _ in 0..12 {
        let actions = lab.machine.step(DaemonEvent::Exited, lab.now, 0.0);
        let Some(DaemonAction::Wake(at)) = actions.last() else { panic!("{actions:?}") };
        waits.push(at.saturating_sub(lab.now).as_millis());
        lab.now = *at;
        assert_eq!(lab.on(DaemonEvent::Tick), [DaemonAction::Spawn], "it never gives up");
        lab.on(DaemonEvent::Spawned);
    }
    assert_eq!(waits, [400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000, 30000, 30000]);
    lab.all([DaemonEvent::Connected, backend(BackendState::Running)]);
    lab.now += MIN_STABLE_RUN;
    assert_eq!(lab.on(DaemonEvent::Exited), [DaemonAction::Spawn]);
}

#[test]
fn boot_timeout_ends_the_process() {
    let mut lab = Lab::new(&settings());
    let mut last = Vec::new();
    for _ in 0..100 {
        last = lab.after(SECOND, DaemonEvent::Tick);
        if last == [DaemonAction::Spawn] {
            lab.on(DaemonEvent::Exited);
        } else if !last.is_empty() {
            break;
        }
    }
    assert!(matches!(last.as_slice(), [DaemonAction::GiveUp(text)] if text.contains("TS_BOOT_TIMEOUT")), "{last:?}");
    assert!((60..62).contains(&lab.now.as_secs()));
}

#[test]
fn disconnected_daemon_is_killed_after_the_limit() {
    let mut lab = Lab::new(&settings()).running();
    lab.on(DaemonEvent::Disconnected);
    lab.now += Duration::from_millis(999);
    assert_eq!(lab.phase(), DaemonPhase::Running);
    lab.now += Duration::from_millis(1);
    assert_eq!(lab.phase(), DaemonPhase::Degraded);
    assert_eq!(lab.after(SECOND, DaemonEvent::Tick), []);
    assert_eq!(lab.after(SECOND * 87, DaemonEvent::Tick), []);
    assert_eq!(lab.after(SECOND, DaemonEvent::Tick), [DaemonAction::Kill]);
    lab.on(DaemonEvent::Connected);
    assert_eq!(lab.phase(), DaemonPhase::Running);
}

/// A daemon that started without its state never logs in.
#[test]
fn daemon_without_its_state_is_restarted_until_it_can_read_it() {
    let no_store = || DaemonEvent::Backend(BusState { no_store: true, ..BusState::default() });
    let mut lab = Lab::in_secret();
    lab.connect();
    for wait in [200, 400, 800, 1600, 3200, 5000, 5000] {
        assert_eq!(lab.on(no_store()), [DaemonAction::Kill]);
        assert_eq!(lab.on(DaemonEvent::Exited), []);
        assert_eq!(lab.after(Duration::from_millis(wait - 1), DaemonEvent::Tick), []);
        assert_eq!(lab.after(Duration::from_millis(1), DaemonEvent::Tick), [DaemonAction::Spawn]);
        lab.all([DaemonEvent::Spawned, DaemonEvent::Connected]);
    }
    assert_eq!(lab.on(backend(BackendState::Running)), []);
}

#[test]
fn daemon_that_stays_without_a_state_is_restarted() {
    let mut lab = Lab::in_secret();
    lab.connect();
    lab.on(backend(BackendState::NoState));
    assert_eq!(lab.after(SECOND * 299, backend(BackendState::NoState)), []);
    assert_eq!(lab.after(SECOND, DaemonEvent::Tick), [DaemonAction::Kill]);
    for state in [BackendState::Starting, BackendState::NeedsMachineAuth, BackendState::Stopped] {
        let mut lab = Lab::in_secret();
        lab.connect();
        lab.all([backend(BackendState::NoState), backend(state)]);
        assert_eq!(lab.after(SECOND * 3000, DaemonEvent::Tick), [], "{state:?}");
    }
    let mut lab = Lab::in_secret().running();
    lab.on(backend(BackendState::NoState));
    assert_eq!(lab.after(SECOND * 3000, DaemonEvent::Tick), [], "it has a netmap");
}

#[test]
fn daemon_whose_device_was_deleted_is_restarted_once_it_has_run() {
    let mut lab = Lab::in_secret();
    lab.connect();
    assert_eq!(lab.on(DaemonEvent::DeviceDeleted), [], "it is logging in");
    lab.on(backend(BackendState::Running));
    assert_eq!(lab.on(DaemonEvent::DeviceDeleted), [DaemonAction::Kill]);
    assert_eq!(lab.on(DaemonEvent::Exited), [DaemonAction::Spawn]);
}

#[test]
fn new_config_ends_the_wait_for_the_next_start() {
    let mut lab = Lab::in_secret();
    for _ in 0..9 {
        while lab.on(DaemonEvent::Tick) != [DaemonAction::Spawn] {
            lab.now += Duration::from_millis(100);
        }
        lab.on(DaemonEvent::Exited);
    }
    assert_eq!(lab.after(SECOND, DaemonEvent::Tick), []);
    assert_eq!(lab.on(DaemonEvent::Key(Secret::new("first"))), [DaemonAction::Spawn]);
}

#[test]
fn stop_terminates_then_kills_without_restart() {
    let mut lab = Lab::new(&settings()).running();
    assert_eq!(lab.on(DaemonEvent::Stop { grace: SECOND * 5 }), [DaemonAction::Terminate]);
    assert_eq!(lab.phase(), DaemonPhase::Draining);
    assert_eq!(lab.after(SECOND * 5, DaemonEvent::Tick), [DaemonAction::Kill]);
    assert_eq!(lab.on(DaemonEvent::Exited), []);
    assert_eq!(lab.phase(), DaemonPhase::Exited);
    assert_eq!(lab.after(SECOND * 60, DaemonEvent::Tick), []);
}

#[test]
fn stop_while_down_or_starting_ends() {
    let mut down = Lab::new(&settings());
    down.all([DaemonEvent::Tick, DaemonEvent::Spawned, DaemonEvent::Exited]);
    assert_eq!(down.on(DaemonEvent::Stop { grace: SECOND }), []);
    assert_eq!(down.phase(), DaemonPhase::Exited);
    let mut starting = Lab::new(&settings());
    starting.on(DaemonEvent::Tick);
    assert_eq!(starting.on(DaemonEvent::Stop { grace: SECOND }), []);
    assert_eq!(starting.on(DaemonEvent::Spawned), [DaemonAction::Terminate]);
}

#[test]
fn failed_auth_key_is_reissued_in_place() {
    let (old, new) = (Secret::new("old"), Secret::new("new"));
    let mut lab = Lab::in_secret();
    lab.all([DaemonEvent::Key(old.clone()), DaemonEvent::Spawned, DaemonEvent::Connected]);
    assert_eq!(lab.on(backend(BackendState::NeedsLogin)), [DaemonAction::DisconnectControl]);
    let request = StateWrite::RequestReissue { failed: old.clone() };
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::Left)), [DaemonAction::Write(request.clone())]);
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::Written(request))), []);
    assert_eq!(lab.machine.auth().to_string(), "waiting for another key");
    assert_eq!(lab.after(SECOND * 300, DaemonEvent::Key(old)), [], "the same key is no other");
    let clear = StateWrite::ClearReissue { identity: false };
    assert_eq!(lab.on(DaemonEvent::Key(new.clone())), [DaemonAction::Write(clear.clone())]);
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::Written(clear))), [DaemonAction::LoginWith(new)]);
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::LoggedIn(Ok(())))), []);
    assert_eq!(lab.on(backend(BackendState::Running)), []);
    assert_eq!((lab.phase(), lab.machine.auth().to_string()), (DaemonPhase::Running, "settled".into()));
}

#[test]
fn failed_reissued_key_restarts_as_another_device() {
    let mut lab = Lab::in_secret();
    lab.connect();
    lab.all([backend(BackendState::NeedsLogin), DaemonEvent::Auth(AuthEvent::Left)]);
    lab.on(DaemonEvent::Auth(AuthEvent::Written(StateWrite::RequestReissue { failed: Secret::default() })));
    lab.on(DaemonEvent::Key(Secret::new("new")));
    lab.on(DaemonEvent::Auth(AuthEvent::Written(StateWrite::ClearReissue { identity: false })));
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::LoggedIn(Err("500".into())))), [DaemonAction::Terminate]);
    let forget = StateWrite::ClearReissue { identity: true };
    assert_eq!(lab.on(DaemonEvent::Exited), [DaemonAction::Write(forget.clone())]);
    assert_eq!(lab.after(SECOND * 60, DaemonEvent::Tick), [], "not before the old identity is forgotten");
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::Written(forget))), [DaemonAction::Spawn]);
}

#[test]
fn crash_during_reissue_does_not_repeat_the_request() {
    let mut lab = Lab::in_secret();
    lab.connect();
    lab.all([backend(BackendState::NeedsLogin), DaemonEvent::Auth(AuthEvent::Left), DaemonEvent::Exited]);
    lab.on(DaemonEvent::Auth(AuthEvent::Written(StateWrite::RequestReissue { failed: Secret::default() })));
    assert_eq!(lab.after(SECOND, DaemonEvent::Tick), [DaemonAction::Spawn]);
    for event in [DaemonEvent::Spawned, DaemonEvent::Connected, backend(BackendState::NeedsLogin)] {
        assert_eq!(lab.on(event), []);
    }
}

#[test]
fn broken_login_must_persist_before_a_reissue() {
    let broken = |have_node_key| {
        DaemonEvent::Backend(BusState { state: BackendState::Starting, login_broken: true, have_node_key, no_store: false })
    };
    let mut lab = Lab::in_secret();
    lab.connect();
    lab.on(broken(true));
    assert_eq!(lab.after(SECOND * 300, broken(true)), [], "a control server that is away breaks the login of a node that has one");
    assert_eq!(lab.on(broken(false)), []);
    assert_eq!(lab.after(SECOND * 9, DaemonEvent::Tick), []);
    assert_eq!(lab.after(SECOND, DaemonEvent::Tick), [DaemonAction::DisconnectControl]);
}

#[test]
fn new_auth_key_without_state_secret_is_tried_at_once() {
    let mut lab = Lab::new(&settings());
    lab.all([DaemonEvent::Key(Secret::new("old")), DaemonEvent::Spawned, DaemonEvent::Connected]);
    assert_eq!(lab.on(backend(BackendState::NeedsLogin)), []);
    assert_eq!(lab.on(DaemonEvent::Key(Secret::new("new"))), [DaemonAction::LoginWith(Secret::new("new"))]);
}

#[test]
fn two_step_login_sets_prefs_at_each_start() {
    let mut lab = Lab::two_step(false);
    lab.connect();
    assert_eq!(lab.on(backend(BackendState::NeedsLogin)), [DaemonAction::Login]);
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::LoggedIn(Err("refused".into())))), []);
    assert_eq!(lab.after(Duration::from_millis(200), DaemonEvent::Tick), [DaemonAction::Login]);
    lab.on(DaemonEvent::Auth(AuthEvent::LoggedIn(Ok(()))));
    assert_eq!(lab.after(SECOND * 3, backend(BackendState::NeedsLogin)), [], "it takes a while");
    assert_eq!(lab.on(backend(BackendState::Running)), []);
    assert_eq!(lab.on(DaemonEvent::Exited), [DaemonAction::Spawn]);
    lab.all([DaemonEvent::Spawned, DaemonEvent::Connected]);
    assert_eq!(lab.on(backend(BackendState::Starting)), [DaemonAction::TellPrefs]);
}

#[test]
fn auth_once_skips_login_of_a_logged_in_node() {
    let mut lab = Lab::two_step(true);
    lab.connect();
    lab.on(backend(BackendState::Starting));
    assert_eq!(lab.on(backend(BackendState::Running)), [DaemonAction::TellPrefs]);
    assert_eq!(lab.on(DaemonEvent::Auth(AuthEvent::Applied(Ok(())))), []);
}

fn events() -> impl Strategy<Value = DaemonEvent> {
    let states = (0..7_i64, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(state, login_broken, have_node_key, no_store)| {
        DaemonEvent::Backend(BusState { state: BackendState::from_number(state), login_broken, have_node_key, no_store })
    });
    prop_oneof![
        4 => Just(DaemonEvent::Tick),
        2 => Just(DaemonEvent::Connected),
        1 => Just(DaemonEvent::Disconnected),
        4 => states,
        1 => "[a-c]".prop_map(|key| DaemonEvent::Key(Secret::new(key))),
        1 => Just(DaemonEvent::Auth(AuthEvent::LoggedIn(Err("no".into())))),
        1 => Just(DaemonEvent::Auth(AuthEvent::LoggedIn(Ok(())))),
    ]
}

proptest! {
    /// Invariants: never two processes, no start after a stop, and a daemon that is down restarts.
    #[test]
    fn at_most_one_daemon_runs_and_it_is_restarted(steps in prop::collection::vec((events(), 0..20_u64, any::<bool>()), 1..120), two in any::<bool>()) {
        let mut lab = if two { Lab::two_step(false) } else { Lab::in_secret() };
        let mut alive = false;
        let mut queue = Vec::new();
        for (event, wait, dies) in steps {
            lab.now += Duration::from_secs(wait);
            queue.push(event);
            if alive && dies {
                alive = false;
                queue.push(DaemonEvent::Exited);
            }
            while let Some(event) = queue.pop() {
                for action in lab.on(event) {
                    match action {
                        DaemonAction::Spawn => {
                            prop_assert!(!alive, "two at once");
                            alive = true;
                            queue.push(DaemonEvent::Spawned);
                        }
                        DaemonAction::Kill | DaemonAction::Terminate if alive => {
                            alive = false;
                            queue.push(DaemonEvent::Exited);
                        }
                        DaemonAction::DisconnectControl => queue.push(DaemonEvent::Auth(AuthEvent::Left)),
                        DaemonAction::Write(write) => queue.push(DaemonEvent::Auth(AuthEvent::Written(write))),
                        DaemonAction::GiveUp(_) => return Ok(()),
                        _ => {}
                    }
                }
            }
        }
        for _ in 0..40 {
            lab.now += SECOND;
            alive |= lab.on(DaemonEvent::Tick).contains(&DaemonAction::Spawn);
        }
        prop_assert!(alive || !lab.machine.answered, "{:?}", lab.machine);
        lab.on(DaemonEvent::Stop { grace: SECOND });
        lab.on(DaemonEvent::Exited);
        prop_assert_eq!(lab.phase(), DaemonPhase::Exited);
        prop_assert_eq!(lab.after(SECOND * 100, DaemonEvent::Tick), []);
    }
}

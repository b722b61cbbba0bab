//! Supervision of a scripted tailscaled: a real child process that serves HTTP on a real socket.

mod without_secret;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::ready;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::scripted_tailscaled::append;
use kit::wait::{eventually_async, until_async, wait_for_value};
use tailyard::model::base::netmap::{Fqdn, NetMap};
use tailyard::model::controller::workload::identity::DeviceId;
use tailyard::model::tailnet::state::Content;
use tailyard::model::tailnet::supervise::state_backup::StateBackup;
use tailyard::model::tailnet::supervise::{DaemonPhase, DaemonSettings, Login, Secret, StateStore, StateWrite, TwoStep};
use tailyard::proxy::tailnet::daemon::state_backup::Reach;
use tailyard::proxy::tailnet::daemon::{DaemonHandle, DaemonInputs, DaemonState, NeverStarted, StateRequest, daemon};
use tailyard::runtime::tasks::{self, Stopper};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const DEADLINE: Duration = Duration::from_secs(20);
/// Time limit for immediate effects on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A scripted daemon and its supervisor.
struct Lab {
    dir: tempfile::TempDir,
    daemon: DaemonHandle,
    keys: watch::Sender<Option<Secret>>,
    deleted: watch::Sender<Option<DeviceId>>,
    backups: watch::Sender<StateBackup>,
    /// Whether the Secret is unavailable.
    away: Arc<AtomicBool>,
    writes: mpsc::Receiver<StateRequest>,
    stopper: Stopper,
    task: JoinHandle<Result<(), NeverStarted>>,
}

/// First message of the bus: the state as word and number, and peers by name and last byte of their address.
fn initial(word: &str, number: i64, peers: &[(&str, u8)]) -> String {
    let peers: Vec<String> = peers
        .iter()
        .map(|(name, ip)| format!(r#""k{ip}":{{"NodeID":{ip},"DNSName":"{name}.lab.","TailscaleIPs":["100.64.0.{ip}"]}}"#))
        .collect();
    let own = if number == 6 { r#"["100.64.0.1"]"# } else { "null" };
    let peers = peers.join(",");
    format!(
        r#"{{"Version":"1.102","State":{number},"InitialStatus":{{"BackendState":"{word}","Self":{{"ID":"nMe","DNSName":"me.lab.","TailscaleIPs":{own}}},"Peer":{{{peers}}}}}}}"#
    )
}

/// Directory of a scripted daemon that runs with one peer, `db`, and the settings for it.
fn prepare() -> (tempfile::TempDir, DaemonSettings) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = version ] && exec echo '{{\"cap\":142}}'\nFAKE_DIR={} FAKE_ARGS=\"$*\" exec {}\n",
        dir.path().display(),
        kit::program("scripted-tailscaled").display()
    );
    fs::write(path("tailscaled"), script).expect("written");
    fs::set_permissions(path("tailscaled"), fs::Permissions::from_mode(0o755)).expect("executable");
    fs::write(path("initial"), initial("Running", 6, &[("db", 2)])).expect("written");
    fs::write(path("running"), initial("Running", 6, &[("db", 2)])).expect("written");
    fs::create_dir(path("conf")).expect("made");
    fs::write(path("conf/cap-106.hujson"), r#"{"Version":"alpha0","AuthKey":"old"}"#).expect("written");
    let settings = DaemonSettings {
        tailscaled: path("tailscaled"),
        tailscale: path("tailscaled"),
        socket: path("ts.sock"),
        state: StateStore::KubeSecret { name: "eg-0".into(), dir: Some(dir.path().to_owned()) },
        userspace: true,
        socks5: None,
        http_proxy: None,
        debug_addr: None,
        extra_args: Vec::new(),
        env: BTreeMap::new(),
        login: Login::ConfigDir(path("conf")),
        boot_timeout: Duration::from_secs(5),
        udp_gro_forwarding: false,
        fill_config: false,
        cluster_ips: BTreeSet::new(),
    };
    (dir, settings)
}

impl Lab {
    fn start(dir: tempfile::TempDir, settings: DaemonSettings) -> Self {
        Self::start_from(dir, settings, StateBackup::default(), false)
    }

    /// Starts a replica that resolves no names of peers.
    fn start_without_peers(dir: tempfile::TempDir, settings: DaemonSettings) -> Self {
        Self::start_with(dir, settings, StateBackup::default(), false, false)
    }

    /// Starts with the backup of an earlier container, and with or without the Secret.
    fn start_from(dir: tempfile::TempDir, settings: DaemonSettings, backup: StateBackup, away: bool) -> Self {
        Self::start_with(dir, settings, backup, away, true)
    }

    fn start_with(dir: tempfile::TempDir, settings: DaemonSettings, backup: StateBackup, away: bool, peers: bool) -> Self {
        let ((keys, keys_receiver), (deleted, gone)) = (watch::channel(None), watch::channel(None));
        let (write, writes) = mpsc::channel(4);
        let (backups, copied) = watch::channel(backup);
        let (stopper, stop) = tasks::stop();
        let away = Arc::new(AtomicBool::new(away));
        let is_away = Arc::clone(&away);
        let reach: Reach = Arc::new(move || Box::pin(ready(!is_away.load(Ordering::SeqCst))));
        let inputs = DaemonInputs {
            keys: keys_receiver,
            deleted: Some(gone),
            writes: write,
            backup: copied,
            reach: Some(reach),
            advertise: None,
            outlives: false,
            peers,
        };
        let (daemon, task) = daemon(settings, inputs, stop);
        Self { dir, daemon, keys, deleted, backups, away, writes, stopper, task: tokio::spawn(task) }
    }

    /// Starts a daemon and waits until it runs.
    async fn running() -> Self {
        let (dir, settings) = prepare();
        let lab = Self::start(dir, settings);
        lab.phase(DaemonPhase::Running).await;
        lab
    }

    /// Stops the daemon; its directory stays.
    async fn stop(self) -> tempfile::TempDir {
        self.daemon.stop(DEADLINE).await;
        self.stopper.stop();
        timeout(DEADLINE, self.task).await.expect("an end").expect("no panic").expect("ended as asked");
        self.dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn bus(&self, line: &str) {
        append(&self.path("bus"), line);
    }

    async fn state(&self, what: &str, wanted: impl Fn(&DaemonState) -> bool) -> DaemonState {
        wait_for_value(what, DEADLINE, &mut self.daemon.state(), wanted).await
    }

    async fn phase(&self, phase: DaemonPhase) -> DaemonState {
        self.state(&phase.to_string(), |state| state.phase == phase).await
    }

    /// Waits for a netmap in which `name` resolves to these addresses.
    async fn resolves(&self, name: &str, ips: &[&str]) -> Arc<NetMap> {
        let name = Fqdn::new(name).expect("a name");
        let wanted: BTreeSet<_> = ips.iter().map(|ip| ip.parse().expect("an address")).collect();
        let leads = |map: &Option<Arc<NetMap>>| map.as_ref().is_some_and(|map| map.resolve(&name) == wanted);
        let what = format!("{name} resolves to {ips:?}");
        wait_for_value(&what, DEADLINE, &mut self.daemon.netmap(), leads).await.expect("a netmap")
    }

    async fn call(&self, prefix: &str) -> String {
        let look = async || self.lines("calls").into_iter().find(|call| call.starts_with(prefix));
        eventually_async(prefix, DEADLINE, look, Option::is_some).await.expect("found")
    }

    /// Next write to the state Secret, acknowledged.
    async fn written(&mut self) -> StateWrite {
        let request = timeout(DEADLINE, self.writes.recv()).await.expect("a write").expect("the task lives");
        request.done.send(()).expect("awaited");
        request.write
    }
}

#[tokio::test]
async fn netmap_follows_the_ipn_bus() {
    let lab = Lab::running().await;
    lab.resolves("db.lab", &["100.64.0.2"]).await;
    lab.bus(r#"{"PeersChanged":[{"ID":2,"Name":"db.lab.","Addresses":["100.64.0.9/32"]},{"ID":3,"Name":"app.lab.","Addresses":["100.64.0.3/32"]}]}"#);
    lab.resolves("db.lab", &["100.64.0.9"]).await;
    lab.bus(r#"{"PeersRemoved":[2]}"#);
    lab.resolves("db.lab", &[]).await;
    lab.write("initial", &initial("Running", 6, &[("app", 3)]));
    lab.bus(r#"{"SelfChange":{"ID":1,"StableID":"nMe","Name":"me.lab.","Addresses":["100.64.0.7/32"]}}"#);
    let map = lab.resolves("app.lab", &["100.64.0.3"]).await;
    assert!(map.node.is_some());
    let records = async || lab.daemon.netmap().borrow().as_ref().map(|map| map.records.len());
    eventually_async("the DNS records that the bus does not carry", DEADLINE, records, |count| *count == Some(1)).await;
}

#[tokio::test]
async fn command_line_equals_that_of_the_operator() {
    let lab = Lab::running().await;
    let dir = lab.dir.path().display();
    let golden =
        format!("--socket={dir}/ts.sock --state=kube:eg-0 --statedir={dir} --tun=userspace-networking --config={dir}/conf/cap-106.hujson");
    assert_eq!(lab.lines("starts"), [golden]);
    let state = lab.daemon.state().borrow().clone();
    assert_eq!((state.capver, state.restarts), (Some(142), 0));
}

#[tokio::test]
async fn killed_daemon_is_detected_and_restarted() {
    let lab = Lab::running().await;
    let pid = lab.daemon.state().borrow().pid.expect("a process");
    let killed = Instant::now();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("killed");
    let down = lab.state("its death", |state| state.phase != DaemonPhase::Running || state.restarts > 0).await;
    // The goal is a second and milliseconds are usual; a busy machine needs more.
    assert!(killed.elapsed() < AT_ONCE, "seen after {:?}", killed.elapsed());
    assert!(down.last_exit.is_some_and(|how| how.contains("signal: 9")));
    assert!(lab.daemon.netmap().borrow().is_some(), "the last good tailnet stays");
    let again = lab.phase(DaemonPhase::Running).await;
    assert_eq!(again.restarts, 1);
}

#[tokio::test]
async fn crash_loop_is_retried_until_the_daemon_runs() {
    let lab = Lab::running().await;
    lab.write("mode", "crash");
    lab.bus("EXIT 3");
    let looping = lab.state("some crashes", |state| state.restarts >= 3).await;
    assert!(looping.last_exit.is_some_and(|how| how.contains("exit status: 7")), "the newest exit counts");
    lab.write("mode", "");
    lab.phase(DaemonPhase::Running).await;
    assert!(!lab.task.is_finished());
}

#[tokio::test]
async fn silent_daemon_ends_the_task_at_the_boot_timeout() {
    let (dir, mut settings) = prepare();
    settings.boot_timeout = Duration::from_secs(1);
    fs::write(dir.path().join("mode"), "crash").expect("written");
    let lab = Lab::start(dir, settings);
    let ended = timeout(DEADLINE, lab.task).await.expect("an end").expect("no panic");
    assert!(ended.is_err_and(|fault| fault.to_string().contains("TS_BOOT_TIMEOUT")));
}

#[tokio::test]
async fn missing_program_is_reported_and_ends_the_task() {
    for (program, cause) in
        [("/nowhere/tailscaled", "/nowhere/tailscaled: No such file"), ("no-tailscaled", "no-tailscaled: not found in PATH")]
    {
        let (dir, mut settings) = prepare();
        settings.boot_timeout = Duration::from_secs(1);
        settings.tailscaled = program.into();
        let lab = Lab::start(dir, settings);
        let state = lab.state("a fault", |state| state.last_error.is_some()).await;
        assert!(state.last_error.is_some_and(|(kind, text)| kind == "Spawn" && text.contains(cause)));
        let ended = timeout(DEADLINE, lab.task).await.expect("an end").expect("no panic").expect_err("no program").to_string();
        assert!(ended.contains("TS_BOOT_TIMEOUT") && ended.contains(cause), "{ended}");
    }
}

#[tokio::test]
async fn stale_socket_and_slow_start_are_tolerated() {
    let (dir, settings) = prepare();
    drop(std::os::unix::net::UnixListener::bind(&settings.socket).expect("a socket")); // the file stays without a listener
    fs::write(dir.path().join("mode"), "slow").expect("written");
    let lab = Lab::start(dir, settings);
    lab.phase(DaemonPhase::Spawned).await;
    lab.phase(DaemonPhase::Running).await;
    assert_eq!(lab.lines("starts").len(), 1);
}

#[tokio::test]
async fn closed_bus_is_reopened_without_losing_changes() {
    let lab = Lab::running().await;
    let phases = lab.daemon.state();
    lab.write("initial", &initial("Running", 6, &[("db", 4)]));
    lab.bus("CUT");
    lab.resolves("db.lab", &["100.64.0.4"]).await;
    assert_eq!(phases.borrow().phase, DaemonPhase::Running);
    assert_eq!(lab.lines("starts").len(), 1, "the daemon is left alone");
}

#[tokio::test]
async fn bus_consumer_that_fell_behind_resubscribes() {
    let lab = Lab::running().await;
    lab.write("initial", &initial("Running", 6, &[("db", 5)]));
    lab.bus(r#"{"ErrMessage":"IPN bus consumer fell behind; closing watch"}"#);
    lab.resolves("db.lab", &["100.64.0.5"]).await;
    assert!(lab.lines("calls").iter().filter(|call| call.starts_with("GET watch-ipn-bus")).count() >= 2);
}

/// Masks of the subscriptions so far.
fn masks(lab: &Lab) -> BTreeSet<String> {
    let calls = lab.lines("calls");
    calls.iter().filter_map(|call| call.strip_prefix("GET watch-ipn-bus?mask=")).map(|mask| mask.trim().to_owned()).collect()
}

#[tokio::test]
async fn first_message_without_status_selects_the_former_mask_only_before_1_100() {
    for (capver, is_old) in [("138", true), ("141", false), ("148", false)] {
        let (dir, settings) = prepare();
        fs::write(dir.path().join("capver"), capver).expect("written");
        fs::write(dir.path().join("initial"), r#"{"Version":"1","State":2}"#).expect("written");
        let lab = Lab::start(dir, settings);
        let subscriptions = || lab.lines("calls").iter().filter(|call| call.starts_with("GET watch-ipn-bus")).count();
        eventually_async("it subscribes again", DEADLINE, async || subscriptions(), |count| *count >= 2).await;
        lab.write("initial", &initial("Running", 6, &[("db", 2)]));
        lab.bus("CUT");
        lab.phase(DaemonPhase::Running).await;
        assert_eq!(masks(&lab).contains("142"), is_old, "capability version {capver}: {:?}", masks(&lab));
        lab.stop().await;
    }
}

#[tokio::test]
async fn replica_that_resolves_no_names_requests_no_peers() {
    let (dir, settings) = prepare();
    let lab = Lab::start_without_peers(dir, settings);
    lab.phase(DaemonPhase::Running).await;
    lab.bus(r#"{"SelfChange":{"ID":1,"StableID":"nMe","Name":"me.lab.","Addresses":["100.64.0.1/32"]}}"#);
    assert_eq!(lab.call("GET status").await.trim(), "GET status?peers=false");
    let peers = 4096 | 32768;
    let all = masks(&lab);
    assert!(!all.is_empty() && all.iter().all(|mask| mask.parse::<u32>().expect("a mask") & peers == 0), "{all:?}");
}

#[tokio::test]
async fn malformed_bus_line_is_reported_and_skipped() {
    let lab = Lab::running().await;
    lab.bus(r#"{"PeersChanged":[{"ID":2,"Name":"#);
    lab.bus(r#"{"PeersChanged":[{"ID":3,"Name":"app.lab.","Addresses":["100.64.0.3/32"]}]}"#);
    lab.state("the fault", |state| state.last_error.as_ref().is_some_and(|(kind, _)| *kind == "Malformed")).await;
    lab.call("GET status").await;
    assert_eq!(lab.lines("calls").iter().filter(|call| call.starts_with("GET watch-ipn-bus")).count(), 1);
}

#[tokio::test]
async fn failed_auth_key_is_replaced_without_a_restart() {
    let (dir, settings) = prepare();
    fs::write(dir.path().join("initial"), initial("NeedsLogin", 2, &[])).expect("written");
    fs::write(dir.path().join("goodkey"), "new").expect("written");
    let mut lab = Lab::start(dir, settings);
    assert_eq!(lab.written().await, StateWrite::RequestReissue { failed: Secret::new("old") });
    lab.call("POST disconnect-control").await;
    lab.state("the wait", |state| state.login == "waiting for another key").await;
    lab.write("conf/cap-106.hujson", r#"{"Version":"alpha0","AuthKey":"new"}"#);
    assert_eq!(lab.written().await, StateWrite::ClearReissue { identity: false });
    lab.phase(DaemonPhase::Running).await;
    lab.resolves("db.lab", &["100.64.0.2"]).await;
    lab.call("POST start {\"AuthKey\":\"new\"}").await;
    assert_eq!(lab.lines("starts").len(), 1);
}

#[tokio::test]
async fn auth_key_from_the_api_is_used_before_the_mount_updates() {
    let (dir, settings) = prepare();
    fs::write(dir.path().join("initial"), initial("NeedsLogin", 2, &[])).expect("written");
    fs::write(dir.path().join("goodkey"), "newer").expect("written");
    let mut lab = Lab::start(dir, settings);
    assert_eq!(lab.written().await, StateWrite::RequestReissue { failed: Secret::new("old") });
    lab.keys.send(Some(Secret::new("newer"))).expect("taken");
    assert_eq!(lab.written().await, StateWrite::ClearReissue { identity: false });
    lab.phase(DaemonPhase::Running).await;
}

/// headscale leaves the session of a deleted device open.
#[tokio::test]
async fn device_deleted_at_the_control_plane_joins_again() {
    let mut lab = Lab::running().await;
    lab.deleted.send_replace(DeviceId::parse("nOther"));
    lab.write("goodkey", "new");
    lab.resolves("db.lab", &["100.64.0.2"]).await;
    assert_eq!(lab.daemon.state().borrow().restarts, 0, "another device's ID is an earlier one's");
    lab.write("initial", &initial("NeedsLogin", 2, &[]));
    lab.deleted.send_replace(DeviceId::parse("nMe"));
    assert_eq!(lab.written().await, StateWrite::RequestReissue { failed: Secret::new("old") });
    lab.keys.send(Some(Secret::new("new"))).expect("taken");
    assert_eq!(lab.written().await, StateWrite::ClearReissue { identity: false });
    let state = lab.phase(DaemonPhase::Running).await;
    assert_eq!(state.restarts, 1);
}

#[tokio::test]
async fn failed_state_write_is_requested_again() {
    let (dir, settings) = prepare();
    fs::write(dir.path().join("initial"), initial("NeedsLogin", 2, &[])).expect("written");
    let mut lab = Lab::start(dir, settings);
    drop(timeout(DEADLINE, lab.writes.recv()).await.expect("a write").expect("the task lives"));
    assert_eq!(lab.written().await, StateWrite::RequestReissue { failed: Secret::new("old") });
}

#[tokio::test]
async fn daemon_starts_with_the_last_good_config() {
    let lab = Lab::running().await;
    lab.write("conf/cap-106.hujson", "{\"Version\":\"alpha0\",");
    let state = lab.state("the fault", |state| state.config_fault.is_some()).await;
    assert!(state.last_error.is_some_and(|(kind, _)| kind == "Syntax"));
    assert!(!lab.lines("calls").iter().any(|call| call.starts_with("POST reload-config")));
    lab.bus("EXIT 1");
    lab.state("a restart", |state| state.restarts == 1 && state.phase == DaemonPhase::Running).await;
    let copy = lab.path("tailyard-last-good.hujson");
    assert!(lab.lines("starts")[1].ends_with(&format!("--config={}", copy.display())));
    assert_eq!(fs::read_to_string(&copy).expect("a copy"), r#"{"Version":"alpha0","AuthKey":"old"}"#);
    assert_eq!(fs::metadata(&copy).expect("a copy").permissions().mode() & 0o777, 0o600);
    lab.write("conf/cap-106.hujson", r#"{"Version":"alpha0","AuthKey":"mended"}"#);
    lab.call("POST reload-config").await;
    assert!(fs::read_to_string(&copy).expect("a copy").contains("mended"), "the daemon reads the copy");
    lab.state("no fault", |state| state.config_fault.is_none()).await;
}

#[tokio::test]
async fn refused_reload_is_only_reported() {
    let lab = Lab::running().await;
    lab.write("mode", "noreload");
    lab.write("conf/cap-106.hujson", r#"{"Version":"alpha0","Hostname":"other"}"#);
    lab.state("the fault", |state| state.last_error.as_ref().is_some_and(|(kind, _)| *kind == "NotReloaded")).await;
    assert_eq!(lab.daemon.state().borrow().phase, DaemonPhase::Running);
}

#[tokio::test]
async fn missing_config_is_awaited() {
    let (dir, settings) = prepare();
    fs::remove_file(dir.path().join("conf/cap-106.hujson")).expect("removed");
    let lab = Lab::start(dir, settings);
    lab.state("the fault", |state| state.config_fault.is_some()).await;
    lab.write("conf/cap-107.hujson", r#"{"Version":"alpha0"}"#);
    lab.phase(DaemonPhase::Running).await;
}

#[tokio::test]
async fn daemon_ignoring_sigterm_is_killed_after_its_grace_period() {
    let (dir, settings) = prepare();
    fs::write(dir.path().join("mode"), "deaf").expect("written");
    let lab = Lab::start(dir, settings);
    lab.phase(DaemonPhase::Running).await;
    let begin = Instant::now();
    timeout(DEADLINE, lab.daemon.stop(Duration::from_millis(300))).await.expect("killed");
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    lab.stopper.stop();
    assert_eq!(timeout(DEADLINE, lab.task).await.expect("an end").expect("no panic"), Ok(()));
}

#[tokio::test]
async fn stopped_daemon_keeps_its_publications_until_all_are_stopped() {
    let mut lab = Lab::running().await;
    lab.daemon.stop(DEADLINE).await;
    // All tasks share this thread: each runnable task runs before this one continues.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!lab.task.is_finished());
    assert!(lab.daemon.netmap().has_changed().is_ok() && lab.daemon.state().has_changed().is_ok());
    assert_eq!(lab.writes.try_recv().err(), Some(mpsc::error::TryRecvError::Empty));
    lab.stopper.stop();
    assert_eq!(timeout(DEADLINE, lab.task).await.expect("an end").expect("no panic"), Ok(()));
}

#[tokio::test]
async fn hanging_daemon_is_degraded_until_it_resumes() {
    let lab = Lab::running().await;
    let pid = nix::unistd::Pid::from_raw(lab.daemon.state().borrow().pid.expect("a process"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("stopped");
    let mut state = lab.daemon.state();
    timeout(DEADLINE * 2, state.wait_for(|state| state.phase == DaemonPhase::Degraded)).await.expect("noticed").expect("the task lives");
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("going on");
    let state = lab.phase(DaemonPhase::Running).await;
    assert_eq!(state.restarts, 0);
}

#[tokio::test]
async fn shutdown_withdraws_services_then_stops() {
    let services = r#""AdvertiseServices":[],"AdvertiseServicesSet":true"#;
    let routes = r#""AdvertiseRoutes":[],"AdvertiseRoutesSet":true"#;
    for (connector, prefs) in [(false, services.to_owned()), (true, format!("{routes},{services}"))] {
        assert_shutdown(connector, &format!("PATCH prefs {{{prefs}}}")).await;
    }
}

async fn assert_shutdown(connector: bool, patch: &str) {
    let lab = Lab::running().await;
    assert!(lab.daemon.stop_advertising(connector).await.expect("withdrawn"));
    assert_eq!(lab.call("PATCH").await, patch);
    lab.write("conf/cap-106.hujson", r#"{"Version":"alpha0","AdvertiseServices":["svc:a"]}"#);
    timeout(DEADLINE, lab.daemon.stop(DEADLINE * 10)).await.expect("it ends on SIGTERM");
    assert!(!lab.lines("calls").iter().any(|call| call.contains("reload-config")), "the config would advertise again");
    let state = lab.daemon.state().borrow().clone();
    assert_eq!((state.phase, state.restarts), (DaemonPhase::Exited, 0));
}

#[tokio::test]
async fn daemon_ends_with_its_supervisor() {
    let lab = Lab::running().await;
    let pid = lab.daemon.state().borrow().pid.expect("a process");
    lab.task.abort();
    until_async("its end", DEADLINE, async || !PathBuf::from(format!("/proc/{pid}/root")).join("proc").exists()).await;
}

#[tokio::test]
async fn two_step_login_has_no_secret_on_the_command_line() {
    let (dir, mut settings) = prepare();
    let two = TwoStep { auth_key: Some(Secret::new("tskey-x")), hostname: Some("gw".into()), ..TwoStep::default() };
    settings.login = Login::TwoStep(Box::new(two));
    fs::write(dir.path().join("initial"), initial("NeedsLogin", 2, &[])).expect("written");
    fs::write(dir.path().join("goodkey"), "tskey-x").expect("written");
    let lab = Lab::start(dir, settings);
    lab.phase(DaemonPhase::Running).await;
    let prefs = lab.call("PATCH prefs").await;
    assert!(prefs.contains(r#""Hostname":"gw","HostnameSet":true"#) && prefs.contains(r#""WantRunning":true"#), "{prefs}");
    lab.call("POST start {\"AuthKey\":\"tskey-x\"}").await;
    assert!(!lab.lines("starts")[0].contains("tskey-x"));
}

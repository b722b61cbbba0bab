//! Start of a tailscaled while its Secret cannot be read.

use tailyard::model::tailnet::supervise::state_backup::{from_file, to_file};
use tailyard::proxy::tailnet::daemon::state_backup::load;

use super::*;

#[tokio::test]
async fn daemon_without_its_state_secret_starts_from_the_copy() {
    let lab = Lab::running().await;
    let content: Content = [("_machinekey".to_owned(), "key".into())].into();
    lab.backups.send_replace(StateBackup { content: Some(content.clone()), given_back: false });
    lab.write("mode", "away");
    lab.bus("EXIT 3");
    let state = lab.state("a start from the copy", |state| state.phase == DaemonPhase::Running && state.from_file).await;
    assert!(state.restarts >= 2, "the Secret is tried first");
    let file = lab.path("tailscaled.state");
    assert!(lab.lines("starts").last().expect("a start").contains(&format!("--state={}", file.display())));
    assert_eq!(from_file(&fs::read(&file).expect("a file")), Some(content.clone()));
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);

    lab.write("tailscaled.state", "{}");
    lab.bus("EXIT 3");
    lab.state("another start", |now| now.phase == DaemonPhase::Running && now.restarts > state.restarts && now.from_file).await;
    assert_eq!(fs::read(&file).expect("a file"), b"{}", "what it wrote is nowhere else");

    lab.backups.send_replace(StateBackup { content: Some(content), given_back: true });
    lab.write("mode", "");
    lab.bus("EXIT 3");
    lab.state("a start from the Secret", |state| state.phase == DaemonPhase::Running && !state.from_file).await;
}

#[tokio::test]
async fn unavailable_state_secret_is_not_awaited() {
    let lab = Lab::running().await;
    let content: Content = [("_machinekey".to_owned(), "key".into())].into();
    lab.backups.send_replace(StateBackup { content: Some(content.clone()), given_back: false });
    lab.away.store(true, Ordering::SeqCst);
    lab.bus("EXIT 3");
    let state = lab.state("a start from the copy", |state| state.phase == DaemonPhase::Running && state.from_file).await;
    assert_eq!(state.restarts, 1, "the first start is from the copy");
    assert_eq!(from_file(&fs::read(lab.path("tailscaled.state")).expect("a file")), Some(content.clone()));

    lab.backups.send_replace(StateBackup { content: Some(content.clone()), given_back: true });
    lab.bus("EXIT 3");
    lab.state("another start", |now| now.phase == DaemonPhase::Running && now.restarts == 2 && now.from_file).await;

    lab.away.store(false, Ordering::SeqCst);
    lab.bus("EXIT 3");
    lab.state("a start from the Secret", |state| state.phase == DaemonPhase::Running && !state.from_file).await;
}

#[tokio::test]
async fn daemon_with_empty_state_is_restarted_from_the_copy() {
    let lab = Lab::running().await;
    lab.backups.send_replace(StateBackup { content: Some([("_machinekey".to_owned(), "key".into())].into()), given_back: false });
    lab.bus(r#"{"Health":{"Warnings":{"state-store-health":{"WarnableCode":"state-store-health","Severity":"high","Title":"No state"}}}}"#);
    let state = lab.state("a start from the copy", |state| state.phase == DaemonPhase::Running && state.from_file).await;
    assert_eq!(state.restarts, 1);
}

/// The first start of a Pod: no copy exists.
#[tokio::test]
async fn daemon_without_stored_state_is_restarted_until_it_can_read_it() {
    const NO_STORE: &str =
        r#""Health":{"Warnings":{"state-store-health":{"WarnableCode":"state-store-health","Severity":"high","Title":"No state"}}}"#;
    let (dir, settings) = prepare();
    let no_store = initial("NoState", 0, &[]).replacen('{', &format!("{{{NO_STORE},"), 1);
    fs::write(dir.path().join("initial"), no_store).expect("written");
    let lab = Lab::start(dir, settings);
    lab.state("the fault", |state| state.last_error.as_ref().is_some_and(|(kind, _)| *kind == "StateStore")).await;
    lab.state("three restarts", |state| state.restarts >= 3).await;
    lab.write("initial", &initial("Running", 6, &[("db", 2)]));
    lab.phase(DaemonPhase::Running).await;
}

#[tokio::test]
async fn next_container_starts_from_the_saved_state() {
    let (dir, mut settings) = prepare();
    settings.fill_config = true;
    let (used, copy) = (settings.state_file().expect("a file"), settings.state_copy().expect("a copy"));
    assert_eq!(used.parent(), Some(&*dir.path().join("conf")), "in the directory that outlives the container");
    let content: Content = [("_machinekey".to_owned(), "key".into())].into();
    fs::write(copy, to_file(&content)).expect("written");
    let lab = Lab::start_from(dir, settings.clone(), load(&settings), true);
    let state = lab.state("a start from the copy", |state| state.phase == DaemonPhase::Running && state.from_file).await;
    assert_eq!((state.restarts, from_file(&fs::read(&used).expect("a file"))), (0, Some(content)), "the Secret is not waited for");
    let (dir, written) = (lab.stop().await, r#"{"_machinekey":"bmV3"}"#);

    fs::write(&used, written).expect("written");
    let lab = Lab::start_from(dir, settings.clone(), load(&settings), false);
    lab.state("a start from the file", |state| state.phase == DaemonPhase::Running && state.from_file).await;
    assert_eq!(fs::read(&used).expect("a file"), written.as_bytes(), "the Secret lacks what it holds");
    lab.backups.send_replace(StateBackup { given_back: true, ..load(&settings) });
    lab.bus("EXIT 3");
    lab.state("a start from the Secret", |state| state.phase == DaemonPhase::Running && !state.from_file).await;
    assert!(!used.exists(), "it would be older than the Secret");
}

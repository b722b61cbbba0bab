use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// Longer than any wait; free in paused time.
const LONG: Duration = Duration::from_hours(1);

fn place() -> (TempDir, PathBuf) {
    let place = TempDir::new().expect("tempdir");
    let path = place.path().join("state.json");
    (place, path)
}

fn start() -> Start {
    Start { capver: Some(138), pod_uid: Some("u-1".into()), auth_key: String::new() }
}

fn rhythm() -> WriteIntervals {
    WriteIntervals { retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(30), 0.2).expect("bounds"), look: POLL_INTERVAL }
}

fn report(path: PathBuf) -> Ledger {
    let (ledger, reporter) = new(Store::File(path), start(), rhythm());
    tokio::spawn(reporter.run());
    ledger
}

fn content(path: &Path) -> BTreeMap<String, String> {
    serde_json::from_slice(&std::fs::read(path).expect("written")).expect("an object of text")
}

fn object(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn written(ledger: &Ledger) {
    let health = ledger.health();
    assert!(timeout(LONG, ledger.written()).await.is_ok(), "never written: {:?}", health.borrow());
}

/// Waits for a write after this number of writes.
async fn written_after(ledger: &Ledger, writes: u64) {
    let again = timeout(LONG, async { ledger.health().wait_for(|health| health.writes > writes).await.map(drop) });
    again.await.expect("in time").expect("running");
}

#[tokio::test(start_paused = true)]
async fn start_clears_old_status_keys_only() {
    let (_place, path) = place();
    std::fs::write(&path, r#"{"device_id":"n1","egress-services":"{}","_machinekey":"m","pod_uid":"u-0"}"#).expect("file");
    let ledger = report(path.clone());
    written(&ledger).await;
    let begun = object(&[("_machinekey", "m"), ("device_id", "n1"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]);
    assert_eq!(content(&path), begun);
    let again = report(path.clone());
    written(&again).await;
    assert_eq!((content(&path), again.health().borrow().writes), (begun, 0), "nothing is written that is there");
}

#[tokio::test(start_paused = true)]
async fn only_changes_are_written_at_most_once_a_second() {
    let (_place, path) = place();
    let ledger = report(path.clone());
    written(&ledger).await;
    let before = Instant::now();
    for round in 0..=300 {
        ledger.set("egress-services", round.to_string());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    written(&ledger).await;
    assert_eq!(content(&path)["egress-services"], "300");
    let writes = ledger.health().borrow().writes;
    assert!(writes <= before.elapsed().as_secs() + 2, "{writes} writes in {:?}", before.elapsed());
    ledger.set("egress-services", "300");
    written(&ledger).await;
    assert_eq!(ledger.health().borrow().writes, writes);
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_retried_and_written_once() {
    let place = TempDir::new().expect("tempdir");
    let path = place.path().join("not-yet/state.json");
    let ledger = report(path.clone());
    ledger.set("device_id", "n1");
    let mut health = ledger.health();
    timeout(LONG, health.wait_for(|health| health.fault.is_some())).await.expect("in time").expect("running");
    let since = health.borrow().fault.as_ref().map(|fault| (fault.reason, fault.since));
    tokio::time::sleep(LONG).await;
    ledger.set("device_id", "n2");
    assert_eq!(health.borrow().fault.as_ref().map(|fault| (fault.reason, fault.since)), since);
    assert_eq!(since.map(|(kind, _)| kind), Some("Unwritable"));
    std::fs::create_dir(place.path().join("not-yet")).expect("directory");
    written(&ledger).await;
    assert_eq!(content(&path), object(&[("device_id", "n2"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]));
    assert_eq!((health.borrow().fault.clone(), health.borrow().writes), (None, 1), "the start and the wish, in one write");
}

#[tokio::test(start_paused = true)]
async fn malformed_state_file_is_not_overwritten() {
    let (_place, path) = place();
    std::fs::write(&path, "[1]").expect("file");
    let ledger = report(path.clone());
    let mut health = ledger.health();
    timeout(LONG, health.wait_for(|health| health.fault.is_some())).await.expect("in time").expect("running");
    assert_eq!(health.borrow().fault.as_ref().map(|fault| fault.reason), Some("Malformed"));
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "[1]");
}

#[tokio::test(start_paused = true)]
async fn forgotten_identity_is_cleared_and_a_new_device_written() {
    let (_place, path) = place();
    std::fs::write(&path, r#"{"_current-profile":"profile-1","profile-1":"{}","_profiles":"p","_machinekey":"m"}"#).expect("file");
    let ledger = report(path.clone());
    ledger.set("device_id", "n1");
    ledger.set("reissue_authkey", "old");
    written(&ledger).await;
    assert_eq!(content(&path)["reissue_authkey"], "old");
    ledger.forget_identity();
    written(&ledger).await;
    assert_eq!(content(&path), object(&[("pod_uid", "u-1"), ("tailscale_capver", "138")]));
    ledger.set("device_id", "n1");
    written(&ledger).await;
    assert_eq!(content(&path)["device_id"], "n1", "the same value is written anew after it was forgotten");
}

#[tokio::test(start_paused = true)]
async fn deleted_state_file_is_written_again_in_full() {
    let (_place, path) = place();
    let ledger = report(path.clone());
    ledger.set("device_id", "n1");
    written(&ledger).await;
    let (whole, writes) = (content(&path), ledger.health().borrow().writes);
    tokio::time::sleep(LONG).await;
    assert_eq!(ledger.health().borrow().writes, writes, "looking writes nothing");
    std::fs::remove_file(&path).expect("removed");
    written_after(&ledger, writes).await;
    assert_eq!(content(&path), whole);
}

#[tokio::test(start_paused = true)]
async fn keys_lost_from_an_empty_file_are_written_again_soon() {
    let (_place, path) = place();
    let ledger = report(path.clone());
    written(&ledger).await;
    let lost = Instant::now();
    std::fs::write(&path, r#"{"_machinekey":"m"}"#).expect("file");
    written_after(&ledger, 1).await;
    assert_eq!(content(&path), object(&[("_machinekey", "m"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]));
    assert!(lost.elapsed() < Duration::from_secs(10), "virtual time: {:?}", lost.elapsed());
}

#[tokio::test(start_paused = true)]
async fn added_auth_key_of_the_user_stays() {
    let (_place, path) = place();
    let ledger = report(path.clone());
    ledger.remove("authkey");
    written(&ledger).await;
    let mut wanted = content(&path);
    wanted.insert("authkey".into(), "k".into());
    std::fs::write(&path, serde_json::to_vec(&wanted).expect("text")).expect("file");
    tokio::time::sleep(LONG).await;
    assert_eq!(content(&path), wanted);
}

#[tokio::test(start_paused = true)]
async fn writer_flushes_and_ends_with_its_handles() {
    let (_place, path) = place();
    let (ledger, reporter) = new(Store::File(path.clone()), start(), rhythm());
    let running = tokio::spawn(reporter.run());
    written(&ledger).await;
    ledger.set("device_id", "n1");
    drop(ledger);
    timeout(LONG, running).await.expect("in time").expect("no panic");
    assert_eq!(content(&path)["device_id"], "n1");
}

//! State Secret: contents, frequency of writes, and behaviour while writes fail.

use std::collections::BTreeMap;
use std::time::Duration;

use tailyard::edge::kube::{StateSecret, Verb};
use tailyard::model::base::backoff::Backoff;
use tailyard::model::tailnet::state::{Start, consistent};
use tailyard::proxy::state_secret::writer::{self, Ledger, Store, WriteIntervals, WriterHealth};
use tokio::time::timeout;

use kit::apiserver::{Cluster, DEADLINE, cluster};
use kit::wait::eventually_async;

const NAME: &str = "eg-0";

async fn may_write(cluster: &Cluster) {
    cluster.allow("secrets", &[NAME], &["get", "patch", "update"]).await;
}

fn rhythm() -> WriteIntervals {
    let retry = Backoff::new(Duration::from_millis(100), Duration::from_secs(1), 0.2).expect("bounds");
    WriteIntervals { retry, look: Duration::from_millis(300) }
}

async fn report(cluster: &Cluster) -> Ledger {
    let store = Store::Secret(StateSecret::new(cluster.pod().await, NAME));
    let start = Start { capver: Some(138), pod_uid: Some("u-1".into()), auth_key: String::new() };
    let (ledger, reporter) = writer::new(store, start, rhythm());
    tokio::spawn(reporter.run());
    ledger
}

async fn written(ledger: &Ledger) {
    assert!(timeout(DEADLINE, ledger.written()).await.is_ok(), "never written: {:?}", ledger.health().borrow());
}

async fn fails(ledger: &Ledger, kinds: &[&str]) -> WriterHealth {
    let holds = |health: &WriterHealth| health.fault.as_ref().is_some_and(|fault| kinds.contains(&fault.reason));
    let found = timeout(DEADLINE, async { ledger.health().wait_for(holds).await.expect("running").clone() }).await;
    found.unwrap_or_else(|_| panic!("never {kinds:?}: {:?}", ledger.health().borrow()))
}

fn object(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn only_changes_are_written_and_other_keys_stay() {
    cluster(async |cluster| {
        may_write(&cluster).await;
        let before = [("egress-services", "{\"old\":1}"), ("device_id", "n0"), ("_machinekey", "m"), ("https_endpoint", "x")];
        cluster.make_secret(NAME, &before).await;
        let ledger = report(&cluster).await;
        written(&ledger).await;
        let begun = object(&[("_machinekey", "m"), ("device_id", "n0"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]);
        assert_eq!(cluster.secret(NAME).await.0, begun);
        assert_eq!(cluster.count("patch", "secrets"), 1);
        let status = include_str!("../../golden/status/egress.json").trim_end();
        ledger.set("egress-services", status);
        ledger.set("device_id", "n0");
        written(&ledger).await;
        let (values, version) = cluster.secret(NAME).await;
        assert_eq!((values["egress-services"].as_str(), values["_machinekey"].as_str()), (status, "m"));
        ledger.set("egress-services", status);
        written(&ledger).await;
        let again = report(&cluster).await;
        again.set("egress-services", status);
        written(&again).await;
        assert_eq!(cluster.secret(NAME).await.1, version, "nothing is written that is there");
        assert_eq!((cluster.count("patch", "secrets"), cluster.count("update", "secrets")), (2, 0));
        assert!(cluster.managers(NAME).await.contains(&"tailscale-container".to_owned()));
    });
}

#[test]
fn pending_state_is_written_once_after_an_api_outage() {
    cluster(async |mut cluster| {
        may_write(&cluster).await;
        cluster.make_secret(NAME, &[]).await;
        let ledger = report(&cluster).await;
        written(&ledger).await;
        let before = cluster.count("patch", "secrets");
        cluster.kill_server();
        for round in 0..=50 {
            ledger.set("egress-services", round.to_string());
        }
        let health = fails(&ledger, &["Unreachable", "Timeout"]).await;
        assert!(health.fault.expect("a fault").message.contains("is not affected"));
        ledger.set("egress-services", "the last");
        cluster.start_server().await;
        written(&ledger).await;
        assert_eq!(cluster.secret(NAME).await.0["egress-services"], "the last");
        assert_eq!(cluster.count("patch", "secrets"), before + 1);
        assert_eq!(ledger.health().borrow().fault, None);
    });
}

#[test]
fn frozen_api_server_does_not_block_and_the_last_value_is_written() {
    cluster(async |cluster| {
        may_write(&cluster).await;
        cluster.make_secret(NAME, &[]).await;
        let ledger = report(&cluster).await;
        written(&ledger).await;
        cluster.freeze_server();
        let begin = std::time::Instant::now();
        ledger.set("device_fqdn", "first.");
        ledger.set("device_fqdn", "last.");
        assert!(begin.elapsed() < Duration::from_secs(2));
        fails(&ledger, &["Timeout"]).await;
        cluster.thaw_server();
        written(&ledger).await;
        assert_eq!(cluster.secret(NAME).await.0["device_fqdn"], "last.");
    });
}

#[test]
fn start_without_api_server_writes_the_full_state_later() {
    cluster(async |mut cluster| {
        may_write(&cluster).await;
        cluster.make_secret(NAME, &[("https_endpoint", "old")]).await;
        let pod = cluster.pod().await;
        cluster.kill_server();
        let (ledger, reporter) = writer::new(Store::Secret(StateSecret::new(pod, NAME)), Start::default(), rhythm());
        tokio::spawn(reporter.run());
        ledger.set("device_id", "n1");
        fails(&ledger, &["Unreachable"]).await;
        cluster.start_server().await;
        written(&ledger).await;
        assert_eq!(cluster.secret(NAME).await.0, object(&[("device_id", "n1")]));
        assert_eq!(cluster.count("patch", "secrets"), 1);
    });
}

#[test]
fn missing_permission_writes_nothing_and_is_named() {
    cluster(async |cluster| {
        cluster.make_secret(NAME, &[]).await;
        let (_, untouched) = cluster.secret(NAME).await;
        let ledger = report(&cluster).await;
        ledger.set("device_id", "n1");
        let fault = fails(&ledger, &["Forbidden"]).await.fault.expect("a fault");
        for verb in ["get", "update", "patch"] {
            let rule = format!(r#"{{apiGroups: [""], resources: ["secrets"], resourceNames: ["eg-0"], verbs: ["{verb}"]}}"#);
            assert!(fault.message.contains(&rule), "{}", fault.message);
        }
        let permissions = cluster.pod().await.permissions(NAME).await;
        assert!(permissions.denies(Verb::Patch) && permissions.denies(Verb::Create) && permissions.unknown.is_empty());
        assert_eq!(cluster.secret(NAME).await.1, untouched);
        may_write(&cluster).await;
        written(&ledger).await;
        assert_eq!(cluster.secret(NAME).await.0["device_id"], "n1");
    });
}

#[test]
fn missing_secret_is_awaited_and_a_recreated_one_is_refilled() {
    cluster(async |cluster| {
        may_write(&cluster).await;
        let ledger = report(&cluster).await;
        ledger.set("device_id", "n1");
        fails(&ledger, &["NotFound"]).await;
        cluster.make_secret(NAME, &[]).await;
        written(&ledger).await;
        cluster.delete_secret(NAME).await;
        ledger.set("device_fqdn", "a.");
        fails(&ledger, &["NotFound"]).await;
        cluster.make_secret(NAME, &[]).await;
        written(&ledger).await;
        let whole = object(&[("device_fqdn", "a."), ("device_id", "n1"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]);
        assert_eq!(cluster.secret(NAME).await.0, whole);
    });
}

#[test]
fn secret_recreated_between_writes_is_refilled() {
    cluster(async |cluster| {
        may_write(&cluster).await;
        cluster.make_secret(NAME, &[]).await;
        let ledger = report(&cluster).await;
        ledger.set("device_id", "n1");
        written(&ledger).await;
        let whole = object(&[("device_id", "n1"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]);
        assert_eq!(cluster.secret(NAME).await.0, whole);
        cluster.delete_secret(NAME).await;
        cluster.make_secret(NAME, &[("_machinekey", "m")]).await;
        let found =
            eventually_async("filled", DEADLINE, async || cluster.secret(NAME).await.0, |found| found.contains_key("device_id")).await;
        assert_eq!(found, [whole, object(&[("_machinekey", "m")])].into_iter().flatten().collect());
    });
}

#[test]
fn keys_lost_while_tailscaled_fills_an_empty_secret_are_written_again() {
    cluster(async |cluster| {
        may_write(&cluster).await;
        cluster.make_secret(NAME, &[]).await;
        let ledger = report(&cluster).await;
        written(&ledger).await;
        let whole = cluster.secret(NAME).await.0;
        cluster.replace_data(NAME, &[("_machinekey", "m")]).await;
        let filled = [whole, object(&[("_machinekey", "m")])].into_iter().flatten().collect();
        eventually_async("filled", DEADLINE, async || cluster.secret(NAME).await.0, |found| *found == filled).await;
    });
}

#[test]
fn auth_key_reissue_ends_with_another_device() {
    cluster(async |cluster| {
        may_write(&cluster).await;
        let state = [("_machinekey", "m"), ("_profiles", "p"), ("_current-profile", "profile-1a2b"), ("profile-1a2b", "{}")];
        cluster.make_secret(NAME, &state).await;
        let ledger = report(&cluster).await;
        ledger.set("device_id", "n1");
        ledger.set("reissue_authkey", "failed");
        written(&ledger).await;
        let secret = StateSecret::new(cluster.pod().await, NAME);
        let look = async || secret.get().await.expect("readable").expect("there").keys().cloned().collect::<Vec<_>>();
        assert!(look().await.contains(&"reissue_authkey".to_owned()));
        ledger.forget_identity();
        written(&ledger).await;
        let remaining = eventually_async("forgotten", DEADLINE, look, |keys| !keys.contains(&"device_id".to_owned())).await;
        assert_eq!(remaining, ["pod_uid", "tailscale_capver"]);
        assert!(consistent(&cluster.secret(NAME).await.0.into_iter().map(|(key, value)| (key, value.into_bytes().into())).collect()));
    });
}

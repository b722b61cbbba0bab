//! Control plane clients: against the stand-in of Tailscale's hosted API with its faults, and against a real headscale.

mod headscale_v2;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tailyard::edge::control::{ClientCredentials, ControlClient, ControlError, ControlSettings, IdentityToken, Rate};
use tailyard::model::controller::workload::control_plane::Capabilities;
use tailyard::model::controller::workload::identity::{Binding, DeviceId, DeviceLabel, DeviceName, ExpectedDevice, KeyId, KeyMint};
use tailyard::model::tailnet::supervise::Secret;

use kit::hosted::{CLIENT, DOMAIN, Fault, Hosted};
use kit::tailnet::Tailnet;

fn settings(url: String, credentials: ClientCredentials) -> ControlSettings {
    ControlSettings { url, credentials, ca: None, rate: Rate { burst: 1000, per_second: 1000.0 }, deadline: Duration::from_secs(20) }
}

fn oauth(secret: &str) -> ClientCredentials {
    ClientCredentials::OAuth { client_id: CLIENT.0.to_owned(), client_secret: Secret::new(secret) }
}

async fn start() -> (Hosted, ControlClient) {
    let hosted = Hosted::start().await;
    let control = ControlClient::new(settings(hosted.url(), oauth(CLIENT.1))).expect("a client");
    (hosted, control)
}

fn tags() -> Vec<String> {
    vec!["tag:k8s".to_owned()]
}

fn id(text: &str) -> DeviceId {
    DeviceId::parse(text).expect("letters and digits")
}

fn expected(hostname: &str) -> ExpectedDevice {
    ExpectedDevice { hostnames: vec![hostname.to_owned()], tags: tags(), binding: Binding::RecordedByName, created: None }
}

fn mint(id: KeyId, created: i64) -> KeyMint {
    KeyMint { id, created, tags: tags(), hostname: "eg-0".to_owned(), previous: None, previous_created: None }
}

#[tokio::test]
async fn auth_key_is_single_use_and_expires_soon() {
    let (hosted, control) = start().await;
    control.probe().await.expect("allowed");
    let key = control.mint_key(&tags(), "eg/0 (default)").await.expect("a key");
    assert_eq!(hosted.keys()[key.id.as_str()], key.key.reveal());
    let wanted = hosted.key_requests()[0].clone();
    let create = &wanted["capabilities"]["devices"]["create"];
    assert_eq!((&create["reusable"], &create["ephemeral"], &create["preauthorized"]), (&false.into(), &false.into(), &true.into()));
    assert_eq!((&create["tags"][0], &wanted["expirySeconds"]), (&"tag:k8s".into(), &3600.into()));
    assert_eq!(wanted["description"], "eg-0 -default-");
    control.revoke_key(&key.id).await.expect("revoked");
    assert!(hosted.keys().is_empty());
}

#[tokio::test]
async fn deleting_absent_devices_and_keys_succeeds() {
    let (hosted, control) = start().await;
    hosted.add_device("nDev", "eg-0");
    control.delete_device(&id("nDev"), &expected("eg-0")).await.expect("deleted");
    control.delete_device(&id("nDev"), &expected("eg-0")).await.expect("gone already");
    control.revoke_key(&KeyId::parse("kNone").expect("an ID")).await.expect("never was");
    assert!(hosted.devices().is_empty());
}

#[tokio::test]
async fn device_of_another_host_or_other_tags_is_not_deleted() {
    let (hosted, control) = start().await;
    hosted.add_device("nVictim", "payroll-0");
    let other_tags = ExpectedDevice { tags: vec!["tag:other".to_owned()], ..expected("payroll-0") };
    for expected in [expected("eg-0"), other_tags] {
        let refused = control.delete_device(&id("nVictim"), &expected).await.expect_err("not ours");
        assert!(refused.reason() == "Mismatch" && refused.to_string().contains("nVictim"), "{refused}");
    }
    assert_eq!(hosted.devices(), BTreeSet::from(["nVictim".to_owned()]));
    let found = control.device(&id("nVictim"), &expected("payroll-0")).await.expect("an answer").expect("a device");
    assert_eq!(found.tags, tags());
    assert!(hosted.all_calls().iter().all(|call| !call.starts_with("DELETE")), "{:?}", hosted.all_calls());
}

#[tokio::test]
async fn device_has_name_and_addresses_and_is_bound_to_its_key_by_time() {
    let (hosted, control) = start().await;
    hosted.add_device("nOld", "eg-0");
    let old = control.device(&id("nOld"), &expected("eg-0")).await.expect("an answer").expect("a device");
    // Both times are whole seconds of the control plane's clock.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let key = control.mint_key(&tags(), "eg-0").await.expect("a key");
    let created = key.created.expect("a time");
    let mint = mint(key.id, created.as_second());
    hosted.add_device("nNew", "eg-0");
    let minted = |tags: Vec<String>| ExpectedDevice { binding: Binding::Minted(KeyMint { tags, ..mint.clone() }), ..expected("eg-0") };
    let found = control.device(&id("nNew"), &minted(tags())).await.expect("an answer").expect("a device");
    let whole = DeviceName::parse(&format!("eg-0.{DOMAIN}")).expect("a name");
    assert_eq!((&found.name, found.addresses.texts()), (&DeviceLabel::Whole(whole), hosted.addresses("nNew")));
    assert!(found.addresses.texts() != old.addresses.texts() && found.addresses.iter().count() == 2, "{found:?}");
    for (device, tags) in [("nOld", tags()), ("nNew", vec!["tag:other".to_owned()])] {
        let refused = control.device(&id(device), &minted(tags)).await.expect_err("not of this key");
        assert_eq!(refused.reason(), "Mismatch", "{device}");
    }
}

#[tokio::test]
async fn concurrent_calls_share_one_access_token() {
    let (hosted, control) = start().await;
    let calls: Vec<_> = (0..20).map(|_| control.clone()).map(|control| async move { control.mint_key(&tags(), "x").await }).collect();
    for made in futures_util::future::join_all(calls).await {
        made.expect("a key");
    }
    assert_eq!((hosted.calls("POST /api/v2/oauth/token"), hosted.keys().len()), (1, 20));
}

#[tokio::test]
async fn revoked_access_token_is_replaced() {
    let (hosted, control) = start().await;
    control.mint_key(&tags(), "x").await.expect("a key");
    hosted.revoke_tokens();
    assert_eq!(control.mint_key(&tags(), "x").await.expect_err("the old token").reason(), "Denied");
    control.mint_key(&tags(), "x").await.expect("with a new token");
    hosted.set_token_life(0);
    hosted.revoke_tokens();
    drop(control.mint_key(&tags(), "x").await);
    let before = hosted.calls("POST /api/v2/oauth/token");
    for _ in 0..2 {
        control.mint_key(&tags(), "x").await.expect("a key");
    }
    assert_eq!(hosted.calls("POST /api/v2/oauth/token"), before + 2, "one that ends at once is never used twice");
}

#[tokio::test]
async fn wrong_credentials_error_names_the_secret() {
    let hosted = Hosted::start().await;
    let control = ControlClient::new(settings(hosted.url(), oauth("wrong"))).expect("a client");
    let error = control.probe().await.expect_err("refused");
    assert_eq!(error.reason(), "Denied");
    assert!(error.to_string().contains("API token invalid; check ID and secret of the OAuth client"), "{error}");
}

#[tokio::test]
async fn refused_call_names_the_scope_that_it_needs() {
    let (hosted, control) = start().await;
    let scope = |error: ControlError| {
        let text = error.to_string();
        text.split("write access to ").nth(1).and_then(|rest| Some(rest.split_once(',')?.0.to_owned())).unwrap_or(text)
    };
    control.probe_services().await.expect("a missing Tailscale Service is no error");
    for status in [404, 400, 403] {
        hosted.deny("GET /api/v2/tailnet/-/vip-services", status);
        control.probe().await.expect("keys and devices");
        assert_eq!(control.capabilities(), Capabilities::TAILSCALE, "{status}");
    }
    assert_eq!(scope(control.probe_services().await.expect_err("denied")), "General/Services");
    assert_eq!(scope(control.services().await.expect_err("denied")), "General/Services");
    hosted.deny_nothing();
    hosted.deny("GET /api/v2/device/", 403);
    assert_eq!(scope(control.probe().await.expect_err("denied")), "Devices/Core");
    hosted.deny("POST /api/v2/tailnet/-/keys", 403);
    assert_eq!(scope(control.mint_key(&tags(), "x").await.expect_err("denied")), "Keys/Auth Keys");
}

#[tokio::test]
async fn retry_after_delays_every_call() {
    let (hosted, control) = start().await;
    control.probe().await.expect("allowed");
    hosted.fail([Fault::Status(429, Some(1))]);
    let paused = control.mint_key(&tags(), "x").await.expect_err("too many");
    assert_eq!(paused.retry_after(), Some(Duration::from_secs(1)));
    let calls = hosted.all_calls().len();
    let still = control.clone().delete_device(&id("n1"), &expected("eg-0")).await.expect_err("paused");
    assert!(still.retry_after().is_some_and(|rest| rest <= Duration::from_secs(1)), "{still}");
    assert_eq!(hosted.all_calls().len(), calls, "nothing is sent during the pause");
    let after_the_pause = async {
        while let Err(error) = control.mint_key(&tags(), "x").await {
            tokio::time::sleep(error.retry_after().expect("no fault but the pause")).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), after_the_pause).await.expect("the pause ends");
    assert!(hosted.all_calls().len() > calls, "asked once the pause is over");
}

#[tokio::test]
async fn response_errors_have_different_reasons() {
    let (hosted, control) = start().await;
    control.probe().await.expect("allowed");
    let faults = [
        (Fault::Status(500, None), "Refused"),
        (Fault::Status(403, None), "Denied"),
        (Fault::Garbage, "Answer"),
        (Fault::Cut, "Unreachable"),
        (Fault::Status(503, Some(0)), "Paused"),
    ];
    for (fault, reason) in faults {
        hosted.fail([fault.clone()]);
        assert_eq!(control.mint_key(&tags(), "x").await.expect_err("a fault").reason(), reason, "{fault:?}");
    }
    let mut slow = settings(hosted.url(), oauth(CLIENT.1));
    slow.deadline = Duration::from_millis(200);
    let hasty = ControlClient::new(slow).expect("a client");
    hosted.fail([Fault::Slow(Duration::from_secs(5))]);
    assert_eq!(hasty.probe().await.expect_err("slow").reason(), "Deadline");
    let unreachable_client = ControlClient::new(settings("http://127.0.0.1:1".to_owned(), oauth(CLIENT.1))).expect("a client");
    assert_eq!(unreachable_client.probe().await.expect_err("unreachable").reason(), "Unreachable");
}

#[tokio::test]
async fn requests_respect_the_rate_limit() {
    let hosted = Hosted::start().await;
    let mut settings = settings(hosted.url(), oauth(CLIENT.1));
    settings.rate = Rate { burst: 2, per_second: 10.0 };
    let control = ControlClient::new(settings).expect("a client");
    let begin = Instant::now();
    for _ in 0..5 {
        control.revoke_key(&KeyId::parse("k").expect("an ID")).await.expect("gone");
    }
    assert!(begin.elapsed() >= Duration::from_millis(390), "six requests with the token's, two at once: {:?}", begin.elapsed());
}

#[tokio::test]
async fn service_account_token_replaces_the_client_secret() {
    let hosted = Hosted::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("token");
    let identity = |token| ClientCredentials::Identity { client_id: CLIENT.0.to_owned(), token };
    let control = ControlClient::new(settings(hosted.url(), identity(IdentityToken::File(path.clone())))).expect("a client");
    assert_eq!(control.probe().await.expect_err("no token yet").reason(), "Identity");
    std::fs::write(&path, "a.b.c\n").expect("written");
    assert_eq!(control.probe().await.expect_err("not believed").reason(), "Denied");
    hosted.accept_jwt("a.b.c");
    control.probe().await.expect("allowed");
    let (sender, cell) = tokio::sync::watch::channel(None);
    let watched = ControlClient::new(settings(hosted.url(), identity(IdentityToken::Watch(cell)))).expect("a client");
    assert_eq!(watched.probe().await.expect_err("no token yet").reason(), "Identity");
    sender.send_replace(Some(Secret::new("a.b.c")));
    watched.probe().await.expect("allowed");
}

#[tokio::test]
async fn invalid_client_settings_are_rejected() {
    for url in ["", "hs.lab", "ftp://hs.lab"] {
        assert_eq!(ControlClient::new(settings(url.to_owned(), oauth("x"))).expect_err("no URL").reason(), "Settings", "{url}");
    }
    let mut wanted = settings("https://hs.lab".to_owned(), oauth("x"));
    wanted.ca = Some("/nowhere/ca.pem".into());
    let error = ControlClient::new(wanted).expect_err("no file");
    assert!(matches!(error, ControlError::Client(_)) && error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

#[test]
fn headscale_mints_working_keys_and_deletes_devices() {
    let tailnet = Tailnet::start([10, 96, 7]);
    let api_key = tailnet.headscale(&["apikeys", "create", "-e", "1h"]).lines().last().expect("a key").trim().to_owned();
    let machine = tailnet.machine("egress");
    let tailscaled = machine.tailscaled();
    let client = |key: &str| {
        let credentials = ClientCredentials::Headscale { api_key: Secret::new(key) };
        let ca = Some(tailnet.dir().join("ca.crt"));
        ControlClient::new(ControlSettings { ca, ..settings(tailnet.control_url(), credentials) }).expect("a client")
    };
    let (wrong, control) = (client("hskey-api-wrong"), client(&api_key));
    let refused = machine.node.ns.block_on(async || wrong.probe().await).expect("the namespace");
    let refused = refused.expect_err("a wrong key");
    assert_eq!(refused.reason(), "Denied");
    assert!(refused.to_string().contains("check the API key") && !refused.to_string().contains("OAuth"), "{refused}");
    let run = machine.node.ns.block_on(async || {
        control.probe().await?;
        let unused = control.mint_key(&tags(), "unused").await?;
        control.revoke_key(&unused.id).await?;
        control.mint_key(&tags(), "eg-0").await
    });
    let key = run.expect("the namespace").expect("a key");
    machine.tailscale(&[
        "up",
        "--login-server=https://hs.lab:8443",
        &format!("--auth-key={}", key.key.reveal()),
        "--hostname=eg-0",
        "--timeout=40s",
    ]);
    let (id, expected) = (id(&tailnet.node_id("eg-0").to_string()), expected("eg-0"));
    let created = key.created.expect("a time").as_second();
    let with_key = |key: &KeyId| ExpectedDevice { binding: Binding::Minted(mint(key.clone(), created)), ..expected.clone() };
    let [of_key, of_other] = [key.id.clone(), KeyId::parse("999").expect("an ID")].map(|key| with_key(&key));
    let found = machine.node.ns.block_on(async || (control.device(&id, &of_key).await, control.device(&id, &of_other).await));
    let (found, refused) = found.expect("the namespace");
    let found = found.expect("an answer").expect("a device");
    assert_eq!((&found.name, &found.key), (&DeviceLabel::Host("eg-0".to_owned()), &Some(key.id.clone())), "{found:?}");
    assert!(!found.addresses.is_empty() && found.created.is_some(), "{found:?}");
    assert_eq!(refused.expect_err("another key").reason(), "Mismatch");
    let routes = |list: &[&str]| list.iter().map(|route| (*route).to_owned()).collect::<BTreeSet<_>>();
    let (own, others, none) = (routes(&["10.9.0.1/32"]), routes(&["10.7.0.0/16"]), BTreeSet::new());
    tailnet.headscale(&["nodes", "approve-routes", "-i", id.as_str(), "-r", "10.7.0.0/16"]);
    let approved = machine.node.ns.block_on(async || {
        let with = control.approve_routes(&id, &expected, &own, &none).await?;
        let same = control.approve_routes(&id, &expected, &own, &none).await?;
        let without = control.approve_routes(&id, &expected, &none, &own).await?;
        Ok::<_, ControlError>([with, same, without])
    });
    let both: BTreeSet<_> = own.union(&others).cloned().collect();
    assert_eq!(approved.expect("the namespace").expect("approved"), [both.clone(), both, others], "what others approved stays");
    let gone = machine.node.ns.block_on(async || {
        control.delete_device(&id, &expected).await?;
        control.delete_device(&id, &expected).await?;
        control.device(&id, &of_key).await
    });
    let read = gone.expect("the namespace").expect("deleted, and gone already");
    assert!(read.is_none(), "a deleted device is read as absent: {read:?}");
    assert!(!tailnet.knows("eg-0"));
    drop(tailscaled);
}

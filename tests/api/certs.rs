//! Certificates from a real ACME server (Pebble) with a real DNS server. Real tailscaleds prove the names, and a real kube-apiserver stores
//! the Secrets; the control server is the stand-in of Tailscale's hosted one.
//!
//! Needs root and the programs of `tests/servers/build`.

mod closing;
mod front;

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;
use tailyard::api::issuance::OrderNote;
use tailyard::api::names::{ACCOUNT_FINGERPRINT, ACCOUNTS, ISSUANCE};
use tailyard::model::base::backoff::Backoff;
use tailyard::model::base::leader::LeaseTerms;
use tailyard::model::ingress::cert_store::{CertStoreState, NameState};

use front::Front;
use kit::apiserver::DEADLINE;
use kit::certs::{FIELD, Stage, make_secret, stage, stage_with};
use kit::pebble::Manner;
use kit::wait::eventually_async;

const WEB: &str = "web.tail-lab.ts.net";
const API: &str = "api.tail-lab.ts.net";
const DB: &str = "db.tail-lab.ts.net";

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}.tail-lab.ts.net")).collect()
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// State of a name; the default if it is unknown.
fn named(state: &CertStoreState, name: &str) -> NameState {
    state.names.get(name).cloned().unwrap_or_default()
}

/// Order note of a name, from the annotation of its Secret.
async fn note(stage: &Stage, name: &str) -> OrderNote {
    let secret = stage.cluster.secrets().get(name).await.expect("a Secret");
    let text = secret.metadata.annotations.unwrap_or_default().remove(ISSUANCE);
    text.map(|text| serde_json::from_str(&text).expect("a note")).unwrap_or_default()
}

#[test]
fn fifty_names_are_ordered_once_by_one_replica_and_read_by_the_other() {
    let names = names(50);
    let manner = Manner { bad_nonces: 15, ..Manner::default() };
    stage_with(&refs(&names), manner, async |stage| {
        let (first, second) = (stage.replica(0).await, stage.replica(1).await);
        let begin = Instant::now();
        for name in &names {
            let pair = first.pair(name).await;
            assert_eq!(pair.leaf().expect("a certificate with its key").names, [name.as_str()]);
            assert_eq!(second.pair(name).await, pair);
        }
        println!("50 certificates after {:?}", begin.elapsed());
        assert_eq!(stage.pebble.issued(), 50);
        assert!(second.certs.state.borrow().orders.is_empty() && !*second.certs.leads.borrow());
        // The Secret has the format of the Tailscale operator's proxies.
        let values = stage.cluster.secrets().get(&names[0]).await.expect("a Secret").data.expect("values");
        let keys: Vec<&str> = values.keys().map(String::as_str).collect();
        assert_eq!(keys, [ACCOUNT_FINGERPRINT, "tls.crt", "tls.key"]);
        assert_eq!(values[ACCOUNT_FINGERPRINT].0.len(), 32);
    });
}

#[test]
fn certificate_in_the_state_secret_is_used_and_stored() {
    stage(&[WEB], async |stage| {
        let first = stage.replica(0).await;
        let pair = first.pair(WEB).await;
        drop(first);
        // So tailscaled leaves the certificate of a standalone Ingress.
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("PEM");
        let (chain, key) = (text(&pair.chain), text(&pair.key));
        stage.cluster.make_secret("g-0", &[(&format!("{WEB}.crt"), &chain), (&format!("{WEB}.key"), &key)]).await;
        stage.cluster.secrets().delete(WEB, &DeleteParams::default()).await.expect("deleted");
        make_secret(&stage.cluster, WEB).await;
        let next = stage.replica(0).await;
        assert_eq!(next.pair(WEB).await, pair);
        let stored = async || stage.cluster.secret(WEB).await.0["tls.crt"].clone();
        eventually_async("it is stored", DEADLINE, stored, |stored| *stored == chain).await;
        assert_eq!(stage.pebble.issued(), 1);
    });
}

#[test]
fn twenty_restarts_order_nothing() {
    let names = names(20);
    stage(&refs(&names), async |stage| {
        let mut pairs = Vec::new();
        let first = stage.replica(0).await;
        for name in &names {
            pairs.push(first.pair(name).await);
        }
        drop(first);
        let account = stage.cluster.secret(ACCOUNTS).await;
        for _ in 0..20 {
            let again = stage.replica(0).await;
            for (name, pair) in names.iter().zip(&pairs) {
                assert_eq!(again.pair(name).await, *pair);
            }
            again.until_leads(true).await;
        }
        assert_eq!(stage.pebble.issued(), 20);
        assert_eq!(stage.cluster.secret(ACCOUNTS).await, account, "and the account is the same");
    });
}

#[test]
fn lost_certificate_is_restored_or_ordered_again() {
    stage(&[WEB], async |stage| {
        let first = stage.replica(0).await;
        let pair = first.pair(WEB).await;
        first.until("stored", |state| named(state, WEB).note == OrderNote::default()).await;
        let restored = async |times| {
            first.until("put back", |state| state.restored == times && named(state, WEB).fault.is_none()).await;
            let secret_data = async || stage.cluster.secrets().get(WEB).await.expect("a Secret").data.expect("values");
            assert_eq!(secret_data().await["tls.crt"].0, *pair.chain);
            assert_eq!(first.certs.pairs.borrow().get(WEB), Some(&pair), "and it was served all the time");
        };
        stage.cluster.delete_secret(WEB).await;
        make_secret(&stage.cluster, WEB).await;
        restored(1).await;
        stage.cluster.patch_secret(WEB, &[("tls.crt", "nothing that anybody could read")]).await;
        restored(2).await;
        let other = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        stage.cluster.patch_secret(WEB, &[("tls.key", &other)]).await;
        restored(3).await;
        assert_eq!(stage.pebble.issued(), 1);
        drop(first);
        stage.cluster.patch_secret(WEB, &[("tls.key", "x")]).await;
        assert_ne!(stage.replica(0).await.pair(WEB).await, pair);
        assert_eq!(stage.pebble.issued(), 2);
    });
}

#[test]
fn certificate_is_renewed_before_expiry_without_interruption() {
    let manner = Manner { lifetime: 40, ..Manner::default() };
    stage_with(&[WEB], manner, async |stage| {
        let (first, second) = (stage.replica(0).await, stage.replica(1).await);
        let pair = first.pair(WEB).await;
        let until = pair.leaf().expect("a leaf").certificate.until;
        for replica in [&first, &second] {
            let mut pairs = replica.certs.pairs.clone();
            let renewed = pairs.wait_for(|pairs| pairs.get(WEB) != Some(&pair)).await.expect("a running replica").get(WEB).cloned();
            assert!(Timestamp::now() < until, "not in time");
            assert!(renewed.expect("there is always one").leaf().expect("a leaf").certificate.until > until);
        }
        assert_eq!(stage.pebble.issued(), 2);
    });
}

#[test]
fn certificate_is_renewed_at_the_suggested_time() {
    stage(&[WEB], async |stage| {
        let pair = stage.replica(0).await.pair(WEB).await;
        stage.pebble.suggest_now(&stage.tailnet, &pair.chain);
        let again = stage.replica(0).await;
        let mut pairs = again.certs.pairs.clone();
        let renewed = async { pairs.wait_for(|pairs| pairs.get(WEB).is_some_and(|current| *current != pair)).await.map(drop) };
        tokio::time::timeout(kit::machine::DEADLINE, renewed).await.expect("renewed").expect("a running replica");
        assert_eq!(stage.pebble.issued(), 2);
    });
}

/// Valid authorizations are the account's: any proxy that shares it could order the name.
#[test]
fn authorization_ends_with_its_order() {
    let manner = Manner { reuse: 100, ..Manner::default() };
    stage_with(&[WEB], manner, async |stage| {
        let pair = stage.replica(0).await.pair(WEB).await;
        assert_eq!(stage.pebble.proofs(), 1);
        stage.pebble.suggest_now(&stage.tailnet, &pair.chain);
        let again = stage.replica(0).await;
        let mut pairs = again.certs.pairs.clone();
        let renewed = async { pairs.wait_for(|pairs| pairs.get(WEB).is_some_and(|current| *current != pair)).await.map(drop) };
        tokio::time::timeout(kit::machine::DEADLINE, renewed).await.expect("renewed").expect("a running replica");
        assert_eq!((stage.pebble.issued(), stage.pebble.proofs()), (2, 2), "the next order needs a proof");
    });
}

#[test]
fn retry_after_is_respected_by_every_replica() {
    stage(&[WEB], async |mut stage| {
        stage.lead =
            LeaseTerms { retry_period: Duration::from_millis(200), lease_duration: Duration::from_secs(1), ..LeaseTerms::CERT_LEADER };
        let front = Front::start(&stage.pebble.directory(), 7200).await;
        let first = stage.replica_at(0, &[WEB], &front.directory()).await;
        first.until("refused", |state| named(state, WEB).note.failures == 1).await;
        let order_note = note(&stage, WEB).await;
        assert_eq!((order_note.reason.as_str(), order_note.by.as_str()), ("RateLimited", ""));
        let pause = order_note.not_before.expect("a time").duration_since(Timestamp::now());
        assert!(pause > SignedDuration::from_mins(110), "{pause:?}");
        drop(first);
        // The ACME server of the next leader would accept the order, but the replica does not send it.
        let second = stage.replica(1).await;
        second.until_leads(true).await;
        second.until("seen", |state| named(state, WEB).note.failures == 1).await;
        assert_eq!((front.orders(), stage.pebble.issued()), (1, 0));
    });
}

#[test]
fn acme_outage_and_lost_account_only_delay_orders() {
    stage(&[WEB, API, DB], async |mut stage| {
        stage.terms.retry = Backoff::new(Duration::from_millis(300), Duration::from_secs(1), 0.2).expect("sensible");
        let first = stage.replica_at(0, &[WEB], &stage.pebble.directory()).await;
        let pair = first.pair(WEB).await;
        stage.pebble.stop();
        first.want(&[WEB, API]);
        first.until("it cannot be asked", |state| named(state, API).note.failures >= 2).await;
        assert_eq!(note(&stage, API).await.reason, "Unreachable");
        assert_eq!(first.certs.pairs.borrow().get(WEB), Some(&pair), "what there is is served");
        // Pebble restarts without accounts.
        stage.pebble.run(&stage.tailnet);
        first.pair(API).await;
        first.until("nothing is left of it", |state| named(state, API).note == OrderNote::default()).await;
        // The owner closes the account: a new one replaces it.
        let key = async || stage.cluster.secret(ACCOUNTS).await.0[FIELD].clone();
        let closed = key().await;
        closing::close(&stage.pebble.directory(), &stage.pebble.ca(), &closed).await;
        first.want(&[WEB, API, DB]);
        first.pair(DB).await;
        assert_ne!(key().await, closed);
        assert_eq!(first.certs.pairs.borrow().get(WEB), Some(&pair));
    });
}

#[test]
fn dead_replica_repeats_its_order_and_an_absent_one_is_replaced() {
    let manner = Manner { slow: 5, ..Manner::default() };
    stage_with(&[WEB, API], manner, async |mut stage| {
        stage.lead =
            LeaseTerms { retry_period: Duration::from_millis(200), lease_duration: Duration::from_secs(1), ..LeaseTerms::CERT_LEADER };
        let directory = stage.pebble.directory();
        let first = stage.replica_at(0, &[WEB], &directory).await;
        first.until("it orders", |state| named(state, WEB).note.by == "g-0").await;
        let second = stage.replica_at(1, &[WEB], &directory).await;
        drop(first);
        second.until_leads(true).await;
        assert_eq!(note(&stage, WEB).await.by, "g-0", "whether it is dead is not known yet");
        let first = stage.replica_at(0, &[WEB], &directory).await;
        let pair = first.pair(WEB).await;
        assert_eq!(second.pair(WEB).await, pair);
        second.until_leads(false).await;
        first.until_leads(true).await;
        drop(first);
        second.until_leads(true).await;
        second.want(&[WEB, API]);
        second.pair(API).await;
        assert_eq!(second.certs.state.borrow().orders.get("issued"), Some(&1));
        let first = stage.replica_at(0, &[WEB, API], &directory).await;
        first.until_leads(true).await;
        second.until_leads(false).await;
        first.pair(API).await;
        assert_eq!(stage.pebble.issued(), 2);
    });
}

#[test]
fn acme_outage_during_an_order_loses_only_that_order() {
    let manner = Manner { slow: 5, ..Manner::default() };
    stage_with(&[WEB], manner, async |mut stage| {
        stage.terms.retry = Backoff::new(Duration::from_millis(300), Duration::from_secs(1), 0.2).expect("sensible");
        let first = stage.replica_at(0, &[WEB], &stage.pebble.directory()).await;
        let ordered = async {
            while !stage.pebble.log().contains("POST /order-plz") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(kit::machine::DEADLINE, ordered).await.expect("an order");
        stage.pebble.stop();
        first.until("it cannot be asked", |state| named(state, WEB).note.failures >= 1).await;
        assert_eq!(first.certs.state.borrow().orders.get("issued"), None);
        stage.pebble.run(&stage.tailnet);
        first.pair(WEB).await;
        first.until("nothing is left of it", |state| named(state, WEB).note == OrderNote::default()).await;
        assert_eq!(first.certs.state.borrow().orders.get("issued"), Some(&1));
    });
}

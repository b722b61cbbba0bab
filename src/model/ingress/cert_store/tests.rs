use super::*;

/// Time within the default validity of [`rcgen`] certificates.
fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().expect("a time")
}

/// A self-signed certificate for this name, and its key.
fn made(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn holding(version: &str, (chain, key): &(String, String)) -> VersionedSecret {
    let values = [("tls.crt", chain), ("tls.key", key)].map(|(field, text)| (field.to_owned(), Bytes::copy_from_slice(text.as_bytes())));
    VersionedSecret { version: version.to_owned(), annotations: BTreeMap::new(), values: values.into() }
}

#[test]
fn store_is_loaded_after_every_secret_and_reports_user_certificate_errors() {
    let own = |secret: &str| Host { secret: secret.to_owned(), issue: false };
    let wanted = BTreeMap::from([("a.example.com".to_owned(), own("a")), ("b.example.com".to_owned(), own("b"))]);
    let mut store = CertStore::default();
    assert_eq!(store.want(Arc::new(wanted), BTreeSet::new(), now()).len(), 2);
    let pair = made("a.example.com");
    store.put("a", holding("1", &pair), now());
    assert!(!store.is_loaded(), "the other may be about to come");
    store.gone("b");
    assert!(store.is_loaded());
    let faults = |store: &CertStore| store.state(now()).names.into_values().map(|state| state.fault).collect::<Vec<_>>();
    assert_eq!(faults(&store), [None, Some("NoSecret")]);
    let absent = CertNotice::Absent { name: "b.example.com".to_owned(), secret: "b".to_owned() };
    assert_eq!(store.take_notices(), [absent]);
    store.gone("b");
    assert_eq!(store.take_notices(), [], "said once");
    store.put("b", holding("2", &pair), now());
    assert_eq!(faults(&store), [None, Some("Name")], "it is there, and another name's");
    let notices = store.take_notices();
    assert!(matches!(notices.as_slice(), [CertNotice::Invalid { error, .. }] if error.reason() == "Name"), "{notices:?}");
    store.gone("a");
    assert_eq!(faults(&store), [Some("NoSecret"), Some("Name")]);
    let serve = store.pairs(now());
    assert_eq!(serve.keys().collect::<Vec<_>>(), ["a.example.com"], "what was loaded is served on");
}

#[test]
fn certificates_of_an_earlier_container_serve_until_their_secrets_are_read() {
    let name = "a.example.com";
    let wanted = || Arc::new([(name.to_owned(), Host { secret: "a".to_owned(), issue: true })].into());
    let (old, new) = (made(name), made(name));
    let mut first = CertStore::default();
    first.want(wanted(), BTreeSet::new(), now());
    first.put("a", holding("1", &old), now());
    let copy = first.pairs(now());

    let mut next = CertStore::with_backup(copy.clone());
    assert!(next.pairs(now()).is_empty() && !next.serves_backup(), "no handshake requested it");
    next.want(wanted(), BTreeSet::new(), now());
    next.lost("a", "Timeout");
    assert_eq!((next.pairs(now()), next.serves_backup()), (first.pairs(now()), true));
    assert_eq!(next.record(name), None, "nothing is known of the Secret, so nothing is ordered");
    next.put("a", holding("1", &new), now());
    assert_eq!((&*next.pairs(now())[name].chain, next.serves_backup()), (new.0.as_bytes(), false));
    let others = copy.into_values().map(|pair| ("b.example.com".to_owned(), pair)).collect();
    assert_eq!(CertStore::with_backup(others).backup.len(), 0, "it is for another name");
}

#[test]
fn expired_certificate_is_reported_and_not_served() {
    let name = "a.example.com";
    let mut store = CertStore::default();
    store.want(Arc::new([(name.to_owned(), Host { secret: "a".to_owned(), issue: false })].into()), BTreeSet::new(), now());
    store.put("a", holding("1", &made(name)), now());
    for (year, fault, served) in [("1970", Some("Early"), 0), ("2026", None, 1), ("5000", Some("Expired"), 0)] {
        let now: Timestamp = format!("{year}-06-01T00:00:00Z").parse().expect("a time");
        assert_eq!((store.state(now).names[name].fault, store.pairs(now).len()), (fault, served), "{year}");
    }
}

#[test]
fn failed_order_is_recorded_and_restored_certificate_is_no_order() {
    let name = "a.example.com";
    let mut store = CertStore::default();
    store.want(Arc::new([(name.to_owned(), Host { secret: "a".to_owned(), issue: true })].into()), BTreeSet::new(), now());
    let failed = FailedOrder { failure: OrderFailure::default(), reason: "RateLimited", message: "too many".to_owned() };
    assert!(store.ended(name, Err(failed)).is_err());
    assert_eq!(store.failure(name), Some(&("RateLimited", "too many".to_owned())));
    let (chain, key) = made(name);
    let pair = Pair { chain: chain.into_bytes().into(), key: key.into_bytes().into() };
    let issued = Issued::new(name, pair, Bytes::new()).expect("it is for the name");
    for _ in 0..2 {
        store.ended(name, Ok(issued.clone())).expect("issued");
    }
    let state = store.state(now());
    assert_eq!((state.orders, state.restored), ([("RateLimited", 1), ("issued", 1)].into(), 1));
    let kinds: Vec<_> = store.take_notices().into_iter().map(|notice| format!("{notice:?}").split(' ').next().map(str::to_owned)).collect();
    assert_eq!(kinds, ["Failed", "Issued", "Restored"].map(|kind| Some(kind.to_owned())));
    assert_eq!(store.reusable(name, now()), Some(issued), "it is stored and not ordered again");
}

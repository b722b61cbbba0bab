use super::*;
use crate::proxy::certs::copy::to_copy;

fn noted(version: &str, values: &[(&str, &str)]) -> VersionedSecret {
    let values = values.iter().map(|(key, value)| ((*key).to_owned(), Bytes::copy_from_slice(value.as_bytes()))).collect();
    VersionedSecret { version: version.to_owned(), annotations: BTreeMap::new(), values }
}

#[test]
fn each_secret_is_heard_of_and_what_is_wrong_with_a_users_own_is_told_by_its_name() {
    let own = |secret: &str| Host { secret: secret.to_owned(), issue: false };
    let wanted = BTreeMap::from([("a.example.com".to_owned(), own("a")), ("b.example.com".to_owned(), own("b"))]);
    let mut kept = CertStore::default();
    assert_eq!(kept.want(Arc::new(wanted), BTreeSet::new()).len(), 2);
    let made = rcgen::generate_simple_self_signed(vec!["a.example.com".to_owned()]).expect("a certificate");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    kept.put("a", noted("1", &[("tls.crt", &chain), ("tls.key", &key)]));
    assert!(!kept.heard(), "the other may be about to come");
    kept.gone("b");
    assert!(kept.heard());
    let faults = |kept: &CertStore| kept.state(Timestamp::now()).names.into_values().map(|state| state.fault).collect::<Vec<_>>();
    assert_eq!(faults(&kept), [None, Some("NoSecret")]);
    kept.put("b", noted("2", &[("tls.crt", &chain), ("tls.key", &key)]));
    assert_eq!(faults(&kept), [None, Some("Name")], "it is there, and another name's");
    kept.gone("a");
    assert_eq!(faults(&kept), [Some("NoSecret"), Some("Name")]);
    let serve = kept.pairs(Timestamp::now());
    assert_eq!(serve.keys().collect::<Vec<_>>(), ["a.example.com"], "what was loaded is served on");
}

#[test]
fn certificates_of_an_earlier_container_serve_until_their_secrets_are_read() {
    let made = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    };
    let (name, now) = ("a.example.com", Timestamp::now());
    let wanted = || Arc::new([(name.to_owned(), Host { secret: "a".to_owned(), issue: true })].into());
    let holding = |(chain, key): &(String, String)| noted("1", &[("tls.crt", chain), ("tls.key", key)]);
    let (old, new) = (made(name), made(name));
    let mut first = CertStore::default();
    first.want(wanted(), BTreeSet::new());
    first.put("a", holding(&old));
    let copy = to_copy(&first.pairs(now));

    let mut next = CertStore::recalling(Some(&copy));
    assert!(next.pairs(now).is_empty() && !next.recalled(), "nobody asked for it");
    next.want(wanted(), BTreeSet::new());
    next.lost("a", "Timeout");
    assert_eq!((next.pairs(now), next.recalled()), (first.pairs(now), true));
    assert_eq!(next.record(name), None, "nothing is known of the Secret, so nothing is ordered");
    next.put("a", holding(&new));
    assert_eq!((&*next.pairs(now)[name].chain, next.recalled()), (new.0.as_bytes(), false));
    for bad in [None, Some(&b"{"[..]), Some(&br#"{"a.example.com.crt":"aw=="}"#[..]), Some(&copy[..copy.len() / 2])] {
        assert_eq!(CertStore::recalling(bad).recalled.len(), 0, "{bad:?}");
    }
    let swapped = String::from_utf8(copy).expect("a text").replace("a.example", "b.example");
    assert_eq!(CertStore::recalling(Some(swapped.as_bytes())).recalled.len(), 0, "it is for another name");
}

#[test]
fn expired_certificate_is_reported_and_not_served() {
    let name = "a.example.com";
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let mut kept = CertStore::default();
    kept.want(Arc::new([(name.to_owned(), Host { secret: "a".to_owned(), issue: false })].into()), BTreeSet::new());
    kept.put("a", noted("1", &[("tls.crt", &chain), ("tls.key", &key)]));
    for (year, fault, served) in [("1970", Some("Early"), 0), ("2026", None, 1), ("5000", Some("Expired"), 0)] {
        let now: Timestamp = format!("{year}-06-01T00:00:00Z").parse().expect("a time");
        assert_eq!((kept.state(now).names[name].fault, kept.pairs(now).len()), (fault, served), "{year}");
    }
}

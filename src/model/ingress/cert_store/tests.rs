use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;

use super::backup::MAX_CERTIFICATES;
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
    let copy = first.copy(now());

    let mut next = CertStore::with_backup(copy.clone());
    assert!(next.pairs(now()).is_empty() && !next.serves_backup(), "no handshake requested it");
    next.want(wanted(), BTreeSet::new(), now());
    next.lost("a", "Timeout");
    assert_eq!((next.pairs(now()), next.serves_backup()), (first.pairs(now()), true));
    assert_eq!(next.record(name), None, "nothing is known of the Secret, so nothing is ordered");
    next.put("a", holding("1", &new), now());
    assert_eq!((&*next.pairs(now())[name].chain, next.serves_backup()), (new.0.as_bytes(), false));
    let others = copy.into_values().map(|pair| ("b.example.com".to_owned(), pair)).collect();
    assert!(!CertStore::with_backup(others).has_backup(), "it is for another name");
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

#[test]
fn unwanted_certificate_stays_in_the_copy_for_an_hour() {
    let names: Vec<String> = (0..MAX_CERTIFICATES + 2).map(|number| format!("n{number}.example.com")).collect();
    let hosts = |names: &[String]| Arc::new(names.iter().map(|name| (name.clone(), Host::default())).collect());
    let made = rcgen::generate_simple_self_signed(vec!["*.example.com".to_owned()]).expect("a certificate");
    let wildcard = (made.cert.pem(), made.signing_key.serialize_pem());
    let after = |minutes| now() + SignedDuration::from_mins(minutes);
    let mut store = CertStore::default();
    store.want(hosts(&names), BTreeSet::new(), now());
    for name in &names {
        store.put(name, holding("1", &wildcard), now());
    }
    store.want(hosts(&names[1..]), BTreeSet::new(), now());
    store.want(hosts(&names[1..]), BTreeSet::new(), after(30));
    let has = |store: &CertStore, minutes| (store.copy(after(minutes)).contains_key(&names[0]), store.pairs(after(minutes)).len());
    assert_eq!(store.next_end(after(30)), Some(Duration::from_mins(30)));
    assert_eq!((has(&store, 59), has(&store, 60)), ((true, names.len() - 1), (false, names.len() - 1)));
    store.want(hosts(&[]), BTreeSet::new(), after(30));
    assert_eq!((has(&store, 30), store.copy(after(30)).len()), ((false, 0), MAX_CERTIFICATES), "one of those that end first is dropped");
    let mut next = CertStore::with_backup(store.copy(after(59)));
    next.want(hosts(&[]), BTreeSet::new(), after(59));
    assert_eq!((next.copy(after(118)).len(), next.copy(after(119)).len()), (MAX_CERTIFICATES, 0));
}

#[derive(Debug, Clone)]
enum Step {
    /// The Secret of each name, if it is wanted.
    Want([Option<bool>; 2]),
    /// The Secret of a name is read, with one of two certificates or without any.
    Put(usize, bool, Option<bool>),
    Gone(usize, bool),
    Lost(usize, bool),
    /// The next container starts with the copy.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (name, other) = (0..2_usize, any::<bool>());
    prop_oneof![
        3 => any::<[Option<bool>; 2]>().prop_map(Step::Want),
        3 => (name.clone(), other, any::<Option<bool>>()).prop_map(|(name, other, content)| Step::Put(name, other, content)),
        1 => (name.clone(), other).prop_map(|(name, other)| Step::Gone(name, other)),
        1 => (name, other).prop_map(|(name, other)| Step::Lost(name, other)),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Whatever configs and Secrets lack, and however often the container restarts: the last certificate of a name is served while the
    /// name is wanted, and copied for the next container.
    #[test]
    fn last_certificate_of_a_wanted_name_is_served(steps in prop::collection::vec(step(), 1..16)) {
        let name = |number: usize| format!("n{number}.example.com");
        let secret = |number: usize, other: bool| format!("{}-{other}", name(number));
        let made = [0, 1].map(|number| [made(&name(number)), made(&name(number))]);
        let mut store = CertStore::default();
        let mut wanted = [None::<bool>; 2];
        // Certificate and Secret of each name.
        let mut loaded = [None::<(usize, bool)>; 2];
        let want = |store: &mut CertStore, wanted: &[Option<bool>; 2]| {
            let host = |number: usize| Some((name(number), Host { secret: secret(number, wanted[number]?), issue: false }));
            store.want(Arc::new([0, 1].into_iter().filter_map(host).collect()), BTreeSet::new(), now());
        };
        for (version, step) in steps.into_iter().enumerate() {
            match step {
                Step::Want(next) => {
                    for number in [0, 1] {
                        // The certificate of another Secret is not that of this one, also after a config without the name.
                        loaded[number] = loaded[number].filter(|(_, from)| next[number].is_none_or(|other| other == *from));
                    }
                    wanted = next;
                    want(&mut store, &wanted);
                }
                Step::Put(number, other, content) if wanted[number] == Some(other) => {
                    let none = (String::new(), String::new());
                    let content = content.map(usize::from);
                    let text = content.map_or(&none, |content| &made[number][content]);
                    store.put(&secret(number, other), holding(&version.to_string(), text), now());
                    loaded[number] = content.map(|content| (content, other)).or(loaded[number]);
                }
                Step::Gone(number, other) if wanted[number] == Some(other) => drop(store.gone(&secret(number, other))),
                Step::Lost(number, other) if wanted[number] == Some(other) => drop(store.lost(&secret(number, other), "Timeout")),
                Step::Put(..) | Step::Gone(..) | Step::Lost(..) => {}
                Step::Restart => {
                    store = CertStore::with_backup(store.copy(now()));
                    want(&mut store, &wanted);
                }
            }
            let copied = store.copy(now()).into_iter().map(|(name, copied)| (name, copied.pair)).collect();
            let chains = |pairs: BTreeMap<String, Pair>| [0, 1].map(|number| pairs.get(&name(number)).map(|pair| pair.chain.to_vec()));
            let expected = [0, 1].map(|number| loaded[number].map(|(content, _)| made[number][content].0.clone().into_bytes()));
            prop_assert_eq!(chains(copied), expected.clone());
            let served = [0, 1].map(|number| expected[number].clone().filter(|_| wanted[number].is_some()));
            prop_assert_eq!(chains(store.pairs(now())), served);
        }
    }
}

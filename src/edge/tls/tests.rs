//! Handshakes over a pipe: certificate selection by name, and replacement of certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcgen::CertifiedKey as Made;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

fn pair(name: &str) -> Pair {
    let Made { cert, signing_key } = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    Pair { chain: cert.pem().into_bytes().into(), key: signing_key.serialize_pem().into_bytes().into() }
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Certificate that a client of this SNI name receives.
async fn shown(acceptor: &Acceptor, name: &str) -> Result<Vec<u8>, TlsError> {
    let (client, server) = duplex(64 << 10);
    let connector = Connector::new().expect("set up").client();
    let (taken, opened) = tokio::join!(acceptor.accept(server), connector.connect(name, client, true));
    let (mut taken, (mut opened, http2)) = (taken?, opened?);
    assert!(http2 && is_http2(&taken));
    let leaf = opened.get_ref().1.peer_certificates().expect("a chain")[0].to_vec();
    opened.write_all(b"x").await.expect("written");
    opened.flush().await.expect("flushed");
    assert_eq!(taken.read_u8().await.expect("read"), b'x');
    Ok(leaf)
}

fn der(pair: &Pair) -> Vec<u8> {
    CertificateDer::from_pem_slice(&pair.chain).expect("a certificate").to_vec()
}

#[tokio::test]
async fn each_sni_name_gets_its_newest_certificate() {
    let certificates = Certificates::new().expect("set up");
    let wanted = names(&["a.ts.net", "b.ts.net", "*.c.ts.net"]);
    let acceptor = certificates.acceptor(wanted.clone()).expect("set up");
    assert!(matches!(shown(&acceptor, "a.ts.net").await, Err(TlsError::UnknownName(name)) if name == "a.ts.net"));
    let (a, b, c) = (pair("a.ts.net"), pair("b.ts.net"), pair("*.c.ts.net"));
    let all = BTreeMap::from([("a.ts.net", &a), ("b.ts.net", &b), ("*.c.ts.net", &c)].map(|(name, pair)| (name.to_owned(), pair.clone())));
    assert!(certificates.load(&all, &wanted).is_empty());
    assert_eq!(shown(&acceptor, "A.ts.net").await.expect("shown"), der(&a));
    assert_eq!(shown(&acceptor, "b.ts.net").await.expect("shown"), der(&b));
    assert_eq!(shown(&acceptor, "x.c.ts.net").await.expect("shown"), der(&c));
    assert_eq!(shown(&acceptor, "d.ts.net").await.expect_err("unknown").reason(), "UnknownName");
    let newer = pair("a.ts.net");
    let _ = certificates.load(&BTreeMap::from([("a.ts.net".to_owned(), newer.clone())]), &wanted);
    assert_eq!(shown(&acceptor, "a.ts.net").await.expect("shown"), der(&newer));
    assert_eq!(shown(&acceptor, "b.ts.net").await.expect("a certificate that is gone stays while it is wanted"), der(&b));
}

#[tokio::test]
async fn unusable_certificate_does_not_replace_a_good_one() {
    let certificates = Certificates::new().expect("set up");
    let wanted = names(&["a.ts.net"]);
    let acceptor = certificates.acceptor(wanted.clone()).expect("set up");
    let (good, other) = (pair("a.ts.net"), pair("a.ts.net"));
    let load = |pair: Pair| certificates.load(&BTreeMap::from([("a.ts.net".to_owned(), pair)]), &wanted);
    let _ = load(good.clone());
    let torn = Pair { chain: Arc::clone(&other.chain), key: Arc::clone(&good.key) };
    let empty = Pair { chain: Arc::from(*b""), key: Arc::from(*b"") };
    let keyless = Pair { chain: Arc::clone(&good.chain), key: Arc::from(*b"no key") };
    for (bad, kind) in [(torn, "Pair"), (empty, "Chain"), (keyless, "Key")] {
        let faults = load(bad);
        assert_eq!(faults.values().map(TlsError::reason).collect::<Vec<_>>(), [kind]);
        assert_eq!(shown(&acceptor, "a.ts.net").await.expect("the last good one"), der(&good));
    }
    let _ = certificates.load(&BTreeMap::new(), &BTreeSet::new());
    assert!(!certificates.has("a.ts.net"), "an unused certificate is dropped");
}

#[tokio::test]
async fn listener_presents_only_its_own_certificates() {
    let certificates = Certificates::new().expect("set up");
    let wanted = names(&["a.ts.net", "b.ts.net"]);
    let all = BTreeMap::from(["a.ts.net", "b.ts.net"].map(|name| (name.to_owned(), pair(name))));
    let _ = certificates.load(&all, &wanted);
    let acceptor = certificates.acceptor(names(&["a.ts.net"])).expect("set up");
    assert!(shown(&acceptor, "b.ts.net").await.is_err());
    assert!(shown(&acceptor, "127.0.0.1").await.is_ok(), "a client that asks for no name gets the only one");
}

#[tokio::test]
async fn plain_http_fails_the_handshake() {
    let certificates = Certificates::new().expect("set up");
    let acceptor = certificates.acceptor(names(&["a.ts.net"])).expect("set up");
    let (mut client, server) = duplex(1024);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
    assert_eq!(acceptor.accept(server).await.expect_err("no TLS").reason(), "Handshake");
}

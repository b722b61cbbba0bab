//! Tests of certificate parsing and checks.

use rcgen::{CertificateParams, KeyPair};

use super::*;

/// A self-signed certificate for these names.
fn pair(names: &[&str]) -> Pair {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).expect("names");
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2026, 4, 1));
    params.serial_number = Some(vec![0x87, 0x65].into());
    params.use_authority_key_identifier_extension = true;
    let certificate = params.self_signed(&key).expect("a certificate");
    Pair { chain: certificate.pem().into_bytes().into(), key: key.serialize_pem().into_bytes().into() }
}

#[test]
fn leaf_has_validity_names_and_ari_id() {
    let leaf = pair(&["Web.tail1234.ts.net", "*.example.com"]).leaf().expect("a leaf");
    assert_eq!(leaf.names, ["web.tail1234.ts.net", "*.example.com"]);
    assert_eq!(leaf.certificate.from.to_string(), "2026-01-01T00:00:00Z");
    assert_eq!(leaf.certificate.until.to_string(), "2026-04-01T00:00:00Z");
    // Encoded serial number, with the zero byte that keeps it positive (RFC 9773, 4.1).
    assert_eq!(leaf.certificate.id.split_once('.').map(|(signer, serial)| (signer.is_empty(), serial)), Some((false, "AIdl")));
}

#[test]
fn leaf_matches_exact_names_and_one_wildcard_label() {
    let leaf = pair(&["web.tail1234.ts.net", "*.example.com"]).leaf().expect("a leaf");
    for name in ["web.tail1234.ts.net", "WEB.tail1234.ts.net", "a.example.com"] {
        assert_eq!(leaf.is_for(name), Ok(()), "{name}");
    }
    for name in ["tail1234.ts.net", "example.com", "a.b.example.com", "x.web.tail1234.ts.net"] {
        assert_eq!(leaf.is_for(name).expect_err(name).reason(), "Name");
    }
}

#[test]
fn unusable_pairs_have_reasons() {
    let (good, other) = (pair(&["a.b"]), pair(&["a.b"]));
    let kind = |chain: &[u8], key: &[u8]| Pair { chain: chain.into(), key: key.into() }.leaf().expect_err("a fault").reason();
    assert_eq!((kind(b"", b""), kind(&good.chain, b""), kind(b"", &good.key)), ("Empty", "Empty", "Empty"));
    assert_eq!((kind(b"x", &good.key), kind(&good.key, &good.key)), ("Chain", "Chain"));
    assert_eq!((kind(&good.chain, b"x"), kind(&good.chain, &good.chain)), ("Key", "Key"));
    assert_eq!(kind(&good.chain, &other.key), "Mismatch");
    let cut = &good.chain[..good.chain.len() / 2];
    assert_eq!(kind(cut, &good.key), "Chain");
    let second = [&good.chain[..], b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"].concat();
    assert_eq!(kind(&second, &good.key), "Chain");
}

#[test]
fn debug_output_hides_the_private_key() {
    let pair = pair(&["a.b"]);
    let text = format!("{pair:?}");
    assert!(text.contains("BEGIN CERTIFICATE") && !text.contains("PRIVATE"), "{text}");
}

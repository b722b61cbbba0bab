//! A Secret with an arbitrary certificate: no panic, and an accepted one is valid for its names and has a renewal time.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use tailyard::api::issuance::OrderNote;
use tailyard::edge::acme::AccountKey;
use tailyard::edge::tls::Certificates;
use tailyard::model::ingress::cert_orders::{RenewalWindow, renew_at, usable};
use tailyard::model::ingress::certificate::Pair;

/// A certificate of `a.ts.net` and `*.b.ts.net`, and its otherwise unused key.
const CHAIN: &str = "MIIBjjCCATSgAwIBAgIUT5vMHoadp5rD4F6VyzC4TrLoLBUwCgYIKoZIzj0EAwIwDDEKMAgGA1UEAwwBYTAeFw0yNjExMjIwNDAxMjJaFw0zNjExMTkwNDAxMjJaMAwxCjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARB6HDYDugfiKr95P/GILD0/O2GyrPZXXRAG1le0+j5YGiWtX5yNYpSOOsew47BqVefSNnJL7eYAsPLJn280kU2o3QwcjAdBgNVHQ4EFgQUWg9YRrm/tWoICZ48nfpdW1t9mskwHwYDVR0jBBgwFoAUWg9YRrm/tWoICZ48nfpdW1t9mskwDwYDVR0TAQH/BAUwAwEB/zAfBgNVHREEGDAWgghhLnRzLm5ldIIKKi5iLnRzLm5ldDAKBggqhkjOPQQDAgNIADBFAiEAuWr9FAwsxK0X7oRxv+5ikEnbdsWZTUvC/Qd8TGRRZpgCIHzWK+ly+rSCn5ly0Ya1Vqy/x52orJwbGqa7sGpkRKFG";
const KEY: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgQ4cw2SRA0crmg6XP3YCjchL8UdK4wJBBGuD3ikSLrQihRANCAARB6HDYDugfiKr95P/GILD0/O2GyrPZXXRAG1le0+j5YGiWtX5yNYpSOOsew47BqVefSNnJL7eYAsPLJn280kU2";
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn pem(kind: &str, digits: &[u8]) -> Vec<u8> {
    [format!("-----BEGIN {kind}-----\n").as_bytes(), digits, format!("\n-----END {kind}-----\n").as_bytes()].concat()
}

/// Reads the contents of a Secret with the code that decides on orders and the code that serves.
fn read(certificates: &Certificates, pair: Pair) -> bool {
    let leaf = pair.leaf();
    let names = [("a.ts.net".to_owned(), pair)];
    let wanted = names.iter().map(|(name, _)| name.clone()).collect();
    let _ = certificates.load(&BTreeMap::from(names), &wanted);
    let Ok(leaf) = leaf else { return false };
    for name in leaf.names.iter().filter(|name| !name.starts_with("*.")) {
        assert!(leaf.is_for(name).is_ok(), "{leaf:?}");
    }
    let window = RenewalWindow { start: leaf.certificate.until, end: leaf.certificate.from };
    for window in [None, Some(window)] {
        let at = renew_at(&leaf.certificate, window);
        assert!(leaf.certificate.until < leaf.certificate.from || at <= leaf.certificate.until, "{at}: {leaf:?}");
        let _ = usable(&leaf.certificate, at);
    }
    true
}

fuzz_target!(|data: &[u8]| {
    let certificates = Certificates::new().expect("set up");
    // A valid pair with some Base64 digits replaced: so the edits affect the certificate, not the PEM text around it.
    let (mut chain, mut key) = (CHAIN.as_bytes().to_vec(), KEY.as_bytes().to_vec());
    let edits = data.chunks_exact(3);
    let untouched = edits.len() == 0;
    for edit in edits {
        let text = if edit[0] & 0x80 == 0 { &mut chain } else { &mut key };
        let at = (usize::from(edit[0] & 0x7f) << 8 | usize::from(edit[1])) % text.len();
        text[at] = DIGITS[usize::from(edit[2] % 64)];
    }
    let good = read(&certificates, Pair { chain: pem("CERTIFICATE", &chain).into(), key: pem("PRIVATE KEY", &key).into() });
    assert!(good || !untouched, "the one that all others are made of");
    // And arbitrary text.
    let (first, second) = data.split_at(data.len() / 2);
    read(&certificates, Pair { chain: first.into(), key: second.into() });
    let _ = AccountKey::read(data);
    let _ = AccountKey::read(&pem("PRIVATE KEY", &key));
    let _ = serde_json::from_slice::<OrderNote>(data);
});

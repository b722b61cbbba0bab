//! What is stored of an object is bounded, whatever its writer puts into it.

use super::cluster::NS;
use super::*;

/// A Pod may write these Secrets at any rate.
#[test]
fn certificates_are_paced_like_states() {
    let secret = |name: &str| WatchRole::Owned(Kind::Secret).decode(json!({"metadata": {"name": name, "namespace": NS}}));
    for name in ["eg-0", "app.tail1234.ts.net", "in-acme-accounts", names::ACCOUNTS] {
        assert!(secret(name).is_paced(), "{name} is written by Pods");
    }
    for name in ["eg-0-config", "eg"] {
        assert!(!secret(name).is_paced(), "{name} is the reconciler's");
    }
}

//! Arbitrary text as one or two kubeconfigs: no panic, and an accepted change is complete and changes nothing again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::kubeconfig::{Access, Address, remove};

/// Texts after a change.
fn merged(texts: &[Option<String>], changed: Vec<Option<String>>) -> Vec<Option<String>> {
    texts.iter().zip(changed).map(|(former, changed)| changed.or_else(|| former.clone())).collect()
}

fuzz_target!(|data: (&str, Option<&str>, &str, Option<&str>, bool)| {
    let (first, second, name, namespace, keep_context) = data;
    let Ok(address) = Address::parse(name).or_else(|_| Address::parse("kube.tail.ts.net")) else { return };
    assert_eq!(Address::parse(&address.url()).as_ref(), Ok(&address));
    let access = Access { address: address.clone(), context: None, namespace: namespace.map(str::to_owned), authority: None, user: None, keep_context };
    let texts = [Some(first.to_owned()), second.map(str::to_owned)];
    if let Ok(changed) = access.add(&texts) {
        let added = merged(&texts, changed);
        assert!(access.add(&added).expect("the same change").iter().all(Option::is_none), "{added:?}");
    }
    if let Ok(changed) = remove(&address, &texts) {
        let removed = merged(&texts, changed);
        assert!(remove(&address, &removed).expect("the same change").iter().all(Option::is_none), "{removed:?}");
    }
});

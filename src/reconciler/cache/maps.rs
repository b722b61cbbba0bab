//! Changes of maps that index objects.

use std::collections::{BTreeMap, BTreeSet};

/// Adds a value to the set of a key, or removes it.
pub(super) fn put<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V, came: bool) {
    if came {
        map.entry(key).or_default().insert(value);
    } else if let Some(set) = map.get_mut(&key) {
        set.remove(&value);
        if set.is_empty() {
            map.remove(&key);
        }
    }
}

/// Increments or decrements the count of a key.
pub(super) fn count<K: Ord + Clone>(map: &mut BTreeMap<K, usize>, key: &K, came: bool) {
    let number = map.entry(key.clone()).or_default();
    *number = if came { *number + 1 } else { number.saturating_sub(1) };
    if *number == 0 {
        map.remove(key);
    }
}

/// Sets or removes the value of a key.
pub(super) fn set<V: Clone>(map: &mut BTreeMap<String, V>, key: &str, value: &V, came: bool) {
    if came {
        map.insert(key.to_owned(), value.clone());
    } else {
        map.remove(key);
    }
}

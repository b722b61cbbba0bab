//! Changes of a replica's state Secret: the difference between desired and known content.
//!
//! Pure. Concerns requested keys only: tailscaled's own keys are in the same Secret.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::ByteString;

use crate::api::state as keys;

/// Content of the Secret, or of its relevant keys.
pub type Content = BTreeMap<String, Bytes>;

/// Desired values by key; `None` removes the key.
pub type StateChanges = BTreeMap<String, Option<Bytes>>;

/// Encodes the content as a JSON object of base64 by key.
pub fn to_json(content: &Content) -> Vec<u8> {
    let values: BTreeMap<&String, ByteString> = content.iter().map(|(key, value)| (key, ByteString(value.to_vec()))).collect();
    serde_json::to_vec(&values).unwrap_or_default()
}

/// Decodes such a text; `None` if it is malformed.
pub fn from_json(text: &[u8]) -> Option<Content> {
    let values: BTreeMap<String, ByteString> = serde_json::from_slice(text).ok()?;
    Some(values.into_iter().map(|(key, value)| (key, value.0.into())).collect())
}

/// Inputs of a container's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// Capability version of the supervised tailscaled, if any.
    pub capver: Option<u32>,
    pub pod_uid: Option<String>,
    /// Auth key of the mounted tailscaled config; empty if it has none.
    pub auth_key: String,
}

impl Start {
    /// Changes of a starting container: sets version and Pod, and removes stale keys of its predecessor. The device stays: the operator
    /// needs it to delete the old one. A request for a new auth key is removed once the mounted key differs.
    pub fn changes(&self, found: &Content) -> StateChanges {
        let mut changes: StateChanges = keys::STALE_AT_START.iter().map(|key| ((*key).to_owned(), None)).collect();
        let mut set = |key: &str, value: String| drop(changes.insert(key.to_owned(), Some(value.into())));
        if let Some(capver) = self.capver {
            set(keys::CAPVER, capver.to_string());
        }
        if let Some(uid) = self.pod_uid.as_ref().filter(|uid| !uid.is_empty()) {
            set(keys::POD_UID, uid.clone());
        }
        let reissue = found.get(keys::REISSUE_AUTHKEY);
        if !self.auth_key.is_empty() && reissue.is_some_and(|failed| failed != self.auth_key.as_bytes()) {
            changes.insert(keys::REISSUE_AUTHKEY.to_owned(), None);
        }
        changes
    }
}

/// Desired changes that are not in the known content yet.
pub fn outstanding(wanted: &StateChanges, current: &StateChanges) -> StateChanges {
    wanted.iter().filter(|(key, value)| current.get(*key) != Some(value)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Whether the content lacks a value that was written.
pub fn lacks(found: &Content, written: &StateChanges) -> bool {
    written.iter().any(|(key, value)| value.is_some() && found.get(key) != value.as_ref())
}

/// The content after the changes.
pub fn applied(mut content: Content, changes: &StateChanges) -> Content {
    for (key, value) in changes {
        match value {
            Some(value) => drop(content.insert(key.clone(), value.clone())),
            None => drop(content.remove(key)),
        }
    }
    content
}

/// Changes that make tailscaled start as a new device: remove its keys, its profile and the device fields.
pub fn forget_identity(found: &Content) -> StateChanges {
    let profile = found.get(keys::CURRENT_PROFILE).and_then(|name| std::str::from_utf8(name).ok());
    let profile = profile.filter(|name| name.starts_with(keys::PROFILE_PREFIX));
    keys::IDENTITY.into_iter().chain(profile).map(|key| (key.to_owned(), None)).collect()
}

/// Whether tailscaled's state is consistent: no key of a profile at all, or all of them and exactly one profile. Between two writes of
/// tailscaled it is not; a tailscaled that exits then starts as another device.
pub fn consistent(found: &Content) -> bool {
    let parts = [keys::MACHINE_KEY, keys::PROFILES, keys::CURRENT_PROFILE].into_iter().filter(|key| found.contains_key(*key)).count();
    let profiles = found.keys().filter(|key| key.starts_with(keys::PROFILE_PREFIX)).count();
    matches!((parts, profiles), (0, 0) | (3, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(pairs: &[(&str, &str)]) -> Content {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), Bytes::copy_from_slice(value.as_bytes()))).collect()
    }

    #[test]
    fn start_clears_old_status_and_keeps_the_device() {
        let found = content(&[("device_id", "n1"), ("egress-services", "{}"), ("reissue_authkey", "old")]);
        let start = Start { capver: Some(138), pod_uid: Some("u-1".into()), auth_key: "new".into() };
        let after = applied(found, &start.changes(&content(&[("reissue_authkey", "old")])));
        assert_eq!(after, content(&[("device_id", "n1"), ("pod_uid", "u-1"), ("tailscale_capver", "138")]));
    }

    #[test]
    fn reissue_request_stays_until_another_auth_key_is_mounted() {
        let found = content(&[("reissue_authkey", "k")]);
        for mounted in ["", "k"] {
            let start = Start { auth_key: mounted.into(), ..Start::default() };
            assert!(!start.changes(&found).contains_key("reissue_authkey"), "{mounted:?}");
        }
        let without_reissue = Start { auth_key: "k2".into(), ..Start::default() };
        assert!(!without_reissue.changes(&Content::new()).contains_key("reissue_authkey"));
    }

    #[test]
    fn forgetting_the_identity_removes_the_current_profile() {
        let found = content(&[("_current-profile", "profile-1a2b"), ("profile-1a2b", "{}"), ("pod_uid", "u"), ("_machinekey", "m")]);
        assert_eq!(applied(found.clone(), &forget_identity(&found)), content(&[("pod_uid", "u")]));
        let odd = content(&[("_current-profile", "pod_uid"), ("pod_uid", "u")]);
        assert_eq!(applied(odd.clone(), &forget_identity(&odd)), content(&[("pod_uid", "u")]), "only a profile's key goes");
    }

    #[test]
    fn state_is_consistent_if_empty_or_complete() {
        let whole = content(&[("_machinekey", "m"), ("_profiles", "p"), ("_current-profile", "profile-1"), ("profile-1", "{}")]);
        assert!(consistent(&content(&[("device_id", "n")])) && consistent(&whole));
        for missing in whole.keys() {
            let mut part = whole.clone();
            part.remove(missing);
            assert!(!consistent(&part), "without {missing}");
        }
    }

    fn changes() -> impl Strategy<Value = StateChanges> {
        let value = proptest::collection::vec(0u8..3, 0..3).prop_map(Bytes::from);
        proptest::collection::btree_map("[a-d]", proptest::option::of(value), 0..5)
    }

    proptest! {
        #[test]
        fn applied_outstanding_changes_leave_none(wanted in changes(), existing in changes()) {
            let todo = outstanding(&wanted, &existing);
            let mut after = existing;
            after.extend(todo);
            prop_assert!(outstanding(&wanted, &after).is_empty());
        }
    }
}

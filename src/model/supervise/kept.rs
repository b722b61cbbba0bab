//! What tailscaled keeps in the state Secret, as it would keep it in a file: so that it can start without the Secret.
//!
//! In the Secret each of its keys is a key of its own, beside those of others; in a file they are one JSON object of base64 by
//! key (`ipn/store` of tailscaled).

use std::collections::BTreeMap;

use k8s_openapi::ByteString;

use crate::model::state::{Changes, Content};

/// A copy, and where it stands to what it was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// What the Secret held of tailscaled's, as far as is known.
    pub content: Option<Content>,
    /// What a tailscaled that was started from a file has written there is in the Secret, too.
    pub given_back: bool,
}

/// The keys of a Secret that are tailscaled's: its machine, its profiles, and which of them is in use.
#[must_use]
pub fn of_daemon(secret: &Content) -> Content {
    let own = |key: &str| key.starts_with('_') || key.starts_with("profile-");
    secret.iter().filter(|(key, _)| own(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The file.
#[must_use]
pub fn to_file(content: &Content) -> Vec<u8> {
    let values: BTreeMap<&String, ByteString> = content.iter().map(|(key, value)| (key, ByteString(value.to_vec()))).collect();
    serde_json::to_vec(&values).unwrap_or_default()
}

/// What a file holds; nothing if it is none.
#[must_use]
pub fn from_file(text: &[u8]) -> Option<Content> {
    let values: BTreeMap<String, ByteString> = serde_json::from_slice(text).ok()?;
    Some(values.into_iter().map(|(key, value)| (key, value.0.into())).collect())
}

/// What makes of the Secret what the file is.
#[must_use]
pub fn changes(file: &Content, secret: &Content) -> Changes {
    let (file, held) = (of_daemon(file), of_daemon(secret));
    let gone = held.keys().filter(|key| !file.contains_key(*key)).map(|key| (key.clone(), None));
    let new = file.iter().filter(|(key, value)| held.get(*key) != Some(value)).map(|(key, value)| (key.clone(), Some(value.clone())));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(values: &[(&str, &'static str)]) -> Content {
        values.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect()
    }

    #[test]
    fn only_the_daemons_keys_go_into_the_file_and_come_back() {
        let secret = content(&[("_machinekey", "k"), ("profile-1a2b", "{}"), ("_current-profile", "profile-1a2b"), ("device_id", "n1")]);
        let kept = of_daemon(&secret);
        assert_eq!(kept.len(), 3);
        let file = to_file(&kept);
        assert!(String::from_utf8_lossy(&file).contains(r#""_machinekey":"aw==""#));
        assert_eq!(from_file(&file), Some(kept.clone()));
        assert_eq!(from_file(b"{"), None);
        assert!(changes(&kept, &secret).is_empty(), "what others keep there is theirs");
    }

    #[test]
    fn what_a_file_has_more_and_less_goes_into_the_secret() {
        let secret = content(&[("_machinekey", "k"), ("profile-1", "old"), ("profile-2", "x"), ("device_id", "n1")]);
        let file = content(&[("_machinekey", "k"), ("profile-1", "new"), ("_profiles", "p")]);
        let wanted = [("_profiles", Some("p")), ("profile-1", Some("new")), ("profile-2", None)];
        let wanted: Changes = wanted.into_iter().map(|(key, value)| (key.to_owned(), value.map(Into::into))).collect();
        assert_eq!(changes(&file, &secret), wanted);
    }
}

//! Copy of tailscaled's keys of the state Secret, as a state file: tailscaled can start with it without the Secret.
//!
//! In Pods of our reconciler two files outlive a container: a copy of the Secret, and the state file of a tailscaled that was started
//! without it. The second exists only while the Secret may lack some of its content.
//!
//! In the Secret each key of tailscaled is a key of its own, with `_` for characters that Secret keys may not have; a file is one JSON
//! object of base64 by key (`ipn/store` of tailscaled). Here keys are named as in the Secret.

use crate::model::tailnet::state::{Content, StateChanges, from_json, to_json};

/// A copy, and whether the Secret is up to date.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateBackup {
    /// Known content of tailscaled's keys in the Secret.
    pub content: Option<Content>,
    /// The Secret has everything that a tailscaled with a state file has written.
    pub given_back: bool,
}

impl StateBackup {
    /// Reads the files of an earlier container of this Pod: the state file that its tailscaled used instead of the Secret, and the copy of
    /// the Secret. The first is newer and may be the only copy.
    pub fn from_files(used: Option<&[u8]>, copy: Option<&[u8]>) -> Self {
        let read = |text: Option<&[u8]>| text.and_then(from_file).filter(|content| !content.is_empty());
        match read(used) {
            Some(content) => Self { content: Some(content), given_back: false },
            None => Self { content: read(copy), given_back: true },
        }
    }

    /// Whether a file has content that the Secret may lack.
    pub fn is_ahead(&self) -> bool {
        self.content.is_some() && !self.given_back
    }
}

/// tailscaled's keys of a Secret: machine key, profiles and current profile.
pub fn of_daemon(secret: &Content) -> Content {
    let own = |key: &str| key.starts_with('_') || key.starts_with("profile-");
    secret.iter().filter(|(key, _)| own(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub fn to_file(content: &Content) -> Vec<u8> {
    // Only keys of serve configs have a character that is invalid in a Secret.
    let own = |key: &String| key.strip_prefix("_serve_").map_or_else(|| key.clone(), |profile| format!("_serve/{profile}"));
    to_json(&content.iter().map(|(key, value)| (own(key), value.clone())).collect())
}

/// Content of a state file; `None` if malformed.
pub fn from_file(text: &[u8]) -> Option<Content> {
    let valid = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    Some(from_json(text)?.into_iter().map(|(key, value)| (key.chars().map(valid).collect(), value)).collect())
}

/// Changes that make the Secret equal to the file.
pub fn changes(file: &Content, secret: &Content) -> StateChanges {
    let (file, existing) = (of_daemon(file), of_daemon(secret));
    let gone = existing.keys().filter(|key| !file.contains_key(*key)).map(|key| (key.clone(), None));
    let new = file.iter().filter(|(key, value)| existing.get(*key) != Some(value)).map(|(key, value)| (key.clone(), Some(value.clone())));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(values: &[(&str, &'static str)]) -> Content {
        values.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect()
    }

    #[test]
    fn state_file_round_trips_tailscaled_keys_only() {
        let secret = content(&[
            ("_machinekey", "k"),
            ("_serve_1a2b", "{}"),
            ("profile-1a2b", "{}"),
            ("_current-profile", "profile-1a2b"),
            ("device_id", "n1"),
        ]);
        let backup = of_daemon(&secret);
        assert_eq!(backup.len(), 4);
        let file = to_file(&backup);
        let text = String::from_utf8_lossy(&file);
        assert!(text.contains(r#""_machinekey":"aw==""#) && text.contains(r#""_serve/1a2b":"#), "as tailscaled calls them: {text}");
        assert_eq!(from_file(&file), Some(backup.clone()));
        assert_eq!(from_file(b"{"), None);
        assert!(changes(&backup, &secret).is_empty(), "what others keep there is theirs");
    }

    #[test]
    fn state_file_of_an_earlier_container_wins_over_the_copy() {
        let (old, new) = (content(&[("_machinekey", "old")]), content(&[("_machinekey", "new")]));
        let loaded = |used: Option<&[u8]>, copy: Option<&[u8]>| {
            let backup = StateBackup::from_files(used, copy);
            (backup.is_ahead(), backup.content)
        };
        let (old_file, new_file) = (to_file(&old), to_file(&new));
        assert_eq!(loaded(Some(&new_file), Some(&old_file)), (true, Some(new)));
        for unusable in [None, Some(&b"{"[..]), Some(b"{}")] {
            assert_eq!(loaded(unusable, Some(&old_file)), (false, Some(old.clone())), "{unusable:?}");
            assert_eq!(loaded(unusable, unusable), (false, None), "{unusable:?}");
        }
    }

    #[test]
    fn differences_of_the_state_file_are_written_to_the_secret() {
        let secret = content(&[("_machinekey", "k"), ("profile-1", "old"), ("profile-2", "x"), ("device_id", "n1")]);
        let file = content(&[("_machinekey", "k"), ("profile-1", "new"), ("_profiles", "p")]);
        let wanted = [("_profiles", Some("p")), ("profile-1", Some("new")), ("profile-2", None)];
        let wanted: StateChanges = wanted.into_iter().map(|(key, value)| (key.to_owned(), value.map(Into::into))).collect();
        assert_eq!(changes(&file, &secret), wanted);
    }
}

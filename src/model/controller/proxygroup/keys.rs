//! Whether a replica gets an auth key, keeps the one it has, or has it taken away.
//!
//! A key is for one login. It is minted as late as the replica's image allows, and is gone from the config once the replica
//! has a device. A replica whose key failed says so with the key itself; it is given another one exactly once, because the
//! key in its config then differs from the one it complains of. Nothing is minted or deleted here.

/// What is known of a replica's login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaLogin<'a> {
    /// The key in its config, if it has a config and that has one.
    pub key: Option<&'a str>,
    /// The key of which it says that it failed; empty if it had none.
    pub reissue: Option<&'a str>,
    pub device: bool,
    /// Whether it is time for a first key: its Pod is there and reads its config live, or its image reads it at the start only.
    pub due: bool,
}

/// What becomes of a replica's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDecision {
    Mint,
    /// Another one is minted, after the device is deleted if there is one.
    Reissue,
    Keep,
    /// It is taken out of the config: it did its work.
    Drop,
}

#[must_use]
pub fn decide(login: &ReplicaLogin<'_>) -> KeyDecision {
    let key = login.key.unwrap_or_default();
    match (login.reissue, login.device) {
        (Some(failed), _) if key.is_empty() || failed == key => KeyDecision::Reissue,
        (None, true) if !key.is_empty() => KeyDecision::Drop,
        (None, false) if key.is_empty() && login.due => KeyDecision::Mint,
        _ => KeyDecision::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use KeyDecision::{Drop, Keep, Mint, Reissue};
        // key, reissue, device, due → decision
        type Row = (&'static str, Option<&'static str>, bool, bool, KeyDecision);
        let table: [Row; 12] = [
            ("", None, false, false, Keep),
            ("", Some("K"), false, true, Reissue),
            ("K", Some("K"), false, true, Reissue),
            ("K", Some("K"), true, true, Reissue),
            ("", Some(""), false, true, Reissue),
            ("", Some("K"), true, true, Reissue),
            ("K2", Some("K"), true, true, Keep),
            ("K2", Some(""), false, true, Keep),
            ("K", None, false, true, Keep),
            ("", None, false, true, Mint),
            ("K", None, true, true, Drop),
            ("", None, true, true, Keep),
        ];
        for (key, reissue, device, due, wanted) in table {
            let login = ReplicaLogin { key: Some(key), reissue, device, due };
            assert_eq!(decide(&login), wanted, "{login:?}");
        }
    }

    #[test]
    fn a_key_once_minted_is_not_minted_again() {
        for reissue in [None, Some(""), Some("old")] {
            for device in [false, true] {
                let login = ReplicaLogin { key: Some("new"), reissue, device, due: true };
                assert!(!matches!(decide(&login), KeyDecision::Mint | KeyDecision::Reissue), "{login:?}");
            }
        }
    }
}

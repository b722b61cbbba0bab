//! Auth keys of replicas: create, keep, replace or remove.
//!
//! A key is for one login. It is created as late as the replica's image allows and removed from the config once the device that joined with
//! it is recorded: until then the config names a key that may be unused, to be revoked. A replica reports the key that failed; it gets another exactly once, because the key in its config then differs from the reported
//! one.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaLogin<'a> {
    /// Key in its config, if any.
    pub key: Option<&'a str>,
    /// Key that it reports as failed; empty if it had none.
    pub reissue: Option<&'a str>,
    pub device: bool,
    /// Whether its device is recorded, or the key is another writer's, who revokes it.
    pub is_settled: bool,
    /// Whether a first key is due: its Pod exists and reads its config live, or its image reads it only at start.
    pub due: bool,
}

/// Decision about a replica's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDecision {
    Mint,
    /// Create another one, after deleting the device if any.
    Reissue,
    Keep,
    /// Remove the used key from the config.
    Drop,
}

pub fn decide(login: &ReplicaLogin<'_>) -> KeyDecision {
    let key = login.key.unwrap_or_default();
    match (login.reissue, login.device) {
        (Some(failed), _) if key.is_empty() || failed == key => KeyDecision::Reissue,
        (None, true) if !key.is_empty() && login.is_settled => KeyDecision::Drop,
        (None, false) if key.is_empty() && login.due => KeyDecision::Mint,
        _ => KeyDecision::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_key_decisions_follow_the_table() {
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
            let login = ReplicaLogin { key: Some(key), reissue, device, is_settled: true, due };
            assert_eq!(decide(&login), wanted, "{login:?}");
        }
        let claimed = ReplicaLogin { key: Some("K"), reissue: None, device: true, is_settled: false, due: true };
        assert_eq!(decide(&claimed), Keep, "the key may be unused");
    }

    #[test]
    fn replaced_auth_key_is_not_minted_twice() {
        for reissue in [None, Some(""), Some("old")] {
            for device in [false, true] {
                let login = ReplicaLogin { key: Some("new"), reissue, device, is_settled: true, due: true };
                assert!(!matches!(decide(&login), KeyDecision::Mint | KeyDecision::Reissue), "{login:?}");
            }
        }
    }
}

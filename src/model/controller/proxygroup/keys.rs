//! Whether a replica gets an auth key, keeps the one it has, or has it taken away.
//!
//! A key is for one login. It is minted as late as the replica's image allows, and is gone from the config once the replica
//! has a device. A replica whose key failed says so with the key itself; it is given another one exactly once, because the
//! key in its config then differs from the one it complains of. Nothing is minted or deleted here.

/// What is known of a replica's login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    /// The key in its config, if it has a config and that has one.
    pub key: Option<&'a str>,
    /// The key of which it says that it failed; empty if it had none.
    pub reissue: Option<&'a str>,
    /// Whether it has a device.
    pub device: bool,
    /// Whether it is time for a first key: its Pod is there and reads its config live, or its image reads it at the start only.
    pub due: bool,
}

/// What becomes of a replica's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The first one is minted.
    Mint,
    /// Another one is minted, after the device is deleted if there is one.
    Reissue,
    /// It stays as it is.
    Keep,
    /// It is taken out of the config: it did its work.
    Drop,
}

/// Decides.
#[must_use]
pub fn decide(login: &Login<'_>) -> Decision {
    let key = login.key.unwrap_or_default();
    match (login.reissue, login.device) {
        (Some(failed), _) if key.is_empty() || failed == key => Decision::Reissue,
        (None, true) if !key.is_empty() => Decision::Drop,
        (None, false) if key.is_empty() && login.due => Decision::Mint,
        _ => Decision::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use Decision::{Drop, Keep, Mint, Reissue};
        // key, reissue, device, due → decision
        type Row = (&'static str, Option<&'static str>, bool, bool, Decision);
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
            let login = Login { key: Some(key), reissue, device, due };
            assert_eq!(decide(&login), wanted, "{login:?}");
        }
    }

    #[test]
    fn a_key_once_minted_is_not_minted_again() {
        for reissue in [None, Some(""), Some("old")] {
            for device in [false, true] {
                let login = Login { key: Some("new"), reissue, device, due: true };
                assert!(!matches!(decide(&login), Decision::Mint | Decision::Reissue), "{login:?}");
            }
        }
    }
}

//! Whether a replica gets an auth key, keeps the one it has, or has it taken away.
//!
//! A key is for one login. It is minted as late as the replica's image allows, and is gone from the config once the replica
//! has a device. A replica whose key failed says so with the key itself; it is given another one exactly once, because the
//! key in its config then differs from the one it complains of. Nothing is minted or deleted here.

/// What is known of a replica's login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    /// Whether its config Secret exists.
    pub configured: bool,
    /// The key in its config.
    pub key: Option<&'a str>,
    /// The key of which it says that it failed; empty if it had none.
    pub reissue: Option<&'a str>,
    /// Its device.
    pub device: Option<&'a str>,
    /// Whether it is time for a first key: its Pod is there and reads its config live, or its image reads it at the start only.
    pub due: bool,
}

/// What becomes of a replica's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision<'a> {
    /// The first one is minted.
    Mint,
    /// Another one is minted, after the device is deleted if there is one.
    Reissue(Option<&'a str>),
    /// It stays as it is.
    Keep,
    /// It is taken out of the config: it did its work.
    Drop,
}

/// Decides.
#[must_use]
pub fn decide<'a>(login: &Login<'a>) -> Decision<'a> {
    let key = login.key.unwrap_or_default();
    match (login.reissue, login.device) {
        (Some(failed), device) if key.is_empty() || failed == key => Decision::Reissue(device),
        (Some(_), _) => Decision::Keep,
        (None, Some(_)) if key.is_empty() => Decision::Keep,
        (None, Some(_)) => Decision::Drop,
        (None, None) if key.is_empty() && login.due => Decision::Mint,
        (None, None) => Decision::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use Decision::{Drop, Keep, Mint, Reissue};
        // config, key, reissue, device, due → decision
        let table: [(bool, &str, Option<&str>, Option<&str>, bool, Decision<'_>); 15] = [
            (false, "", None, None, true, Mint),
            (false, "", None, None, false, Keep),
            (false, "", Some("K"), None, true, Reissue(None)),
            (false, "", Some("K"), Some("n1"), true, Reissue(Some("n1"))),
            (false, "", None, Some("n1"), true, Keep),
            (true, "K", Some("K"), None, true, Reissue(None)),
            (true, "K", Some("K"), Some("n1"), true, Reissue(Some("n1"))),
            (true, "", Some(""), None, true, Reissue(None)),
            (true, "", Some("K"), Some("n1"), true, Reissue(Some("n1"))),
            (true, "K2", Some("K"), Some("n1"), true, Keep),
            (true, "K2", Some(""), None, true, Keep),
            (true, "K", None, None, true, Keep),
            (true, "", None, None, true, Mint),
            (true, "K", None, Some("n1"), true, Drop),
            (true, "", None, Some("n1"), true, Keep),
        ];
        for (configured, key, reissue, device, due, wanted) in table {
            let login = Login { configured, key: Some(key), reissue, device, due };
            assert_eq!(decide(&login), wanted, "{login:?}");
        }
    }

    #[test]
    fn a_key_once_minted_is_not_minted_again() {
        for reissue in [None, Some(""), Some("old")] {
            for device in [None, Some("n1")] {
                let login = Login { configured: true, key: Some("new"), reissue, device, due: true };
                assert!(!matches!(decide(&login), Decision::Mint | Decision::Reissue(_)), "{login:?}");
            }
        }
    }
}

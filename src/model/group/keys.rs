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
        (None, Some(_)) if !key.is_empty() => Decision::Drop,
        (None, None) if key.is_empty() && login.due => Decision::Mint,
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
        type Row = (&'static str, Option<&'static str>, Option<&'static str>, bool, Decision<'static>);
        let table: [Row; 12] = [
            ("", None, None, false, Keep),
            ("", Some("K"), None, true, Reissue(None)),
            ("K", Some("K"), None, true, Reissue(None)),
            ("K", Some("K"), Some("n1"), true, Reissue(Some("n1"))),
            ("", Some(""), None, true, Reissue(None)),
            ("", Some("K"), Some("n1"), true, Reissue(Some("n1"))),
            ("K2", Some("K"), Some("n1"), true, Keep),
            ("K2", Some(""), None, true, Keep),
            ("K", None, None, true, Keep),
            ("", None, None, true, Mint),
            ("K", None, Some("n1"), true, Drop),
            ("", None, Some("n1"), true, Keep),
        ];
        for (key, reissue, device, due, wanted) in table {
            let login = Login { key: Some(key), reissue, device, due };
            assert_eq!(decide(&login), wanted, "{login:?}");
        }
    }

    #[test]
    fn a_key_once_minted_is_not_minted_again() {
        for reissue in [None, Some(""), Some("old")] {
            for device in [None, Some("n1")] {
                let login = Login { key: Some("new"), reissue, device, due: true };
                assert!(!matches!(decide(&login), Decision::Mint | Decision::Reissue(_)), "{login:?}");
            }
        }
    }
}

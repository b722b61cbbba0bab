//! Client identity of a request, as forwarded to backends.
//!
//! Source of the headers: `serve` of tailscale 1.102. Users have login, name and picture; tagged nodes have no user.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::whois::WhoIs;

/// Maximum length of an encoded word (RFC 2047).
const WORD: usize = 75;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// User; `None` if the node is tagged.
    pub user: Option<User>,
    /// Application capabilities granted by the tailnet policy.
    pub caps: BTreeMap<String, Vec<Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Such as `alice@example.com`.
    pub login: String,
    pub name: String,
    /// URL of a picture; may be empty.
    pub picture: String,
}

impl From<WhoIs> for ClientIdentity {
    fn from(whois: WhoIs) -> Self {
        let tagged = !whois.node.tags.is_empty();
        let profile = whois.user_profile;
        let user = User { login: profile.login_name, name: profile.display_name, picture: profile.profile_pic_url };
        Self { user: (!tagged && !user.login.is_empty()).then_some(user), caps: whois.cap_map }
    }
}

impl ClientIdentity {
    /// Granted capabilities that a backend requests, as JSON; `None` if there are none.
    pub fn caps(&self, wanted: &[String]) -> Option<String> {
        let granted: BTreeMap<_, _> = self.caps.iter().filter(|(name, _)| wanted.contains(name)).collect();
        if granted.is_empty() { None } else { serde_json::to_string(&granted).ok() }
    }
}

/// Encodes a text as a header value: unchanged if plain ASCII, else as encoded words (RFC 2047, Q).
pub fn encoded(text: &str) -> String {
    if text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
        return text.to_owned();
    }
    let mut words = vec![String::new()];
    for character in text.chars() {
        let mut bytes = [0; 4];
        let coded: String = character.encode_utf8(&mut bytes).bytes().map(quoted).collect();
        // Prefix and suffix of an encoded word take 12 bytes.
        if words.last().is_some_and(|word| word.len() + coded.len() > WORD - 12) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push_str(&coded);
        }
    }
    let words: Vec<_> = words.into_iter().map(|word| format!("=?utf-8?q?{word}?=")).collect();
    words.join(" ")
}

fn quoted(byte: u8) -> String {
    match byte {
        b' ' => "_".to_owned(),
        b'!'..=b'~' if !matches!(byte, b'=' | b'?' | b'_') => char::from(byte).to_string(),
        byte => format!("={byte:02X}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_ascii_text_is_encoded_as_rfc2047_words() {
        assert_eq!(encoded("Alice Smith"), "Alice Smith");
        assert_eq!(encoded("José = ?"), "=?utf-8?q?Jos=C3=A9_=3D_=3F?=");
        let long = encoded(&"é".repeat(40));
        assert!(long.split(' ').count() > 1 && long.split(' ').all(|word| word.len() <= WORD), "{long}");
        assert!(!encoded("a\r\nX-Evil: 1").contains('\n'));
    }

    #[test]
    fn users_have_an_identity_and_tagged_nodes_have_none() {
        let text = r#"{"Node":{"Name":"laptop.tail.ts.net."},"UserProfile":{"ID":1,"LoginName":"alice@example.com","DisplayName":"Alice","ProfilePicURL":""},"CapMap":{"example.com/cap/a":[{"role":"x"}],"example.com/cap/b":null}}"#;
        let answer: WhoIs = serde_json::from_str(text).expect("readable");
        let alice = ClientIdentity::from(answer.clone());
        assert_eq!(alice.user.as_ref().map(|user| user.login.as_str()), Some("alice@example.com"));
        assert_eq!(alice.caps(&["example.com/cap/a".to_owned()]).as_deref(), Some(r#"{"example.com/cap/a":[{"role":"x"}]}"#));
        assert_eq!(alice.caps(&[]), None);
        let mut tagged = answer;
        tagged.node.tags = vec!["tag:k8s".to_owned()];
        assert_eq!(ClientIdentity::from(tagged).user, None);
    }
}

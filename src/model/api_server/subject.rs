//! Name of a user or group of Kubernetes, as a header's value.
//!
//! The API server trims a header's value: a name with spaces at its ends would be another one. Such names, and those with control
//! characters, are invalid.

use std::collections::BTreeSet;

use http::HeaderValue;

/// Maximum bytes of a name: those of a host name are 253.
const MAX_BYTES: usize = 256;
/// Maximum characters of an invalid name in a message.
const MAX_SHOWN: usize = 64;
/// Prefixes of the users and groups to which Kubernetes and its installer give rights, such as `system:masters` and `kubeadm:cluster-admins`.
const SYSTEM: [&str; 2] = ["system:", "kubeadm:"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectName(HeaderValue);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("{0:?} is no name of a Kubernetes user or group: use 1 to {MAX_BYTES} bytes, without control characters and outer spaces")]
    Invalid(String),
    #[error("{0:?} is a user or group of Kubernetes itself: permit these in the proxy's settings, or remove it from the grant")]
    System(String),
}

impl SubjectName {
    pub fn read(text: &str) -> Result<Self, SubjectError> {
        let is_name = !text.is_empty() && text.len() <= MAX_BYTES && text.trim() == text && !text.contains(char::is_control);
        let value = HeaderValue::from_str(text).ok().filter(|_| is_name);
        value.map(Self).ok_or_else(|| SubjectError::Invalid(shown(text)))
    }

    /// The name, unless it is one of Kubernetes itself that is not in this list.
    pub fn permitted(self, system: &BTreeSet<String>) -> Result<Self, SubjectError> {
        let text = String::from_utf8_lossy(self.0.as_bytes());
        let is_permitted = !is_system(&text) || system.contains(&*text);
        if is_permitted { Ok(self) } else { Err(SubjectError::System(shown(&text))) }
    }

    pub fn into_value(self) -> HeaderValue {
        self.0
    }
}

/// Whether a name is one of Kubernetes itself.
pub fn is_system(name: &str) -> bool {
    SYSTEM.iter().any(|prefix| name.starts_with(prefix))
}

/// The beginning of a name, for messages.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_header_would_change_are_invalid() {
        let long = "g".repeat(MAX_BYTES + 1);
        let invalid = [
            "",
            " ",
            " system:masters",
            "system:masters ",
            "\tg",
            "g\u{a0}",
            "a\r\nImpersonate-Group: system:masters",
            "a\0",
            "a\u{7f}",
            long.as_str(),
        ];
        for name in invalid {
            assert!(matches!(SubjectName::read(name), Err(SubjectError::Invalid(_))), "{name:?}");
        }
        for name in ["alice@example.com", "tag:k8s", "node.tail.ts.net", "Älice Müller", "System:masters", "a,b", &long[1..]] {
            assert_eq!(SubjectName::read(name).map(SubjectName::into_value).expect("a name").as_bytes(), name.as_bytes());
        }
    }

    #[test]
    fn names_of_kubernetes_itself_have_its_prefix() {
        let read = |name: &str| SubjectName::read(name)?.permitted(&BTreeSet::new());
        for name in ["system:masters", "system:", "system:serviceaccount:kube-system:x", "system:anonymous"] {
            assert_eq!(read(name), Err(SubjectError::System(name.to_owned())));
        }
        for name in ["systems", "system", "team:system:masters", "tag:system"] {
            assert!(read(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_of_kubernetes_itself_are_permitted_by_their_exact_name_only() {
        let read = |name: &str, list: &[&str]| {
            let list = list.iter().map(|name| (*name).to_owned()).collect();
            SubjectName::read(name).and_then(|subject| subject.permitted(&list)).is_ok()
        };
        let list = ["system:masters", "system:nodes"];
        for (name, is_listed) in [("system:masters", true), ("system:nodes", true), ("system:master", false), ("system:masters:x", false)] {
            assert_eq!(read(name, &list), is_listed, "{name}");
            assert!(!read(name, &["*", "system:*", "system:", "SYSTEM:MASTERS", "*:masters"]), "{name}");
        }
        assert!(read("dev", &list) && read("*", &[]));
    }

    #[test]
    fn message_shows_the_beginning_of_a_long_name() {
        let message = SubjectName::read(&"\n".repeat(10_000)).expect_err("invalid").to_string();
        assert!(message.len() < 300, "{message}");
    }
}

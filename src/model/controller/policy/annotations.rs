//! Values of annotations of users' objects.

use std::collections::BTreeMap;

use crate::api::names::{EXPOSE, FORWARD_CLUSTER_TRAFFIC};

/// Annotations that the Tailscale operator (1.104.7) takes for true only as `true`: in other spellings a take-over would publish what it does
/// not.
pub const EXACT: [&str; 2] = [EXPOSE, FORWARD_CLUSTER_TRAFFIC];

pub type Annotations = BTreeMap<String, String>;

pub fn text(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}

/// Value of a nonempty annotation.
pub fn annotation<'a>(annotations: Option<&'a Annotations>, key: &str) -> Option<&'a str> {
    annotations?.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Whether an annotation is set to true.
pub fn is_on(annotations: Option<&Annotations>, key: &str) -> bool {
    annotation(annotations, key).is_some_and(|value| is_true(key, value))
}

/// Whether a value of an annotation is true, in the spellings that the Tailscale operator accepts for it.
pub fn is_true(key: &str, value: &str) -> bool {
    value == "true" || (!EXACT.contains(&key) && matches!(value, "True" | "TRUE" | "t" | "T" | "1"))
}

pub fn dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a tag, e.g. `tag:web`.
pub fn is_tag(text: &str) -> bool {
    text.strip_prefix("tag:").is_some_and(|name| {
        name.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

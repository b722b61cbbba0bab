//! Unknown annotations of users' Services and Ingresses with the prefixes of Tailscale or Tailyard: a misspelt one has no effect, and
//! without a message its author does not learn why.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::{ANNOTATION_PREFIXES, MANAGED, OBJECT_ANNOTATIONS};

/// Maximum number of annotations in a message.
const MAX_LISTED: usize = 3;

/// Message about the unknown annotations of an object; `None` if it has none, or is not a user's.
pub fn unknown(metadata: &ObjectMeta) -> Option<String> {
    let has_prefix = |key: &&String| ANNOTATION_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let all = metadata.annotations.iter().flat_map(|all| all.keys()).filter(has_prefix);
    let unknown: Vec<&String> = all.filter(|key| !OBJECT_ANNOTATIONS.contains(&key.as_str())).collect();
    if unknown.is_empty() || metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED)) {
        return None;
    }
    let mut messages: Vec<_> = unknown.iter().take(MAX_LISTED).map(|key| message(key)).collect();
    let more = unknown.len().saturating_sub(MAX_LISTED);
    messages.extend((more > 0).then(|| format!("{more} more annotations are unknown.")));
    Some(messages.join(" "))
}

fn message(key: &str) -> String {
    format!("Annotation {key} is unknown and has no effect: correct it (the nearest known one is {}) or remove it.", nearest(key))
}

/// The known annotation with the smallest edit distance, without regard to case and prefix.
fn nearest(key: &str) -> &'static str {
    let name = |key: &str| key.split_once('/').map_or(key, |(_, name)| name).to_ascii_lowercase();
    let wanted = name(key);
    OBJECT_ANNOTATIONS.into_iter().min_by_key(|annotation| distance(&wanted, &name(annotation))).unwrap_or_default()
}

/// Number of inserted, removed and replaced bytes.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, byte) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(byte != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

pub type Annotations = BTreeMap<String, String>;

pub fn text(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}

/// Value of a nonempty annotation.
pub fn annotation<'a>(annotations: Option<&'a Annotations>, key: &str) -> Option<&'a str> {
    annotations?.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Whether an annotation is true, in the spellings that the Tailscale operator accepts.
pub fn is_true(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "t" | "T" | "1")
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(labels: &Value, annotations: &[&str]) -> Option<String> {
        let annotations: serde_json::Map<_, _> = annotations.iter().map(|key| ((*key).to_owned(), json!("x"))).collect();
        unknown(&serde_json::from_value(json!({"labels": labels, "annotations": annotations})).expect("metadata"))
    }

    #[test]
    fn misspelt_annotation_names_the_nearest_known_one() {
        let table = [
            ("tailscale.com/exposed", "tailscale.com/expose"),
            ("tailscale.com/Expose", "tailscale.com/expose"),
            ("tailyard.io/funnel", "tailscale.com/funnel"),
            ("tailscale.com/proxy-protocol", "tailyard.io/proxy-protocol"),
            ("tailscale.com/proxygroup", "tailscale.com/proxy-group"),
            ("tailscale.com/host-name", "tailscale.com/hostname"),
            ("tailscale.com/tailnet-fdqn", "tailscale.com/tailnet-fqdn"),
            ("tailscale.com/", "tailscale.com/tags"),
        ];
        for (key, near) in table {
            let message = found(&Value::Null, &[key]).expect("a message");
            assert!(message.contains(&format!("Annotation {key} is unknown")) && message.contains(&format!("one is {near})")), "{message}");
        }
    }

    #[test]
    fn known_and_foreign_annotations_and_created_objects_are_not_reported() {
        assert_eq!(found(&Value::Null, &OBJECT_ANNOTATIONS), None);
        assert_eq!(found(&Value::Null, &["example.com/expose", "tailscale.community/expose", "expose"]), None);
        assert_eq!(found(&json!({"tailscale.com/managed": "true"}), &["tailyard.io/next-port"]), None);
        assert_eq!(unknown(&ObjectMeta::default()), None);
    }

    #[test]
    fn message_about_many_annotations_is_bounded() {
        let many: Vec<String> = (0..100).map(|n| format!("tailscale.com/{}{n}", "x".repeat(60))).collect();
        let message = found(&Value::Null, &many.iter().map(String::as_str).collect::<Vec<_>>()).expect("a message");
        assert!(message.ends_with("97 more annotations are unknown.") && message.len() < 1_024, "{message}");
    }
}

//! Annotations of users' Services and Ingresses with the prefixes of Tailscale or Tailyard that have no effect: without a message their
//! author does not learn why.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::{
    ANNOTATION_PREFIXES, EXPOSE, FORMER_TAILNET_IP, FORWARD_CLUSTER_TRAFFIC, FUNNEL, HOSTNAME, HTTP_ENDPOINT, HTTP_REDIRECT, MANAGED,
    OBJECT_ANNOTATIONS, PROXY_CLASS, PROXY_GROUP, STANDBY, TAILNET_FQDN, TAILNET_IP,
};
use crate::model::controller::key::PublishSource;

/// Maximum number of annotations in a message.
const MAX_LISTED: usize = 3;
/// Maximum number of characters of a value in a message.
const MAX_SHOWN: usize = 32;
/// Annotations that have an effect on Services only.
const OF_SERVICES: [&str; 5] = [EXPOSE, HOSTNAME, TAILNET_FQDN, TAILNET_IP, FORMER_TAILNET_IP];
/// Annotations that have an effect on Ingresses only.
const OF_INGRESSES: [&str; 4] = [HTTP_REDIRECT, HTTP_ENDPOINT, FUNNEL, FORWARD_CLUSTER_TRAFFIC];
/// Annotations that are true or false.
const SWITCHES: [&str; 5] = [EXPOSE, HTTP_REDIRECT, FUNNEL, FORWARD_CLUSTER_TRAFFIC, STANDBY];
/// Those that the Tailscale operator (1.104.7) takes for true only as `true`: in other spellings a take-over would publish what it does not.
const EXACT: [&str; 2] = [EXPOSE, FORWARD_CLUSTER_TRAFFIC];

/// Annotations that have an effect on objects with a proxy of their own only.
const OF_PROXIES: [&str; 3] = [FORWARD_CLUSTER_TRAFFIC, STANDBY, PROXY_CLASS];

/// Message about the annotations of an object that have no effect: unknown ones, those of another kind or without a ProxyGroup, values that are
/// neither true nor false, and labels in place of annotations. `None` if it has none, or is not a user's.
pub fn ineffective(source: PublishSource, metadata: &ObjectMeta) -> Option<String> {
    let has_prefix = |key: &str| ANNOTATION_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let all = metadata.annotations.iter().flatten().filter(|(key, _)| has_prefix(key));
    let in_group = annotation(metadata.annotations.as_ref(), PROXY_GROUP).is_some();
    let labels = metadata.labels.iter().flatten().filter(|(key, _)| OBJECT_ANNOTATIONS.contains(&key.as_str()) && *key != PROXY_CLASS);
    let labels = labels.map(|(key, _)| format!("Label {key} has no effect: set the annotation of that name, or remove the label."));
    let (mut messages, mut more) = (Vec::new(), 0);
    for (key, value) in all {
        let is_listed = messages.len() < MAX_LISTED;
        if !is_listed && !OBJECT_ANNOTATIONS.contains(&key.as_str()) {
            // Only the message has the nearest name, which costs more than all else.
            more += 1;
        } else if let Some(message) = fault(source, key, value).or_else(|| of_proxy(key, value, in_group)) {
            if is_listed { messages.push(message) } else { more += 1 }
        }
    }
    for message in labels {
        if messages.len() < MAX_LISTED { messages.push(message) } else { more += 1 }
    }
    if messages.is_empty() || metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED)) {
        return None;
    }
    messages.extend((more > 0).then(|| format!("{more} more annotations or labels have no effect.")));
    Some(messages.join(" "))
}

fn fault(source: PublishSource, key: &str, value: &str) -> Option<String> {
    if !OBJECT_ANNOTATIONS.contains(&key) {
        let nearest = nearest(key);
        return Some(format!(
            "Annotation {key} is unknown and has no effect: correct it (the nearest known one is {nearest}) or remove it."
        ));
    }
    let other = match source {
        PublishSource::Service => OF_INGRESSES.contains(&key).then_some(("Ingresses", "publish the Service by an Ingress")),
        PublishSource::Ingress if key == HOSTNAME => Some(("Services", "set spec.tls[0].hosts")),
        PublishSource::Ingress => OF_SERVICES.contains(&key).then_some(("Services", "set it on the Service")),
    };
    if let Some((kind, action)) = other {
        return Some(format!("Annotation {key} is for {kind} and has no effect here: {action}, or remove it."));
    }
    let value = value.trim();
    let (is_switch, is_false) = (SWITCHES.contains(&key), matches!(value, "" | "false" | "False" | "FALSE" | "f" | "F" | "0"));
    let wanted = match key {
        HTTP_ENDPOINT if !["", "enabled", "disabled"].contains(&value) => "enabled or disabled",
        _ if is_switch && !is_true(key, value) && !is_false => "true or false",
        _ => return None,
    };
    let shown: String = value.chars().take(MAX_SHOWN).collect();
    Some(format!("Annotation {key} is {shown:?}, which has no effect: set it to {wanted}."))
}

/// Fault of an annotation that a ProxyGroup does not use.
fn of_proxy(key: &str, value: &str, in_group: bool) -> Option<String> {
    let is_off = value.trim().is_empty() || (SWITCHES.contains(&key) && !is_true(key, value.trim()));
    (in_group && OF_PROXIES.contains(&key) && !is_off).then(|| {
        format!("Annotation {key} is for objects with a proxy of their own and has no effect in a ProxyGroup: remove one of the two.")
    })
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

/// Whether an annotation is set to true.
pub fn is_on(annotations: Option<&Annotations>, key: &str) -> bool {
    annotation(annotations, key).is_some_and(|value| is_true(key, value))
}

/// Whether a value of an annotation is true, in the spellings that the Tailscale operator accepts for it.
fn is_true(key: &str, value: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Message about an object with these annotations of this value.
    fn found_in(source: PublishSource, labels: &Value, annotations: &[&str], value: &str) -> Option<String> {
        let annotations: serde_json::Map<_, _> = annotations.iter().map(|key| ((*key).to_owned(), json!(value))).collect();
        ineffective(source, &serde_json::from_value(json!({"labels": labels, "annotations": annotations})).expect("metadata"))
    }

    fn found(labels: &Value, annotations: &[&str]) -> Option<String> {
        found_in(PublishSource::Service, labels, annotations, "x")
    }

    #[test]
    fn cost_of_many_unknown_annotations_is_that_of_the_named_ones() {
        let metadata = |count: usize| {
            let annotations = (0..count).map(|number| (format!("tailscale.com/{}{number:04}", "x".repeat(59)), String::new())).collect();
            ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
        };
        let cost = |count: usize| {
            let metadata = metadata(count);
            allocation_counter::measure(|| drop(ineffective(PublishSource::Service, &metadata))).count_total
        };
        let (few, many) = (cost(MAX_LISTED + 1), cost(1_000));
        assert!(many < few + 20, "allocations: {few} {many}");
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
        let of_services: Vec<_> = OBJECT_ANNOTATIONS.into_iter().filter(|key| !OF_INGRESSES.contains(key)).collect();
        let of_ingresses: Vec<_> = OBJECT_ANNOTATIONS.into_iter().filter(|key| !OF_SERVICES.contains(key)).collect();
        for (source, annotations) in [(PublishSource::Service, of_services), (PublishSource::Ingress, of_ingresses)] {
            let switches = annotations.iter().filter(|key| ![HTTP_ENDPOINT, PROXY_GROUP].contains(key)).copied().collect::<Vec<_>>();
            assert_eq!(["true", "False", "0", " true "].map(|value| found_in(source, &Value::Null, &switches, value)), [const { None }; 4]);
            for key in switches.into_iter().filter(|key| SWITCHES.contains(key)) {
                let accepted = ["True", "TRUE", "t", " T ", "1"].map(|value| is_on(Some(&[(key.to_owned(), value.to_owned())].into()), key));
                assert_eq!(accepted, [!EXACT.contains(&key); 5], "{key}");
            }
        }
        assert_eq!(found_in(PublishSource::Ingress, &Value::Null, &[HTTP_ENDPOINT], "enabled"), None);
        assert_eq!(found(&Value::Null, &["example.com/expose", "tailscale.community/expose", "expose"]), None);
        assert_eq!(found(&json!({"tailscale.com/managed": "true"}), &["tailyard.io/next-port"]), None);
        assert_eq!(ineffective(PublishSource::Service, &ObjectMeta::default()), None);
    }

    #[test]
    fn message_about_many_annotations_is_bounded() {
        let many: Vec<String> = (0..100).map(|n| format!("tailscale.com/{}{n}", "x".repeat(60))).collect();
        let message = found(&Value::Null, &many.iter().map(String::as_str).collect::<Vec<_>>()).expect("a message");
        assert!(message.ends_with("97 more annotations or labels have no effect.") && message.len() < 1_024, "{message}");
    }

    #[test]
    fn annotation_of_another_kind_and_value_without_effect_name_an_action() {
        use PublishSource::{Ingress, Service};
        let table = [
            (Service, "tailscale.com/funnel", "true", "is for Ingresses and has no effect here: publish the Service by an Ingress"),
            (Service, "tailscale.com/http-redirect", "true", "is for Ingresses"),
            (Ingress, "tailscale.com/hostname", "app", "is for Services and has no effect here: set spec.tls[0].hosts"),
            (Ingress, "tailscale.com/expose", "true", "is for Services and has no effect here: set it on the Service"),
            (Service, "tailscale.com/expose", "yes", "is \"yes\", which has no effect: set it to true or false."),
            (Service, "tailscale.com/expose", "True", "is \"True\", which has no effect: set it to true or false."),
            (Ingress, "tailscale.com/funnel", "on", "is \"on\", which has no effect"),
            (Ingress, "tailscale.com/http-endpoint", "true", "is \"true\", which has no effect: set it to enabled or disabled."),
        ];
        for (source, key, value, why) in table {
            let message = found_in(source, &Value::Null, &[key], value).expect(key);
            assert!(message.starts_with(&format!("Annotation {key} is")) && message.contains(why), "{message}");
        }
        let long = found_in(Service, &Value::Null, &["tailscale.com/expose"], &"é".repeat(1_000)).expect("a message");
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn label_in_place_of_an_annotation_is_reported_and_the_class_label_is_not() {
        let message = found(&json!({"tailscale.com/expose": "true"}), &[]).expect("a message");
        assert_eq!(message, "Label tailscale.com/expose has no effect: set the annotation of that name, or remove the label.");
        for label in ["tailscale.com/proxy-class", "app", "tailscale.com/parent-resource", "example.com/expose"] {
            assert_eq!(found(&json!({label: "true"}), &[]), None, "{label}");
        }
    }

    #[test]
    fn annotation_for_standalone_proxies_is_reported_on_an_object_of_a_group() {
        for key in OF_PROXIES {
            let message = found_in(PublishSource::Ingress, &Value::Null, &[key, PROXY_GROUP], "true").expect(key);
            assert!(message.starts_with(&format!("Annotation {key} is for objects with a proxy of their own")), "{message}");
            assert_eq!(found_in(PublishSource::Ingress, &Value::Null, &[key], "true"), None, "{key}");
        }
        assert_eq!(found_in(PublishSource::Ingress, &Value::Null, &[STANDBY, PROXY_GROUP], "false"), None);
    }
}

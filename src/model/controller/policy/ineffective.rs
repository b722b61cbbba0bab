//! Annotations of users' Services and Ingresses with the prefixes of Tailscale or Tailyard that have no effect: without a message their
//! author does not learn why.

use crate::api::names::{
    ANNOTATION_PREFIXES, API_SERVER_CERTIFICATE, API_SERVER_HTTP, API_SERVER_MODE, EXPOSE, FORMER_EXTERNAL_NAME, FORMER_TAILNET_IP,
    FORWARD_CLUSTER_TRAFFIC, FUNNEL, HOSTNAME, HTTP_ENDPOINT, HTTP_REDIRECT, MANAGED, PROXY_CLASS, PROXY_GROUP, PROXY_PROTOCOL, STANDBY,
    TAGS, TAILNET_FQDN, TAILNET_IP,
};
use crate::model::controller::policy::annotations::is_true;
use crate::model::controller::policy::assignment::{AssignmentRules, GroupAssignment};
use crate::model::controller::policy::requests::{Parent, directions};
use AnnotationEffect::{Any, OfPublished, OfStandalone, OtherKind};

/// Maximum number of annotations in a message.
const MAX_LISTED: usize = 3;
/// Maximum number of characters of a value in a message.
const MAX_SHOWN: usize = 32;
/// Annotations that are true or false.
const SWITCHES: [&str; 5] = [EXPOSE, HTTP_REDIRECT, FUNNEL, FORWARD_CLUSTER_TRAFFIC, STANDBY];
/// Annotations that operators write; the last is one of the Tailscale operator.
const OF_OPERATORS: [&str; 5] =
    [FORMER_EXTERNAL_NAME, API_SERVER_MODE, API_SERVER_HTTP, API_SERVER_CERTIFICATE, "tailscale.com/magic-dnsname"];

/// Effect of an annotation on an object, or the reason why it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnnotationEffect {
    /// It has one, or the validation of the object reports it.
    Any,
    /// It is for Ingresses, and the object is a Service, or the reverse.
    OtherKind,
    /// It is for objects with a proxy of their own.
    OfStandalone,
    /// It is for published Services, and this one has a target in the tailnet.
    OfPublished,
}

/// Effects of an annotation on Services with a target in the tailnet, on other Services and on Ingresses.
type Effects = [AnnotationEffect; 3];
const EVERYWHERE: Effects = [Any, Any, Any];
const ON_SERVICES: Effects = [Any, Any, OtherKind];
const ON_INGRESSES: Effects = [OtherKind, OtherKind, Any];

/// Every annotation that users write, with its effects on objects of a `ProxyGroup`, and on those with a proxy of their own.
const EFFECTS: [(&str, Effects, Effects); 14] = [
    (EXPOSE, [OfPublished, Any, OtherKind], ON_SERVICES),
    (HOSTNAME, [OfStandalone, Any, OtherKind], ON_SERVICES),
    (TAGS, [OfStandalone, Any, Any], EVERYWHERE),
    (TAILNET_FQDN, ON_SERVICES, ON_SERVICES),
    (TAILNET_IP, ON_SERVICES, ON_SERVICES),
    (FORMER_TAILNET_IP, [OfStandalone, OfStandalone, OtherKind], ON_SERVICES),
    (PROXY_CLASS, [OfStandalone; 3], EVERYWHERE),
    (PROXY_GROUP, EVERYWHERE, EVERYWHERE),
    (HTTP_REDIRECT, ON_INGRESSES, ON_INGRESSES),
    (HTTP_ENDPOINT, ON_INGRESSES, ON_INGRESSES),
    (FUNNEL, ON_INGRESSES, ON_INGRESSES),
    (PROXY_PROTOCOL, [OfPublished, Any, Any], [OfPublished, Any, Any]),
    (STANDBY, [OfStandalone; 3], EVERYWHERE),
    (FORWARD_CLUSTER_TRAFFIC, [OtherKind, OtherKind, OfStandalone], ON_INGRESSES),
];

/// What serves an object.
#[derive(Debug, Clone, Copy)]
enum Server<'a> {
    Group(GroupAssignment<'a>, &'a str),
    OwnProxy,
    /// The Service requests nothing of Tailscale.
    Nothing,
    /// Another operator may serve it, its group is not known yet, or the fault of its group is reported elsewhere.
    Unknown,
}

/// An object with the effects of annotations on it.
struct Subject<'a> {
    object: Parent<'a>,
    server: Server<'a>,
    /// Index of [`Effects`].
    request: usize,
}

impl<'a> Subject<'a> {
    fn new(object: Parent<'a>, rules: &'a AssignmentRules) -> Self {
        let (assignment, request) = match object {
            Parent::Ingress(ingress) => (rules.ingress(ingress), 2),
            Parent::Service(service) => match rules.egress(service) {
                GroupAssignment::NotOurs => (rules.published(service), 1),
                assignment => (assignment, 0),
            },
        };
        let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
        let (server, request) = match (assignment.group(), object) {
            (Some(group), _) => (Server::Group(assignment, group), request),
            (None, Parent::Service(service)) if rules.is_standalone(service) => (Server::OwnProxy, usize::from(!directions(service).1)),
            (None, Parent::Ingress(ingress)) if rules.is_standalone_ingress(ingress) => (Server::OwnProxy, request),
            (None, Parent::Service(_)) if assignment == GroupAssignment::NotOurs && rules.standalone.has(namespace) => {
                (Server::Nothing, request)
            }
            (None, _) => (Server::Unknown, request),
        };
        Self { object, server, request }
    }

    /// Fault of an annotation, or of a label in its place.
    fn fault(&self, what: &str, key: &str, value: &str) -> Option<String> {
        let Some((_, in_group, own)) = EFFECTS.iter().find(|(annotation, ..)| *annotation == key) else {
            return (!OF_OPERATORS.contains(&key)).then(|| unknown(key));
        };
        let effect = match self.server {
            Server::Group(..) => in_group[self.request],
            _ => own[self.request],
        };
        if effect == OtherKind {
            return Some(self.of_other_kind(key));
        }
        if let Some(fault) = invalid(key, value) {
            return Some(fault);
        }
        let is_off = value.is_empty() || (is_false(value) && (SWITCHES.contains(&key) || key == PROXY_PROTOCOL));
        match (self.server, effect) {
            _ if is_off => None,
            (Server::Nothing, _) => Some(format!(
                "{what} {key} has no effect: the Service requests nothing of Tailscale. Set {EXPOSE}, {TAILNET_FQDN} or {TAILNET_IP}, or \
                 remove it."
            )),
            (Server::Group(assignment, group), OfStandalone) => Some(format!(
                "{what} {key} is for objects with a proxy of their own and has no effect: {} Remove it, or set {PROXY_GROUP} to \"\".",
                assignment.message(group, "serves this one.")
            )),
            (Server::Group(..) | Server::OwnProxy, OfPublished) => {
                Some(format!("{what} {key} is for published Services and has no effect on one with a target in the tailnet: remove it."))
            }
            _ => None,
        }
    }

    fn of_other_kind(&self, key: &str) -> String {
        let (kind, action) = match self.object {
            Parent::Service(_) => ("Ingresses", "publish the Service by an Ingress"),
            Parent::Ingress(_) if key == HOSTNAME => ("Services", "set spec.tls[0].hosts"),
            Parent::Ingress(_) => ("Services", "set it on the Service"),
        };
        format!("Annotation {key} is for {kind} and has no effect here: {action}, or remove it.")
    }
}

/// Every annotation of Services and Ingresses that users write.
pub fn user_annotations() -> impl Iterator<Item = &'static str> {
    EFFECTS.into_iter().map(|(key, ..)| key)
}

/// Message about the annotations of an object that have no effect: unknown ones, those of another kind or of objects that are served
/// otherwise, values that are neither true nor false, and labels in place of annotations. `None` if it has none, or is not a user's.
pub fn ineffective(object: Parent<'_>, rules: &AssignmentRules) -> Option<String> {
    let is_known = |key: &str| user_annotations().any(|annotation| annotation == key);
    let metadata = object.metadata();
    let has_prefix = |key: &str| ANNOTATION_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let annotations = metadata.annotations.iter().flatten().filter(|(key, _)| has_prefix(key));
    let labels = metadata.labels.iter().flatten().filter(|(key, _)| is_known(key));
    let is_created = || metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED));
    if (annotations.clone().next().is_none() && labels.clone().next().is_none()) || is_created() {
        return None;
    }
    let subject = Subject::new(object, rules);
    let (mut messages, mut more) = (Vec::new(), 0);
    for (key, value) in annotations {
        let is_listed = messages.len() < MAX_LISTED;
        if !is_listed && !is_known(key) {
            // Only the message has the nearest name, which costs more than all else.
            more += usize::from(!OF_OPERATORS.contains(&key.as_str()));
        } else if let Some(message) = subject.fault("Annotation", key, value.trim()) {
            if is_listed { messages.push(message) } else { more += 1 }
        }
    }
    for (key, value) in labels {
        let message = match subject.server {
            _ if key != PROXY_CLASS => Some(format!("Label {key} has no effect: set the annotation of that name, or remove the label.")),
            Server::Group(..) => subject.fault("Label", key, value.trim()),
            // An application may have it on all its objects.
            _ => None,
        };
        let Some(message) = message else { continue };
        if messages.len() < MAX_LISTED { messages.push(message) } else { more += 1 }
    }
    messages.extend((more > 0).then(|| format!("{more} more annotations or labels have no effect.")));
    (!messages.is_empty()).then(|| messages.join(" "))
}

/// Fault of a value.
fn invalid(key: &str, value: &str) -> Option<String> {
    let wanted = match key {
        HTTP_ENDPOINT if !["", "enabled", "disabled"].contains(&value) => "enabled or disabled",
        _ if SWITCHES.contains(&key) && !is_true(key, value) && !is_false(value) => "true or false",
        _ => return None,
    };
    let shown: String = value.chars().take(MAX_SHOWN).collect();
    Some(format!("Annotation {key} is {shown:?}, which has no effect: set it to {wanted}."))
}

fn is_false(value: &str) -> bool {
    matches!(value, "" | "false" | "False" | "FALSE" | "f" | "F" | "0")
}

fn unknown(key: &str) -> String {
    let nearest = nearest(key);
    format!("Annotation {key} is unknown and has no effect: correct it (the nearest known one is {nearest}) or remove it.")
}

/// The known annotation with the smallest edit distance, without regard to case and prefix.
fn nearest(key: &str) -> &'static str {
    let name = |key: &str| key.split_once('/').map_or(key, |(_, name)| name).to_ascii_lowercase();
    let wanted = name(key);
    user_annotations().min_by_key(|annotation| distance(&wanted, &name(annotation))).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::controller::policy::annotations::{EXACT, is_on};
    use crate::model::controller::policy::assignment::{DefaultGroups, StandaloneScope};

    /// Message about a Service or an Ingress.
    fn message(kind: &str, object: &Value, rules: &AssignmentRules) -> Option<String> {
        match kind {
            "Service" => ineffective(Parent::Service(&serde_json::from_value(object.clone()).expect("a Service")), rules),
            _ => ineffective(Parent::Ingress(&serde_json::from_value(object.clone()).expect("an Ingress")), rules),
        }
    }

    /// Message about an object with these annotations of this value, which another operator may serve.
    fn found_in(kind: &str, labels: &Value, annotations: &[&str], value: &str) -> Option<String> {
        let annotations: serde_json::Map<_, _> = annotations.iter().map(|key| ((*key).to_owned(), json!(value))).collect();
        message(kind, &json!({"metadata": {"labels": labels, "annotations": annotations}}), &AssignmentRules::default())
    }

    fn found(labels: &Value, annotations: &[&str]) -> Option<String> {
        found_in("Service", labels, annotations, "x")
    }

    #[test]
    fn cost_of_many_unknown_annotations_is_that_of_the_named_ones() {
        let rules = AssignmentRules::default();
        let cost = |count: usize| {
            let annotations = (0..count).map(|number| (format!("tailscale.com/{}{number:04}", "x".repeat(59)), String::new())).collect();
            let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            let service = Service { metadata, ..Service::default() };
            allocation_counter::measure(|| drop(ineffective(Parent::Service(&service), &rules))).count_total
        };
        let (few, many) = (cost(MAX_LISTED + 1), cost(1_000));
        assert!(many < few + 20, "allocations: {few} {many}");
    }

    /// Names with the prefixes that are no annotations of Services and Ingresses.
    const OTHERS: &str = "managed parent-resource-type parent-resource parent-resource-ns parent-service parent-connector parent-ingress parent-namespace \
        secret-type default-proxy-group svc-type finalizer domain acme-order-status ingress-pg-finalizer service-pg-finalizer ts-ingress \
        share-acme-account certificate-orders-of acme-account-protection kube-apiserver-finalizer adopt-services adopted unreachable handback-requested-by \
        allow-ingress-tls namespaces auth-key-id auth-key new-replica device uninstall uninstall-remaining \
        limit-standalone";

    #[test]
    fn every_name_with_the_prefixes_is_an_annotation_with_effects_or_another_name() {
        let text = include_str!("../../../api/names.rs");
        let values = text.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = \"")?.1.split('"').next());
        let names: Vec<_> = values.filter(|name| ANNOTATION_PREFIXES.iter().any(|prefix| name.starts_with(prefix))).collect();
        assert!(names.len() > 40, "{names:?}");
        for name in names {
            let is_annotation = OF_OPERATORS.contains(&name) || user_annotations().any(|annotation| annotation == name);
            let is_other = OTHERS.split_whitespace().any(|other| name.split('/').nth(1) == Some(other));
            assert!(is_annotation != is_other, "{name}: add it to the effects of annotations, or to the other names");
        }
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
        for (kind, request) in [("Service", 1), ("Ingress", 2)] {
            let annotations = EFFECTS.into_iter().filter(|(.., own)| own[request] != OtherKind).map(|(key, ..)| key);
            let switches: Vec<_> = annotations.filter(|key| ![HTTP_ENDPOINT, PROXY_GROUP].contains(key)).collect();
            assert_eq!(["true", "False", "0", " true "].map(|value| found_in(kind, &Value::Null, &switches, value)), [const { None }; 4]);
            for key in switches.into_iter().filter(|key| SWITCHES.contains(key)) {
                let accepted =
                    ["True", "TRUE", "t", " T ", "1"].map(|value| is_on(Some(&[(key.to_owned(), value.to_owned())].into()), key));
                assert_eq!(accepted, [!EXACT.contains(&key); 5], "{key}");
            }
        }
        assert_eq!(found_in("Ingress", &Value::Null, &[HTTP_ENDPOINT], "enabled"), None);
        assert_eq!(found(&Value::Null, &OF_OPERATORS), None);
        assert_eq!(found(&Value::Null, &["example.com/expose", "tailscale.community/expose", "expose"]), None);
        assert_eq!(found(&json!({"tailscale.com/managed": "true"}), &["tailyard.io/next-port"]), None);
        assert_eq!(found(&Value::Null, &[]), None);
    }

    #[test]
    fn message_about_many_annotations_is_bounded() {
        let many: Vec<String> = (0..100).map(|n| format!("tailscale.com/{}{n}", "x".repeat(60))).collect();
        let message = found(&Value::Null, &many.iter().map(String::as_str).collect::<Vec<_>>()).expect("a message");
        assert!(message.ends_with("97 more annotations or labels have no effect.") && message.len() < 1_024, "{message}");
    }

    #[test]
    fn annotation_of_another_kind_and_value_without_effect_name_an_action() {
        let table = [
            ("Service", "tailscale.com/funnel", "true", "is for Ingresses and has no effect here: publish the Service by an Ingress"),
            ("Service", "tailscale.com/http-redirect", "true", "is for Ingresses"),
            ("Ingress", "tailscale.com/hostname", "app", "is for Services and has no effect here: set spec.tls[0].hosts"),
            ("Ingress", "tailscale.com/expose", "true", "is for Services and has no effect here: set it on the Service"),
            ("Service", "tailscale.com/expose", "True", "is \"True\", which has no effect: set it to true or false."),
            ("Service", "tailscale.com/expose", "yes", "is \"yes\", which has no effect: set it to true or false."),
            ("Ingress", "tailscale.com/funnel", "on", "is \"on\", which has no effect"),
            ("Ingress", "tailscale.com/http-endpoint", "true", "is \"true\", which has no effect: set it to enabled or disabled."),
        ];
        for (kind, key, value, why) in table {
            let message = found_in(kind, &Value::Null, &[key], value).expect(key);
            assert!(message.starts_with(&format!("Annotation {key} is")) && message.contains(why), "{message}");
        }
        let long = found_in("Service", &Value::Null, &["tailscale.com/expose"], &"é".repeat(1_000)).expect("a message");
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
    fn message_names_the_group_of_the_object_and_an_action() {
        let defaults = DefaultGroups { ingress: Some("in".into()), egress: Some("eg".into()) };
        let namespaces = ["u".to_owned()].into_iter().collect();
        let rules = AssignmentRules { namespaces, defaults, standalone: StandaloneScope::Everywhere, ..AssignmentRules::default() };
        let of_standalone = "is for objects with a proxy of their own and has no effect: ProxyGroup";
        let action = "serves this one. Remove it, or set tailscale.com/proxy-group to \"\".";
        let table = [
            (
                json!({STANDBY: "true", EXPOSE: "true"}),
                json!({}),
                format!(
                    "Annotation {STANDBY} {of_standalone} in, the default of \
                --default-ingress-group (chart: defaultProxyGroups.ingress), {action}"
                ),
            ),
            (
                json!({HOSTNAME: "db", TAILNET_IP: "100.64.0.1"}),
                json!({}),
                format!(
                    "Annotation {HOSTNAME} {of_standalone} eg, the default of \
                --default-egress-group (chart: defaultProxyGroups.egress), {action}"
                ),
            ),
            (
                json!({TAGS: "tag:db", TAILNET_IP: "100.64.0.1", PROXY_GROUP: "own"}),
                json!({}),
                format!("Annotation {TAGS} {of_standalone} own {action}"),
            ),
            (
                json!({EXPOSE: "true", PROXY_GROUP: "own"}),
                json!({PROXY_CLASS: "c"}),
                format!("Label {PROXY_CLASS} {of_standalone} own {action}"),
            ),
            (
                json!({EXPOSE: "true", TAILNET_IP: "100.64.0.1"}),
                json!({}),
                format!(
                    "Annotation {EXPOSE} is for published Services and has no \
                effect on one with a target in the tailnet: remove it."
                ),
            ),
            (
                json!({PROXY_GROUP: "own"}),
                json!({PROXY_CLASS: "c"}),
                format!(
                    "Annotation {PROXY_GROUP} has no effect: the Service requests \
                nothing of Tailscale. Set {EXPOSE}, {TAILNET_FQDN} or {TAILNET_IP}, or remove it."
                ),
            ),
        ];
        for (annotations, labels, expected) in table {
            let service = json!({"metadata": {"namespace": "u", "name": "s", "annotations": annotations, "labels": labels}});
            assert_eq!(message("Service", &service, &rules), Some(expected), "{annotations}");
        }
        for value in ["", "false", "0"] {
            let annotations = json!({STANDBY: value, EXPOSE: "true", PROXY_CLASS: ""});
            assert_eq!(message("Service", &json!({"metadata": {"namespace": "u", "annotations": annotations}}), &rules), None, "{value:?}");
        }
    }
}

use serde_json::json;

use super::*;
use crate::api::proxyclass::PortRange;

const RULES: ClassRules = ClassRules { service_monitors: false, refusal };

fn refusal(name: &str, _value: &str, _own_image: bool) -> Option<String> {
    ["TS_EXTRA_ARGS", "TS_HOSTNAME"].contains(&name).then(|| format!("{name} cannot be set"))
}

#[allow(clippy::needless_pass_by_value, reason = "callers write the spec in place")]
fn class(spec: serde_json::Value) -> ProxyClass {
    let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
        "metadata": {"name": "c", "generation": 3, "finalizers": [FINALIZER]}, "spec": spec});
    serde_json::from_value(object).expect("a class")
}

fn message(class: &ProxyClass, others: &[Arc<ProxyClass>]) -> String {
    let status = validate(class, others, &[], RULES, Timestamp::UNIX_EPOCH).status.expect("news");
    status.conditions.last().expect("a condition").message.clone()
}

#[test]
fn valid_class_becomes_ready_once() {
    let mut class = class(json!({"statefulSet": {"labels": {"a.b/c": "d"}, "pod": {"tailscaleContainer": {"image": "r.io:5000/a/b:1"}}}}));
    assert!(!is_ready(&class));
    class.status = validate(&class, &[], &[], RULES, Timestamp::UNIX_EPOCH).status;
    assert!(is_ready(&class), "{:?}", class.status);
    assert_eq!(validate(&class, &[], &[], RULES, Timestamp::UNIX_EPOCH), Validation::default());
    class.metadata.generation = Some(4);
    assert!(!is_ready(&class), "what it says now was not looked at");
}

#[test]
fn each_class_violation_has_a_message() {
    let cases = [
        (json!({"statefulSet": {"labels": {"-bad": "x"}}}), "no valid key"),
        (json!({"statefulSet": {"pod": {"labels": {"good": "-"}}}}), "no valid label value"),
        (json!({"statefulSet": {"pod": {"annotations": {"UPPER.example/x": "anything at all"}}}}), "no valid key"),
        (json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "no spaces please"}}}}), "no image reference"),
        (json!({"statefulSet": {"pod": {"tailscaleInitContainer": {"debug": {"enable": true}}}}}), "no meaning for an init container"),
        (
            json!({"statefulSet": {"pod": {"tailscaleContainer": {"env": [{"name": "TS_HOSTNAME", "value": "x"}]}}}}),
            "tailscaleContainer.env: TS_HOSTNAME cannot be set",
        ),
        (
            json!({"statefulSet": {"pod": {"tailscaleInitContainer": {"env": [{"name": "TS_EXTRA_ARGS", "value": "--advertise-tags=tag:x"}]}}}}),
            "tailscaleInitContainer.env: TS_EXTRA_ARGS cannot be set",
        ),
        (json!({"metrics": {"enable": true, "serviceMonitor": {"enable": true}}}), "no ServiceMonitor"),
        (json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 100, "endPort": 90}]}}}), "no range of ports"),
        (
            json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 100, "endPort": 120}, {"port": 110}]}}}),
            "another range of this class",
        ),
    ];
    for (spec, expected) in cases {
        let message = message(&class(spec.clone()), &[]);
        assert!(message.contains(expected), "{spec}: {message}");
    }
}

#[test]
fn node_ports_of_a_ready_class_are_a_conflict() {
    let spec = json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 31000, "endPort": 31010}]}}});
    let mut other = class(spec.clone());
    other.metadata.name = Some("other".into());
    assert_eq!(message(&class(spec.clone()), &[Arc::new(other.clone())]), "the class can be used", "one that is not ready holds nothing");
    other.status = validate(&other, &[], &[], RULES, Timestamp::UNIX_EPOCH).status;
    let mut mine = class(spec);
    assert!(message(&mine, &[Arc::new(other.clone())]).contains("overlaps a range of ProxyClass other"));
    mine.spec.static_endpoints.as_mut().expect("endpoints").node_port.ports = vec![PortRange { port: 31011, end_port: None }];
    assert_eq!(message(&mine, &[Arc::new(other)]), "the class can be used");
}

#[test]
fn used_class_keeps_its_finalizer() {
    let mut class = class(json!({}));
    class.metadata.finalizers = None;
    let finalizers = validate(&class, &[], &[], RULES, Timestamp::UNIX_EPOCH).finalizers;
    assert_eq!(finalizers, Some(vec![FINALIZER.to_owned()]));
    class.metadata.finalizers = finalizers;
    class.metadata.deletion_timestamp = Some(conditions::seconds(Timestamp::UNIX_EPOCH));
    assert_eq!(validate(&class, &[], &["g".into()], RULES, Timestamp::UNIX_EPOCH), Validation::default());
    assert_eq!(validate(&class, &[], &[], RULES, Timestamp::UNIX_EPOCH).finalizers, Some(Vec::new()));
}

#[test]
fn reserved_env_variables_cause_a_warning() {
    let spec =
        json!({"statefulSet": {"pod": {"tailscaleContainer": {"env": [{"name": "TS_USERSPACE", "value": "true"}, {"name": "HOME"}]}}}});
    let warnings = validate(&class(spec), &[], &[], RULES, Timestamp::UNIX_EPOCH).warnings;
    assert_eq!(warnings.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), ["CustomTSEnvVar"]);
}

#[test]
fn class_is_usable_without_its_refused_variables_if_it_has_no_other_fault() {
    let env = json!([{"name": "TS_EXTRA_ARGS", "value": "--advertise-tags=tag:x"}, {"name": "TS_DEBUG_MTU", "value": "1200"}]);
    let spec = |image: &str| json!({"statefulSet": {"pod": {"tailscaleContainer": {"env": env, "image": image}}}});
    let usable = without_refused_variables(&class(spec("r.io/a:1")), &[], RULES).expect("no other fault");
    let names: Vec<_> = containers(&usable.spec).flat_map(|(_, container)| &container.env).map(|env| env.name.as_str()).collect();
    assert_eq!(names, ["TS_DEBUG_MTU"]);
    assert_eq!(without_refused_variables(&class(spec("no image")), &[], RULES), None);
    assert_eq!(without_refused_variables(&class(json!({})), &[], RULES), None);
}

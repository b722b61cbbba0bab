//! The admission policy of proxies.

use super::*;

/// Asserts the warning about a policy or binding that has this value at a pointer.
fn policy_finds(binding: bool, pointer: &str, value: Value, word: &str) {
    let mut objects = policy_objects();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    objects[usize::from(binding)].pointer_mut(parent).expect("an object")[field] = value;
    let [policy, policy_binding] = objects.map(|object| Ok(Some(object)));
    finds(&ClusterFacts { policy, policy_binding, ..well() }, "admission-policy", Finding::Warn, word);
}

#[test]
fn admission_policy_is_in_force_only_if_it_denies_in_the_namespace() {
    let name = "admission-policy";
    finds(&well(), name, Finding::Ok, "proxies in ts can change only data of Secrets");
    finds(
        &ClusterFacts { policy: Ok(None), ..well() },
        name,
        Finding::Warn,
        "ValidatingAdmissionPolicy tailyard-proxy-secrets does not exist",
    );
    finds(
        &ClusterFacts { policy_binding: Ok(None), ..well() },
        name,
        Finding::Warn,
        "ValidatingAdmissionPolicyBinding tailyard-proxy-secrets does not",
    );
    finds(&ClusterFacts { policy_binding: Err(Gap::Forbidden), ..well() }, name, Finding::Warn, "cannot be read: not allowed");
    finds(&ClusterFacts { namespace: "other".into(), ..well() }, name, Finding::Warn, "does not select namespace other");

    policy_finds(false, "/spec/failurePolicy", json!("Ignore"), "spec.failurePolicy");
    policy_finds(false, "/spec/matchConditions", Value::Null, "spec.matchConditions");
    policy_finds(false, "/spec/variables/3/expression", json!("[]"), "spec.variables");
    policy_finds(false, "/spec/validations/0/expression", json!("true"), "spec.validations");
    policy_finds(false, "/spec/matchConstraints/resourceRules/0/resources", json!(["configmaps"]), "spec.matchConstraints.resourceRules");
    let labels = json!({"matchLabels": {"a": "b"}});
    policy_finds(false, "/spec/matchConstraints/objectSelector", labels.clone(), "does not match all Secrets");
    policy_finds(false, "/spec/paramKind", json!({"apiVersion": "v1", "kind": "ConfigMap"}), "does not match all Secrets");
    policy_finds(true, "/spec/validationActions", json!(["Audit"]), "does not deny anything");
    policy_finds(true, "/spec/policyName", json!("another"), "does not deny anything");
    policy_finds(true, "/spec/matchResources/objectSelector", labels.clone(), "does not select namespace ts");
    policy_finds(true, "/spec/matchResources/namespaceSelector", labels, "does not select namespace ts");
}

#[test]
fn admission_policy_permits_the_annotation_of_certificate_orders() {
    let [policy, _] = policy_objects();
    let compared = policy["spec"]["variables"][2]["expression"].as_str().expect("CEL");
    assert_eq!(compared.matches(&format!("key == '{}'", crate::api::names::ISSUANCE)).count(), 2, "{compared}");
}

#[test]
fn defaults_of_the_api_server_do_not_count_as_another_policy() {
    let [mut policy, mut binding] = policy_objects();
    for field in ["namespaceSelector", "objectSelector"] {
        policy["spec"]["matchConstraints"][field] = json!({});
    }
    policy["spec"]["matchConstraints"]["matchPolicy"] = json!("Equivalent");
    binding["spec"]["matchResources"]["objectSelector"] = json!({});
    binding["spec"]["matchResources"]["matchPolicy"] = json!("Equivalent");
    finds(
        &ClusterFacts { policy: Ok(Some(policy)), policy_binding: Ok(Some(binding.clone())), ..well() },
        "admission-policy",
        Finding::Ok,
        "ts",
    );
    binding["spec"].as_object_mut().expect("a spec").remove("matchResources");
    finds(&ClusterFacts { policy_binding: Ok(Some(binding)), ..well() }, "admission-policy", Finding::Ok, "ts");
}

//! Take-over of the Tailscale operator's own device: the state of its tailnet node becomes that of our proxy, so that name, address and every
//! kubeconfig stay.
//!
//! The Secret of the Tailscale operator is only read: it may go back to it. Two processes must not be one node, so that nothing is taken over
//! while the operator runs.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize as _;
use serde_json::Value;

use crate::api::state::{CURRENT_PROFILE, DEVICE_ID, MACHINE_KEY, PROFILE_PREFIX, PROFILES};
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::observed::Observed;

/// Variable by which the Tailscale operator names its Secret.
const OPERATOR_SECRET: &str = "OPERATOR_SECRET";

/// Whether the operator's device is requested and did not start yet: until then the Tailscale operator may be started again.
pub fn is_due(observed: &Observed) -> bool {
    let Some(Parent::Service(service)) = observed.parent() else { return false };
    let rules = &observed.assignment;
    let is_requested = rules.device_of(service).is_some() && rules.is_standalone(service) && service.metadata.deletion_timestamp.is_none();
    let is_new = observed.replicas.get(&0).is_none_or(|replica| replica.config.is_none() && replica.pod.is_none());
    is_requested && is_new && !observed.workload.is_empty()
}

/// State of the device in the Secret of the Tailscale operator, as data of a replica's state Secret; `None` if it has no device.
pub fn device_state(secret: &Value) -> Option<BTreeMap<String, ByteString>> {
    let data = Secret::deserialize(secret).ok()?.data?;
    let profile = String::from_utf8(data.get(CURRENT_PROFILE)?.0.clone()).ok().filter(|key| key.starts_with(PROFILE_PREFIX))?;
    let content: Value = serde_json::from_slice(&data.get(&profile)?.0).ok()?;
    let id = DeviceId::parse(content["Config"]["NodeID"].as_str()?)?;
    let is_state = |key: &str| [MACHINE_KEY, PROFILES, CURRENT_PROFILE].contains(&key) || key.starts_with(PROFILE_PREFIX);
    let state = data.into_iter().filter(|(key, _)| is_state(key));
    Some(state.chain([(DEVICE_ID.to_owned(), ByteString(id.as_str().into()))]).collect())
}

/// Why the device of a Tailscale operator with this Secret cannot be taken over now, by the Deployments of its namespace.
pub fn fault(deployments: &[Value], secret: &str) -> Option<String> {
    let operator = deployments.iter().find(|deployment| is_running(deployment) && has_secret(deployment, secret))?;
    let name = operator["metadata"]["name"].as_str().unwrap_or_default();
    Some(format!(
        "The Tailscale operator runs and is the device itself: scale Deployment {name} to 0, or set apiServerProxyConfig.mode of the chart \
         to \"false\" (--api-server-proxy)."
    ))
}

fn is_running(deployment: &Value) -> bool {
    // Pods that end are no replicas, and are counted by newer versions of Kubernetes alone.
    let pods = ["replicas", "terminatingReplicas"].map(|count| deployment["status"][count].as_i64().unwrap_or(0));
    deployment["spec"]["replicas"].as_i64().unwrap_or(1) > 0 || pods.iter().any(|count| *count > 0)
}

/// Whether a Deployment is the Tailscale operator of this Secret.
fn has_secret(deployment: &Value, secret: &str) -> bool {
    let template = &deployment["spec"]["template"];
    let is_ours = template["metadata"]["labels"]["app.kubernetes.io/name"] == "tailyard";
    let containers = template["spec"]["containers"].as_array().into_iter().flatten();
    let mut variables = containers.flat_map(|container| container["env"].as_array().into_iter().flatten());
    !is_ours && variables.any(|variable| variable["name"] == OPERATOR_SECRET && variable["value"] == secret)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(data: &[(&str, &str)]) -> Value {
        let data: BTreeMap<_, _> = data.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec()))).collect();
        json!({"metadata": {"name": "operator"}, "data": data})
    }

    #[test]
    fn state_of_the_tailscale_operator_is_copied_without_certificates() {
        let profile = r#"{"Config": {"NodeID": "nA1CNTRL"}, "Hostname": "tailscale-operator"}"#;
        let whole = [("_machinekey", "m"), ("_profiles", "p"), ("_current-profile", "profile-1"), ("profile-1", profile)];
        let others = [("tailscale-operator.tail1.ts.net.key", "k"), ("acme-account.key.pem", "k"), ("_serve_profile-1", "{}")];
        let state = device_state(&secret(&[&whole[..], &others].concat())).expect("a device");
        let expected: BTreeMap<_, _> = whole.iter().chain(&[("device_id", "nA1CNTRL")]).copied().collect();
        let found: BTreeMap<_, _> = state.iter().map(|(key, value)| (key.as_str(), std::str::from_utf8(&value.0).expect("text"))).collect();
        assert_eq!(found, expected);
        for lacking in [
            secret(&[]),
            json!({}),
            secret(&whole[..3]),
            secret(&[whole[2], ("profile-1", "{}")]),
            secret(&[("_current-profile", "device_id"), ("device_id", profile)]),
        ] {
            assert_eq!(device_state(&lacking), None, "{lacking}");
        }
    }

    #[test]
    fn only_a_running_tailscale_operator_of_the_secret_is_in_the_way() {
        let deployment = |labels: Value, secret: &str, replicas: Value, pods: Value| {
            let env = json!([{"name": "OPERATOR_SECRET", "value": secret}]);
            let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"env": env}]}});
            json!({"metadata": {"name": "op"}, "spec": {"replicas": replicas, "template": template}, "status": {"replicas": pods}})
        };
        let (theirs, ours) = (json!({"app": "operator"}), json!({"app.kubernetes.io/name": "tailyard"}));
        let mut ending = deployment(theirs.clone(), "operator", json!(0), json!(null));
        ending["status"]["terminatingReplicas"] = json!(1);
        let table = [
            (ending, true),
            (deployment(theirs.clone(), "operator", json!(1), json!(1)), true),
            (deployment(theirs.clone(), "operator", json!(null), json!(null)), true),
            (deployment(theirs.clone(), "operator", json!(0), json!(1)), true),
            (deployment(theirs.clone(), "operator", json!(0), json!(null)), false),
            (deployment(theirs, "other", json!(1), json!(1)), false),
            (deployment(ours, "operator", json!(1), json!(1)), false),
        ];
        for (deployment, is_in_the_way) in table {
            let fault = fault(std::slice::from_ref(&deployment), "operator");
            assert_eq!(fault.as_ref().is_some_and(|fault| fault.contains("scale Deployment op to 0")), is_in_the_way, "{deployment}");
        }
        assert_eq!(fault(&[], "operator"), None);
    }
}

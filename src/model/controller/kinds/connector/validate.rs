//! Validation of a Connector's spec besides its routes; each fault is a message with field and action.
//!
//! Also what the definition of the kind rejects: objects may be older than it, or it may be the Tailscale operator's of another version.

use crate::api::connector::{Connector, ConnectorSpec};
use crate::model::controller::policy::annotations::{dns_label, is_tag};
use crate::model::controller::policy::fault_list::FaultList;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::spec::WorkloadSpec;

/// Maximum number of replicas: a pass handles each, and the field has room for billions.
pub(crate) const MAX_REPLICAS: u32 = 100;
/// Maximum length of a label's value.
const MAX_LABEL: usize = 63;

/// Faults of a spec.
pub(crate) fn spec(connector: &Connector, workload: &WorkloadSpec<'_>) -> FaultList {
    let (mut wrong, spec) = (FaultList::default(), &connector.spec);
    roles(spec, &mut wrong);
    match spec.replicas {
        Some(replicas) if replicas < 0 => wrong.add(|| format!("spec.replicas is {replicas}: set it to 0 or more.")),
        Some(replicas) if replicas.unsigned_abs() > MAX_REPLICAS => {
            wrong.add(|| format!("spec.replicas is {replicas}: set it to at most {MAX_REPLICAS}."));
        }
        _ => {}
    }
    names(connector, workload, &mut wrong);
    for tag in spec.tags.iter().filter(|tag| !is_tag(tag)) {
        wrong.add(|| format!("spec.tags: {tag:?} is not a tag such as tag:router: correct or remove it."));
    }
    wrong
}

fn roles(spec: &ConnectorSpec, wrong: &mut FaultList) {
    let is_router = spec.subnet_router.is_some() || spec.exit_node;
    match (is_router, spec.app_connector.is_some()) {
        (false, false) => wrong.add(|| "The spec requests nothing: set spec.subnetRouter, spec.exitNode or spec.appConnector.".into()),
        (true, true) => wrong.add(|| {
            "spec.appConnector excludes spec.subnetRouter and spec.exitNode: remove one of them, and create another Connector for it."
                .into()
        }),
        _ => {}
    }
    if spec.subnet_router.as_ref().is_some_and(|router| router.advertise_routes.is_empty()) {
        wrong.add(|| "spec.subnetRouter.advertiseRoutes is empty: name a route, or remove spec.subnetRouter.".into());
    }
}

fn names(connector: &Connector, workload: &WorkloadSpec<'_>, wrong: &mut FaultList) {
    let spec = &connector.spec;
    let (has_hostname, has_prefix) = (spec.hostname.is_some(), spec.hostname_prefix.is_some());
    if has_hostname && has_prefix {
        wrong.add(|| "spec.hostname and spec.hostnamePrefix exclude each other: remove one of them.".into());
    } else if has_hostname && workload.replicas > 1 {
        wrong.add(|| format!("spec.hostname is for one device, and spec.replicas is {}: set spec.hostnamePrefix.", workload.replicas));
    }
    let name = connector.metadata.name.as_deref().unwrap_or_default();
    if name.len() > MAX_LABEL {
        wrong.add(|| format!("The name has {} characters, and labels at most {MAX_LABEL}: create it under a shorter name.", name.len()));
    }
    // The last replica has the longest name.
    let hostname = workload.hostname(workload.replicas.saturating_sub(1));
    if !dns_label(&hostname) {
        let field = if has_hostname || has_prefix { "" } else { "spec.hostname or " };
        wrong.add(|| {
            format!(
                "Its host name {hostname:?} is no DNS label: set {field}{} to another name.",
                if has_hostname { "spec.hostname" } else { "spec.hostnamePrefix" }
            )
        });
    }
}

/// Why the image or a variable of the `ProxyClass` does not fit.
pub(crate) fn image(shape: &RenderContext<'_>) -> Option<&'static str> {
    let other = "The image of spec.proxyClass is for ProxyGroups of type kube-apiserver: name one of a proxy.";
    shape.userspace_fault().or_else(|| shape.is_k8s_proxy().then_some(other))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::controller::kinds::connector;

    fn faults(name: &str, spec: &Value) -> String {
        let connector: Connector = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a Connector");
        super::spec(&connector, &connector::spec(&connector)).texts().join(" ")
    }

    #[test]
    fn valid_specs_have_no_faults() {
        let exit = |more: Value| {
            let mut spec = json!({"exitNode": true});
            spec.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            spec
        };
        for spec in [
            exit(json!({})),
            exit(json!({"replicas": 0})),
            exit(json!({"replicas": 100, "hostnamePrefix": "exit"})),
            exit(json!({"replicas": 3, "tags": ["tag:exit"]})),
            exit(json!({"hostname": "exit", "replicas": 1})),
            json!({"appConnector": {}}),
        ] {
            assert_eq!(faults("exit", &spec), "", "{spec}");
        }
    }

    #[test]
    fn each_fault_message_names_field_and_fix() {
        let long = "a".repeat(63);
        for (name, spec, wanted) in [
            ("c", json!({}), "set spec.subnetRouter, spec.exitNode or spec.appConnector"),
            ("c", json!({"exitNode": true, "appConnector": {}}), "spec.appConnector excludes"),
            ("c", json!({"subnetRouter": {"advertiseRoutes": []}}), "name a route, or remove spec.subnetRouter"),
            ("c", json!({"exitNode": true, "replicas": -1}), "spec.replicas is -1: set it to 0 or more"),
            ("c", json!({"exitNode": true, "replicas": 2_147_483_647}), "set it to at most 100"),
            ("c", json!({"exitNode": true, "replicas": 2, "hostname": "c"}), "set spec.hostnamePrefix"),
            ("c", json!({"exitNode": true, "hostname": "c", "hostnamePrefix": "c"}), "remove one of them"),
            ("c", json!({"exitNode": true, "tags": ["web"]}), "spec.tags: \"web\""),
            ("a.b", json!({"exitNode": true}), "\"a.b-connector\" is no DNS label: set spec.hostname or spec.hostnamePrefix"),
            (long.as_str(), json!({"exitNode": true}), "is no DNS label"),
            ("c", json!({"exitNode": true, "hostname": "-c"}), "set spec.hostname to another name"),
            ("c", json!({"exitNode": true, "replicas": 11, "hostnamePrefix": long.get(..61)}), "set spec.hostnamePrefix to another name"),
        ] {
            let found = faults(name, &spec);
            assert!(found.contains(wanted), "{name} {spec}: {found}");
        }
        assert!(faults(&"a".repeat(64), &json!({"exitNode": true, "hostname": "c"})).contains("under a shorter name"));
    }
}

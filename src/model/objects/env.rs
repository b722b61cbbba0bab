//! The environment of a replica, in the Tailscale operator's names, and a few of ours that its image does not look at.
//!
//! A variable that the class sets takes the place of ours: a list with a name twice cannot be applied.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};

use super::Shape;
use super::shape::{DEBUG, HEALTH};
use crate::api::names;

/// The environment of the proxy's container; `configs` and `services` are where the configs are found.
pub(super) fn of(shape: &Shape<'_>, configs: &str, services: &str) -> Vec<EnvVar> {
    let mut env = vec![
        value("TS_USERSPACE", "false"),
        field("POD_IP", "status.podIP"),
        field("POD_NAME", "metadata.name"),
        field("POD_UID", "metadata.uid"),
        field("POD_IPS", "status.podIPs"),
        value("TS_KUBE_SECRET", "$(POD_NAME)"),
        value("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
        value("TS_STATE", "kube:$(POD_NAME)"),
        value("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", &format!("{configs}/$(POD_NAME)")),
    ];
    env.extend(shape.wireguard.map(|port| value("PORT", &port.to_string())));
    env.extend(shape.firewall().map(|mode| value("TS_DEBUG_FIREWALL_MODE", mode)));
    env.push(value("TS_EGRESS_PROXIES_CONFIG_PATH", services));
    env.push(value("TS_INTERNAL_APP", "k8s-operator-proxygroup-egress"));
    env.push(value("TS_ENABLE_HEALTH_CHECK", "true"));
    if !shape.stock() {
        let config_map = format!("{}/{}", shape.owner.namespace, names::egress_config(&shape.owner.group));
        env.push(value("TAILYARD_EGRESS_CONFIGMAP", &config_map));
        env.push(value("TAILYARD_CONFIG_FROM_API", "true"));
        env.push(value("TAILYARD_DRAIN_GRACE", &format!("{}s", shape.drain_grace().as_secs())));
    }
    let class = shape.container().map(|container| container.env.as_slice()).unwrap_or_default();
    for variable in class {
        set(&mut env, value(&variable.name, variable.value.as_deref().unwrap_or_default()));
    }
    if shape.metrics() {
        set(&mut env, value("TS_ENABLE_METRICS", "true"));
        if shape.health_address().is_none() {
            set(&mut env, value("TS_LOCAL_ADDR_PORT", &format!("$(POD_IP):{HEALTH}")));
        }
    }
    if shape.debug() {
        set(&mut env, value("TS_DEBUG_ADDR_PORT", &format!("$(POD_IP):{DEBUG}")));
        set(&mut env, value("TS_TAILSCALED_EXTRA_ARGS", "--debug=$(TS_DEBUG_ADDR_PORT)"));
    }
    env
}

/// Puts a variable in the place of the one of its name, or at the end.
pub(super) fn set(env: &mut Vec<EnvVar>, variable: EnvVar) {
    match env.iter_mut().find(|held| held.name == variable.name) {
        Some(held) => *held = variable,
        None => env.push(variable),
    }
}

/// A variable with a value.
pub(super) fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".to_owned()) };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

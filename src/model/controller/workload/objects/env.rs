//! Environment of a replica: the Tailscale operator's variables, and a few of ours that its image ignores.
//!
//! A variable of the class replaces ours: a list with duplicate names cannot be applied.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use serde_json::Value;

use crate::api;
use crate::api::proxyclass::ClassContainer;
use crate::model::controller::workload::objects::shape::{DEBUG, HEALTH, RenderContext};
use crate::model::controller::workload::objects::unreachable_note;
use crate::model::controller::workload::role::RoleConfig;
use crate::model::controller::workload::target_inputs::ALLOWED;
use crate::model::flows::drain::Budget;

/// Environment of the proxy's container; `configs` and `services` are the paths of the configs.
pub(crate) fn of(shape: &RenderContext<'_>, configs: &str, services: &str) -> Vec<EnvVar> {
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
    env.extend(firewall(shape).map(|mode| value("TS_DEBUG_FIREWALL_MODE", mode)));
    env.extend(match shape.role().config {
        None => target(shape),
        Some(RoleConfig::Ingress) => ingress(shape, services),
        Some(RoleConfig::Egress) => egress(shape, services),
    });
    env.push(value("TS_ENABLE_HEALTH_CHECK", "true"));
    if !shape.stock() {
        if let Some(config) = shape.role().config {
            let config_map = format!("{}/{}", shape.owner.namespace, config.config_map(&shape.owner.name));
            env.push(value(config.variable(), &config_map));
        }
        env.push(value("TAILYARD_CONFIG_FROM_API", "true"));
        env.push(field("NODE_IP", "status.hostIP"));
        env.extend(shape.role().serves_sites.then(|| field("NODE_NAME", "spec.nodeName")));
        env.extend(shape.node_sites.then(|| value("TAILYARD_SERVE_ON_NODE_ADDRESS", "true")));
        env.extend(shape.spec.serves_on_pod.then(|| value("TAILYARD_SERVE_ON_POD_ADDRESS", "true")));
        env.extend(shape.active_lease().map(|lease| value("TAILYARD_ACTIVE_LEASE", &lease)));
        if shape.has_failover() {
            let file = format!("{}/{}", unreachable_note::DIRECTORY, unreachable_note::FILE);
            env.push(value(unreachable_note::VARIABLE, &file));
        }
        let leaving = shape.drain_timeout() + Budget::CLEANUP_PERIOD;
        env.push(value("TAILYARD_DRAIN_TIMEOUT", &format!("{}s", leaving.as_secs())));
    }
    for variable in shape.container().into_iter().flat_map(|container| of_class(shape, container)) {
        set(&mut env, variable);
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

fn app(shape: &RenderContext<'_>) -> EnvVar {
    value("TS_INTERNAL_APP", shape.role().app)
}

fn target(shape: &RenderContext<'_>) -> Vec<EnvVar> {
    let target = shape.target.variable().zip(shape.target.value()).map(|(variable, target)| value(variable, &target));
    let other = shape.cluster_addresses().nth(1).map(|ip| value("TAILYARD_OTHER_DEST_IP", &ip.to_string()));
    target.into_iter().chain(other).chain([app(shape)]).collect()
}

fn egress(shape: &RenderContext<'_>, services: &str) -> Vec<EnvVar> {
    vec![value("TS_EGRESS_PROXIES_CONFIG_PATH", services), app(shape)]
}

fn ingress(shape: &RenderContext<'_>, services: &str) -> Vec<EnvVar> {
    let mut env = vec![app(shape)];
    if !shape.userspace() {
        env.push(value("TS_INGRESS_PROXIES_CONFIG_PATH", &format!("{services}/{}", api::ingress::KEY)));
    }
    env.extend([value("TS_SERVE_CONFIG", &format!("{services}/{}", api::serve::KEY)), value("TS_EXPERIMENTAL_CERT_SHARE", "true")]);
    env.extend(shape.acme_directory().map(|url| value("TS_DEBUG_ACME_DIRECTORY_URL", url)));
    match shape.account() {
        Some(account) => {
            env.push(value("TS_ACME_ACCOUNT_SECRET_NAME", &account.secret));
            env.push(value("TS_ACME_ACCOUNT_FIELD", &account.field));
        }
        // A replica with an ACME account of its own cannot name the certificate that a new one replaces.
        None => env.push(value("TS_DEBUG_ACME_FORCE_RENEWAL", "true")),
    }
    env
}

/// Firewall mode in the image's notation. The Tailscale operator's proxy uses iptables unless detection is set, exits there at a target
/// with an IPv6 address, and has a single iptables mode.
fn firewall<'a>(shape: &'a RenderContext<'_>) -> Option<&'a str> {
    match shape.firewall() {
        None if shape.stock() => Some("auto"),
        Some("iptables-nft" | "iptables-legacy") if shape.stock() => Some("iptables"),
        mode => mode,
    }
}

/// Variables of a class for one of its containers.
pub(crate) fn of_class(shape: &RenderContext<'_>, class: &ClassContainer) -> impl Iterator<Item = EnvVar> {
    let applies = |name: &str| shape.takes_allowed_targets || name != ALLOWED;
    let own = class.env.iter().filter(move |variable| applies(&variable.name));
    own.map(|variable| value(&variable.name, variable.value.as_deref().unwrap_or_default()))
}

/// Value of a variable in a container of an existing `StatefulSet`.
pub(crate) fn variable_of<'a>(set: &'a Value, name: &str) -> Option<&'a str> {
    let containers = set.pointer("/spec/template/spec/containers")?.as_array()?;
    let mut env = containers.iter().flat_map(|container| container["env"].as_array().into_iter().flatten());
    env.find(|variable| variable["name"] == name)?["value"].as_str()
}

/// Replaces the variable of this name, or appends it.
pub(crate) fn set(env: &mut Vec<EnvVar>, variable: EnvVar) {
    match env.iter_mut().find(|other| other.name == variable.name) {
        Some(existing) => *existing = variable,
        None => env.push(variable),
    }
}

pub(crate) fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

pub(crate) fn field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".to_owned()) };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

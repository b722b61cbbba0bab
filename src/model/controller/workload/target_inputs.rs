//! What the cluster and its administrators say about targets, beside the reconciler's own settings.

use std::sync::Arc;

use ipnet::IpNet;

use crate::api::proxyclass::ProxyClassSpec;

/// Variable of a class that adds targets.
pub(crate) const ALLOWED: &str = "TAILYARD_ALLOWED_TARGETS";
/// Variable of a class that denies targets.
const DENIED: &str = "TAILYARD_DENIED_TARGETS";

#[derive(Debug, Clone, Default)]
pub struct TargetInputs {
    /// Nodes, API server endpoints and Service ranges, as far as known.
    pub cluster: Arc<Vec<IpNet>>,
    /// Whether their lists are complete.
    pub is_complete: bool,
    /// Denied by the classes that a standalone object would have without its annotations.
    pub inherited: Vec<IpNet>,
    /// Whether the class is one of these, or that of a group.
    pub is_default_class: bool,
}

/// Ranges that a class denies. The proxy rejects invalid ones.
pub fn denied_by(class: &ProxyClassSpec) -> Vec<IpNet> {
    let text = class_value(class, DENIED).unwrap_or_default();
    text.split(',').filter_map(|net| net.trim().parse().ok()).collect()
}

/// Value of a variable of the proxy's container in a class.
pub(crate) fn class_value<'a>(class: &'a ProxyClassSpec, name: &str) -> Option<&'a str> {
    let container = class.stateful_set.as_ref()?.pod.as_ref()?.tailscale_container.as_ref()?;
    container.env.iter().rfind(|variable| variable.name == name)?.value.as_deref()
}

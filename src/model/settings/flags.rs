//! Flags, each of which stands for a variable.

use std::collections::BTreeMap;

/// Every flag of `tailyard proxy` and the variable that it stands for.
pub const FLAGS: [(&str, &str); 25] = [
    ("--tailnet", "TAILYARD_TAILNET"),
    ("--tailnet-interface", "TAILYARD_TAILNET_INTERFACE"),
    ("--tailscaled", "TAILYARD_TAILSCALED"),
    ("--tailscale", "TAILYARD_TAILSCALE"),
    ("--egress-config", "TS_EGRESS_PROXIES_CONFIG_PATH"),
    ("--egress-configmap", "TAILYARD_EGRESS_CONFIGMAP"),
    ("--ingress-config", "TS_INGRESS_PROXIES_CONFIG_PATH"),
    ("--ingress-configmap", "TAILYARD_INGRESS_CONFIGMAP"),
    ("--state-file", "TAILYARD_STATE_FILE"),
    ("--kube-secret", "TS_KUBE_SECRET"),
    ("--pod-ips", "POD_IPS"),
    ("--upgrades", "TAILYARD_UPGRADES"),
    ("--body-timeout", "TAILYARD_BODY_TIMEOUT"),
    ("--answer-timeout", "TAILYARD_ANSWER_TIMEOUT"),
    ("--tunnel-timeout", "TAILYARD_TUNNEL_TIMEOUT"),
    ("--max-connections", "TAILYARD_MAX_CONNECTIONS"),
    ("--allowed-targets", "TAILYARD_ALLOWED_TARGETS"),
    ("--denied-targets", "TAILYARD_DENIED_TARGETS"),
    ("--backend", "TS_DEBUG_FIREWALL_MODE"),
    ("--http-addr", "TS_LOCAL_ADDR_PORT"),
    ("--admin-addr", "TAILYARD_ADMIN_ADDR"),
    ("--drain-grace", "TAILYARD_DRAIN_GRACE"),
    ("--boot-timeout", "TS_BOOT_TIMEOUT"),
    ("--log-format", "TAILYARD_LOG_FORMAT"),
    ("--log-filter", "TAILYARD_LOG"),
];

/// Both commands' flags. Where they share a name, they share the variable.
fn known() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    FLAGS.iter().chain(&super::reconciler::RECONCILER_FLAGS)
}

/// The flags that were given, by the variable that each stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags(BTreeMap<&'static str, (&'static str, String)>);

impl Flags {
    /// No flags.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a flag of [`FLAGS`] or of the reconciler's if it was given. A flag that is not in a table changes nothing.
    #[must_use]
    pub fn with(mut self, flag: &str, value: Option<String>) -> Self {
        let known = known().find(|(name, _)| *name == flag);
        if let (Some((name, variable)), Some(value)) = (known, value) {
            self.0.insert(variable, (name, value));
        }
        self
    }

    /// The flag that stands for a variable and its value, if it was given.
    pub(super) fn get(&self, variable: &str) -> Option<(&'static str, &str)> {
        self.0.get(variable).map(|(flag, value)| (*flag, value.as_str()))
    }
}

//! Variables of a `ProxyClass` that `tailyard proxy` refuses, whatever it serves: its container would end with exit status 64.

use std::collections::BTreeMap;

use super::{Faults, Flags, SettingFault, Settings, daemon};
use crate::api::names::K8S_PROXY_CONFIG;

/// Environment that every proxy of the reconciler has, with examples of the kubelet's values.
const POD: [(&str, &str); 9] = [
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("NODE_IP", "192.0.2.1"),
    ("POD_IP", "10.0.0.5"),
    ("POD_IPS", "10.0.0.5"),
    ("POD_NAME", "proxy-0"),
    ("POD_UID", "7d5c"),
    ("TAILYARD_CONFIG_FROM_API", "true"),
    ("TS_KUBE_SECRET", "proxy-0"),
    (daemon::CONFIG_DIR, "/etc/tsconfig/proxy-0"),
];

/// Why a variable is refused, with what to use in its place; `None` if it is not. `own_image`: the class names the proxy's image, whose
/// version may know other values.
pub fn refusal(name: &str, value: &str, own_image: bool) -> Option<String> {
    if name == K8S_PROXY_CONFIG && !value.is_empty() {
        return Some(format!("{name} cannot be set, as each proxy has a config file: remove it; spec.kubeAPIServer has its settings"));
    }
    let pod = POD.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let env: BTreeMap<_, _> = pod.chain([(name.to_owned(), value.to_owned())]).collect();
    let Err(Faults(faults)) = Settings::read(&env, &Flags::proxy()) else { return None };
    // References are replaced in the Pod.
    let is_literal = !value.contains("$(");
    faults.iter().find_map(|fault| match fault {
        SettingFault::Exclusive { first, second } if first == name && second == daemon::CONFIG_DIR => {
            Some(format!("{name} cannot be set, as each proxy has a config file: {}", instead(name)))
        }
        SettingFault::Value { setting, .. } | SettingFault::Content { setting, .. } if setting == name && is_literal && !own_image => {
            Some(fault.to_string())
        }
        _ => None,
    })
}

fn instead(name: &str) -> &'static str {
    match name {
        "TS_EXTRA_ARGS" => "use spec.tags or the annotation tailscale.com/tags for tags, and spec.tailscale.acceptRoutes for routes",
        "TS_HOSTNAME" => "use spec.hostnamePrefix or the annotation tailscale.com/hostname",
        "TS_ACCEPT_DNS" | "TS_ROUTES" => "remove it",
        _ => "remove it, as the reconciler creates the auth keys",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_config_file_and_invalid_values_are_refused() {
        let refused = [
            ("TS_EXTRA_ARGS", "--advertise-tags=tag:x", "spec.tags"),
            ("TS_EXTRA_ARGS", "--hostname=$(POD_NAME)", "spec.tags"),
            ("TS_AUTHKEY", "tskey-auth-1", "creates the auth keys"),
            ("TS_AUTH_KEY", "tskey-auth-1", "creates the auth keys"),
            ("TS_HOSTNAME", "web", "tailscale.com/hostname"),
            ("TS_ROUTES", "10.0.0.0/8", "remove it"),
            ("TS_ACCEPT_DNS", "true", "remove it"),
            ("TS_CLIENT_ID", "id", "remove it"),
            ("TS_CLIENT_SECRET", "s", "remove it"),
            ("TS_ID_TOKEN", "t", "remove it"),
            ("TS_AUDIENCE", "a", "remove it"),
            ("TS_K8S_PROXY_CONFIG", "kube:tailscale/$(POD_NAME)-config", "remove it"),
            ("TS_BOOT_TIMEOUT", "90", "length of time"),
            ("TAILYARD_DENIED_TARGETS", "nodes", "TAILYARD_DENIED_TARGETS"),
            ("TAILYARD_API_SERVER_URL", "https://gateway.example/a/../b", "such as https://"),
        ];
        for (name, value, why) in refused {
            let refusal = refusal(name, value, false);
            assert!(refusal.as_ref().is_some_and(|text| text.contains(why) && !text.contains("tskey")), "{name}={value}: {refusal:?}");
        }
    }

    #[test]
    fn variables_that_some_proxies_take_are_not_refused() {
        let taken = [
            ("HOME", ""),
            ("TS_USERSPACE", "true"),
            ("TS_DEBUG_MTU", "1200"),
            ("TS_PORTLIST", "true"),
            ("TS_TAILSCALED_EXTRA_ARGS", "--verbose=1"),
            ("TS_BOOT_TIMEOUT", "90s"),
            ("TS_BOOT_TIMEOUT", "$(TIMEOUT)"),
            ("TS_HOSTNAME", ""),
            ("TS_DEBUG_ADDR_PORT", "$(POD_IP):9001"),
            ("TAILYARD_SERVE_ON_POD_ADDRESS", "true"),
            ("TAILYARD_API_SERVER_URL", "https://gateway.example/k8s/clusters/c-1"),
        ];
        for (name, value) in taken {
            assert_eq!(refusal(name, value, false), None, "{name}={value}");
        }
        assert_eq!(refusal("TS_BOOT_TIMEOUT", "90", true), None, "another version");
        assert!(refusal("TS_HOSTNAME", "web", true).is_some());
    }
}

//! Names that a replica shares with the Tailscale operator.
//!
//! Replica `i` of group `g` is the Pod `g-i`; its state Secret has the Pod's name, its config Secret that name and
//! [`CONFIG_SECRET_SUFFIX`].

/// The field manager under which a replica writes, as the peer's does.
pub const FIELD_MANAGER: &str = "tailscale-container";
/// `<pod>` and this is the Secret of the replica's tailscaled config.
pub const CONFIG_SECRET_SUFFIX: &str = "-config";

/// Label of everything that the reconciler made.
pub const MANAGED: &str = "tailscale.com/managed";
/// Label: the kind of the object for which it was made, such as [`PARENT_GROUP`].
pub const PARENT_TYPE: &str = "tailscale.com/parent-resource-type";
/// Label: the name of the object for which it was made.
pub const PARENT: &str = "tailscale.com/parent-resource";
/// Label: the namespace of the object for which it was made, if that has one.
pub const PARENT_NAMESPACE: &str = "tailscale.com/parent-resource-ns";
/// Value of [`PARENT_TYPE`]: a `ProxyGroup`.
pub const PARENT_GROUP: &str = "proxygroup";
/// Value of [`PARENT_TYPE`]: a Service.
pub const PARENT_SERVICE: &str = "svc";
/// Label of a Secret: `config`, `state` or `certs`.
pub const SECRET_TYPE: &str = "tailscale.com/secret-type";
/// Label of an egress child, and annotation of a user's Service: the name of the group.
pub const PROXY_GROUP: &str = "tailscale.com/proxy-group";
/// Label of an egress child.
pub const SERVICE_TYPE: &str = "tailscale.com/svc-type";
/// Value of [`SERVICE_TYPE`].
pub const EGRESS: &str = "egress";
/// The finalizer of groups and of users' Services.
pub const FINALIZER: &str = "tailscale.com/finalizer";
/// Annotation of a user's Service: the tailnet name it leads to.
pub const TAILNET_FQDN: &str = "tailscale.com/tailnet-fqdn";
/// Annotation of a user's Service: the tailnet address it leads to.
pub const TAILNET_IP: &str = "tailscale.com/tailnet-ip";
/// Annotation of a user's Service: its name in the tailnet.
pub const HOSTNAME: &str = "tailscale.com/hostname";
/// Annotation of a user's Service: its tags in the tailnet, separated by commas.
pub const TAGS: &str = "tailscale.com/tags";
/// The key of the config Secret that holds a replica's config: the least capability version that reads it is its number.
pub const CONFIG_KEY: &str = "cap-106.hujson";
/// Ours, annotation of the config Secret: the id of the auth key in it.
pub const AUTH_KEY_ID: &str = "tailyard.io/auth-key-id";

/// The name of a replica: of its Pod and of its state Secret.
#[must_use]
pub fn replica(group: &str, ordinal: u32) -> String {
    format!("{group}-{ordinal}")
}

/// The name of a replica's config Secret.
#[must_use]
pub fn replica_config(group: &str, ordinal: u32) -> String {
    format!("{group}-{ordinal}{CONFIG_SECRET_SUFFIX}")
}

/// The name of a group's egress config.
#[must_use]
pub fn egress_config(group: &str) -> String {
    format!("{group}-egress-config")
}

//! Names of the objects of a `ProxyGroup`, as the Tailscale operator gives them.
//!
//! Replica `i` of group `g` is the Pod `g-i`; its state Secret has the Pod's name, its config Secret that name and
//! [`CONFIG_SECRET_SUFFIX`].

/// The field manager under which a replica writes, as the peer's does.
pub const FIELD_MANAGER: &str = "tailscale-container";
/// `<group>` and this is the `ConfigMap` of the egress services.
pub const EGRESS_CONFIG_SUFFIX: &str = "-egress-config";
/// `<group>` and this is the `ConfigMap` of the ingress services.
pub const INGRESS_CONFIG_SUFFIX: &str = "-ingress-config";
/// `<pod>` and this is the Secret of the replica's tailscaled config.
pub const CONFIG_SECRET_SUFFIX: &str = "-config";
/// What the key of a tailscaled config in its Secret begins with; the capability version follows.
pub const CONFIG_KEY_PREFIX: &str = "cap-";
/// What the key of a tailscaled config ends with.
pub const CONFIG_KEY_SUFFIX: &str = ".hujson";

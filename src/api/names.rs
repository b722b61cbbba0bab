//! Names that a replica shares with the Tailscale operator.
//!
//! Replica `i` of group `g` is the Pod `g-i`; its state Secret has the Pod's name, its config Secret that name and
//! [`CONFIG_SECRET_SUFFIX`].

/// The field manager under which a replica writes, as the peer's does.
pub const FIELD_MANAGER: &str = "tailscale-container";
/// `<pod>` and this is the Secret of the replica's tailscaled config.
pub const CONFIG_SECRET_SUFFIX: &str = "-config";

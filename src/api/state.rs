//! Keys of a replica's state Secret, as the Tailscale operator and tailscaled read and write them.
//!
//! The Secret has the Pod's name. Its values are text. The statuses are [`super::egress::KEY`] and [`super::ingress::KEY`].
//! Source: `cmd/containerboot/kube.go`, `kube/kubetypes` and `ipn/store/kubestore` of tailscale 1.102.

use super::{egress, ingress};

/// Stable id of this replica's node. The operator deletes the old device by it.
pub const DEVICE_ID: &str = "device_id";
/// Name of this replica's node, with the final dot. Its presence means that the node is routable.
pub const DEVICE_FQDN: &str = "device_fqdn";
/// JSON list of this replica's tailnet addresses, without prefix length.
pub const DEVICE_IPS: &str = "device_ips";
/// UID of the Pod that wrote the other keys; the operator trusts the Secret only if that Pod exists.
pub const POD_UID: &str = "pod_uid";
/// Capability version of tailscaled, in decimal.
pub const CAPVER: &str = "tailscale_capver";
/// Name for HTTPS, or [`NO_HTTPS`].
pub const HTTPS_ENDPOINT: &str = "https_endpoint";
/// Value of [`HTTPS_ENDPOINT`] in a tailnet without certificates.
pub const NO_HTTPS: &str = "no-https";
/// The failed auth key; requests another one from the operator.
pub const REISSUE_AUTHKEY: &str = "reissue_authkey";
/// Ours, additive: JSON list of the tailnet addresses of peers with a recent handshake. The next Pod contacts them before it is ready.
pub const RECENT_PEERS: &str = "tailyard-recent-peers";
/// Ours, additive: start time of a draining replica's disco mute (RFC 3339). The next Pod starts handshakes with peers only after they no
/// longer trust the old endpoint.
pub const DISCO_MUTED_SINCE: &str = "tailyard-disco-muted-since";
/// Ours, additive: Funnel errors, a JSON object by the Tailscale Service's name. Absent if empty; outlives the container that wrote it.
pub const FUNNEL_ERRORS: &str = "tailyard-funnel-errors.json";
/// Ours, additive: JSON list of the Tailscale Services that tailscaled advertises without the control server's approval. Absent if empty.
pub const UNAPPROVED: &str = "tailyard-unapproved-services.json";
/// Ours, additive: why the target of a standalone proxy is not served, a text. Absent while it is.
pub const REJECTED_TARGET: &str = "tailyard-rejected-target";
/// Ours, additive: accepted routes that cover addresses of the cluster, a JSON object by prefix, with one of these addresses. Absent if
/// empty.
pub const ROUTE_OVERLAPS: &str = "tailyard-overlapping-routes.json";
/// Maximum routes in it.
pub const MAX_ROUTE_OVERLAPS: usize = 64;
/// Auth key provided by a user.
pub const AUTHKEY: &str = "authkey";
/// tailscaled's machine key.
pub const MACHINE_KEY: &str = "_machinekey";
/// tailscaled's list of profiles.
pub const PROFILES: &str = "_profiles";
/// Key of tailscaled's current profile.
pub const CURRENT_PROFILE: &str = "_current-profile";
/// Prefix of the keys of tailscaled's profiles.
pub const PROFILE_PREFIX: &str = "profile-";

/// Keys of earlier containers of the Pod that are stale when a new one starts.
pub const STALE_AT_START: [&str; 5] = [HTTPS_ENDPOINT, egress::KEY, egress::KEY_COMPRESSED, ingress::KEY, REJECTED_TARGET];
/// Identity of the device: deleted together so that a new auth key creates a new device. The current profile's own key is deleted too.
pub const IDENTITY: [&str; 7] = [REISSUE_AUTHKEY, DEVICE_ID, DEVICE_FQDN, DEVICE_IPS, MACHINE_KEY, CURRENT_PROFILE, PROFILES];

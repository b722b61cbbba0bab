//! The keys of a replica's state Secret, as the Tailscale operator and tailscaled write and read them.
//!
//! The Secret has the Pod's name. Its values are text. The statuses are [`super::egress::KEY`] and [`super::ingress::KEY`].
//! Source: `cmd/containerboot/kube.go`, `kube/kubetypes` and `ipn/store/kubestore` of tailscale 1.102.

use super::{egress, ingress};

/// Stable id of this replica's node. The operator deletes the old device by it.
pub const DEVICE_ID: &str = "device_id";
/// Name of this replica's node, with the final dot. Present means routable.
pub const DEVICE_FQDN: &str = "device_fqdn";
/// JSON list of this replica's tailnet addresses, without prefix length.
pub const DEVICE_IPS: &str = "device_ips";
/// UID of the Pod that wrote the rest; the operator trusts the Secret only if that Pod lives.
pub const POD_UID: &str = "pod_uid";
/// Capability version of tailscaled, in decimal.
pub const CAPVER: &str = "tailscale_capver";
/// The name under which HTTPS is served, or [`NO_HTTPS`].
pub const HTTPS_ENDPOINT: &str = "https_endpoint";
/// Value of [`HTTPS_ENDPOINT`] where the tailnet gives no certificates.
pub const NO_HTTPS: &str = "no-https";
/// The auth key that failed; asks the operator for another one.
pub const REISSUE_AUTHKEY: &str = "reissue_authkey";
/// Ours, additive: JSON list of the tailnet addresses of peers with a recent handshake. The next Pod contacts them before it is ready.
pub const RECENT_PEERS: &str = "tailyard-recent-peers";
/// Ours, additive: since when a draining replica mutes its disco packets (RFC 3339). The next Pod asks peers for handshakes only when
/// they no longer trust the old endpoint.
pub const DISCO_MUTED_SINCE: &str = "tailyard-disco-muted-since";
/// Ours, additive: JSON object of why a Funnel host is unreachable, by the Tailscale Service's name. Absent while there are none; it
/// outlives the container that wrote it.
pub const FUNNEL_ERRORS: &str = "tailyard-funnel-errors.json";
/// Ours, additive: JSON list of the Tailscale Services that tailscaled advertises and for which the control server has not approved this
/// node. Absent while there are none.
pub const UNAPPROVED: &str = "tailyard-unapproved-services.json";
/// An auth key that a user put there.
pub const AUTHKEY: &str = "authkey";
/// tailscaled's machine key.
pub const MACHINE_KEY: &str = "_machinekey";
/// tailscaled's list of profiles.
pub const PROFILES: &str = "_profiles";
/// The key of the profile that tailscaled uses.
pub const CURRENT_PROFILE: &str = "_current-profile";
/// How the keys of tailscaled's profiles begin.
pub const PROFILE_PREFIX: &str = "profile-";

/// What an earlier container of the Pod may have left and what no longer holds when a new one starts.
pub const STALE_AT_START: [&str; 4] = [HTTPS_ENDPOINT, egress::KEY, egress::KEY_COMPRESSED, ingress::KEY];
/// What names the device; forgotten together when a new auth key is to make a new one. The current profile's own key goes too.
pub const IDENTITY: [&str; 7] = [REISSUE_AUTHKEY, DEVICE_ID, DEVICE_FQDN, DEVICE_IPS, MACHINE_KEY, CURRENT_PROFILE, PROFILES];

//! The APIs of control planes, as far as we use them: JSON over HTTPS.
//!
//! Source of the formats: Tailscale's published API v2 (keys, devices, OAuth tokens), which headscale's API v2 has in part since 0.30, and
//! headscale's v1 API of its 0.29 `OpenAPI` document. Unknown fields are ignored.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub struct TokenAnswer {
    pub access_token: String,
    /// Lifetime in seconds.
    #[serde(default)]
    pub expires_in: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateKey {
    pub capabilities: KeyCapabilities,
    /// Validity in seconds.
    pub expiry_seconds: u64,
    /// Shown in the admin console: at most 50 letters, digits, blanks and hyphens.
    pub description: String,
}

#[derive(Debug, Serialize)]
pub struct KeyCapabilities {
    pub devices: KeyDevices,
}

#[derive(Debug, Serialize)]
pub struct KeyDevices {
    pub create: KeyCreate,
}

#[derive(Debug, Serialize)]
pub struct KeyCreate {
    pub reusable: bool,
    /// The device is deleted when it goes offline.
    pub ephemeral: bool,
    pub preauthorized: bool,
    pub tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct CreatedKey {
    pub id: String,
    /// The secret, returned only once.
    pub key: String,
    /// Creation time, RFC 3339.
    #[serde(default, alias = "createdAt")]
    pub created: Option<String>,
}

/// Error response: of Tailscale's API and headscale up to 0.29 (`message`), of headscale's v1 API since 0.30 (`application/problem+json`,
/// RFC 7807), or of an OAuth token endpoint (RFC 6749).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ControlRefusal {
    pub message: String,
    pub title: String,
    pub detail: String,
    /// Causes, of problem+json.
    pub errors: Vec<ProblemCause>,
    pub error_description: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ProblemCause {
    pub message: String,
}

impl ControlRefusal {
    /// The most specific text, with its causes; `None` if it has none.
    pub fn text(&self) -> Option<String> {
        let texts = [&self.message, &self.detail, &self.error_description, &self.title];
        let text = texts.into_iter().find(|text| !text.is_empty())?;
        let causes = self.errors.iter().map(|cause| &cause.message).filter(|cause| !cause.is_empty());
        Some(std::iter::once(text).chain(causes).map(String::as_str).collect::<Vec<_>>().join(": "))
    }
}

/// A request to headscale for an auth key.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatePreAuthKey {
    pub reusable: bool,
    /// A device that joins with it is deleted when it goes offline.
    pub ephemeral: bool,
    /// Expiry, RFC 3339.
    pub expiration: String,
    pub acl_tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedPreAuthKey {
    pub pre_auth_key: CreatedKey,
}

/// A request to headscale to approve exactly these routes of a device (v1 and v2).
#[derive(Debug, Serialize)]
pub struct ApproveRoutes<'a> {
    pub routes: &'a BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
pub struct NodeAnswer {
    pub node: HeadscaleNode,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TailscaleDevice {
    /// Stable ID. Requests accept a legacy ID of the same device too.
    #[serde(rename = "nodeId")]
    pub node_id: String,
    /// Host name that its tailscaled reports.
    pub hostname: String,
    /// Name in the tailnet, `host.domain`; headscale's has no domain.
    pub name: String,
    /// Tags; absent for a device of a user.
    pub tags: Vec<String>,
    /// Addresses in the tailnet.
    pub addresses: Vec<String>,
    /// Creation time, RFC 3339; empty for a device of another tailnet.
    pub created: String,
}

/// Routes of a device, as the API v2 answers.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRoutes {
    /// The approved ones.
    pub enabled_routes: BTreeSet<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadscaleNode {
    /// ID, a decimal number. Requests accept other spellings of it too.
    pub id: String,
    /// Host name that its tailscaled reports.
    pub name: String,
    /// First label of its DNS name, unique in the tailnet. The API has no domain.
    pub given_name: String,
    /// Tags; empty for a node of a user.
    pub tags: Vec<String>,
    pub ip_addresses: Vec<String>,
    /// Creation time, RFC 3339.
    pub created_at: String,
    /// Key that it joined with; absent if that was deleted.
    pub pre_auth_key: Option<PreAuthKeyRef>,
    /// Prefixes that are routed to it if it advertises them.
    pub approved_routes: BTreeSet<String>,
}

/// A pre-auth key as headscale's nodes name it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PreAuthKeyRef {
    pub id: String,
}

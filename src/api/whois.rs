//! WhoIs response of the LocalAPI: node and user of a tailnet address.
//!
//! Source of the format: `apitype.WhoIsResponse` of tailscale 1.102. Unknown fields are ignored, absent and `null` mean the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::localapi::nullable;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WhoIs {
    #[serde(deserialize_with = "nullable")]
    pub node: WhoIsNode,
    /// User of the node; meaningless for a tagged node.
    #[serde(deserialize_with = "nullable")]
    pub user_profile: UserProfile,
    /// Capabilities that the tailnet's policy grants it towards the requested address.
    #[serde(deserialize_with = "granted")]
    pub cap_map: BTreeMap<String, Vec<Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WhoIsNode {
    /// Full name with a trailing dot, e.g. `laptop.tail.ts.net.`.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Tags; empty for a node of a user.
    #[serde(deserialize_with = "nullable")]
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct UserProfile {
    /// E.g. `alice@example.com`.
    pub login_name: String,
    pub display_name: String,
    #[serde(rename = "ProfilePicURL")]
    pub profile_pic_url: String,
}

/// Reads capabilities; one without values is `null`.
fn granted<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Vec<Value>>, D::Error> {
    let fields: BTreeMap<String, Option<Vec<Value>>> = nullable(from)?;
    Ok(fields.into_iter().map(|(name, values)| (name, values.unwrap_or_default())).collect())
}

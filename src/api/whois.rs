//! Who has an address of the tailnet, as the LocalAPI says it.
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
    /// Whose it is; of a tagged node nobody's.
    #[serde(deserialize_with = "nullable")]
    pub user_profile: UserProfile,
    /// The capabilities that the tailnet's policy grants it towards the address that was asked for.
    #[serde(deserialize_with = "granted")]
    pub cap_map: BTreeMap<String, Vec<Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WhoIsNode {
    /// Its tags; empty if it is a person's.
    #[serde(deserialize_with = "nullable")]
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct UserProfile {
    /// Such as `alice@example.com`.
    pub login_name: String,
    pub display_name: String,
    #[serde(rename = "ProfilePicURL")]
    pub profile_pic_url: String,
}

/// A capability without values is written as `null`.
fn granted<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Vec<Value>>, D::Error> {
    let fields: BTreeMap<String, Option<Vec<Value>>> = nullable(from)?;
    Ok(fields.into_iter().map(|(name, values)| (name, values.unwrap_or_default())).collect())
}

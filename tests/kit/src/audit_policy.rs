//! What an API server writes into its audit log, and how that is read.

use serde_json::{Value, json};

/// What is kept: that these users asked for something, and for what.
pub fn policy(users: &[&str]) -> String {
    let rules = json!([{"level": "Metadata", "users": users}, {"level": "None"}]);
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}).to_string()
}

/// What a log tells, request by request; its last line may be half there.
pub fn requests(log: &str) -> impl Iterator<Item = Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok())
}

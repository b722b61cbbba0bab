//! Audit policy of an API server, and the parser of its audit log.

use serde_json::{Value, json};

/// A policy that records requests of these users at metadata level.
pub fn policy(users: &[&str]) -> String {
    let rules = json!([{"level": "Metadata", "users": users}, {"level": "None"}]);
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}).to_string()
}

/// The requests of a log; an incomplete last line is ignored.
pub fn requests(log: &str) -> impl Iterator<Item = Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok())
}

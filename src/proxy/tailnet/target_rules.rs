//! Target policy of the reconciler: from the directory of the config Secret at the start, then from its watch.
//!
//! Unreadable rules change nothing: the last good ones stay in force.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::targets;
use crate::api::targets::TargetRules;
use crate::edge::files;
use crate::runtime::watch_ext::put;

pub type RulesSender = watch::Sender<Arc<TargetRules>>;

/// The rules in a config directory; none without a file.
pub fn channel(dir: Option<&Path>) -> (RulesSender, watch::Receiver<Arc<TargetRules>>) {
    let (rules, receiver) = watch::channel(Arc::default());
    if let Some(text) = dir.and_then(|dir| files::read_one(&dir.join(targets::KEY)).ok().flatten()) {
        follow(&rules, &text);
    }
    (rules, receiver)
}

/// Puts the rules of this document in force.
pub fn follow(rules: &RulesSender, text: &[u8]) {
    match serde_json::from_slice::<TargetRules>(text) {
        Ok(found) => {
            if put(rules, Arc::new(found)) {
                tracing::info!("target policy of the reconciler in force");
            }
        }
        Err(error) => tracing::warn!("invalid {} in the config Secret; the previous one stays in force: {error}", targets::KEY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_rules_leave_the_last_ones_in_force() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(targets::KEY), r#"{"denied":["10.0.0.0/8"],"later":1}"#).expect("a file");
        let (rules, receiver) = channel(Some(dir.path()));
        follow(&rules, br#"{"denied":["10.0.0.0"]}"#);
        assert_eq!(receiver.borrow().denied.len(), 1);
        follow(&rules, b"{}");
        assert_eq!(**receiver.borrow(), TargetRules::default());
        assert!(!channel(Some(&dir.path().join("missing"))).1.has_changed().expect("a sender"));
    }
}

//! Values that the reconciler gives a replica in its config Secret: from the mounted directory at the start, then from the watch.
//!
//! An unreadable value changes nothing: the last good one stays in force.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::api::siblings::Siblings;
use crate::api::targets::TargetRules;
use crate::api::{siblings, targets};
use crate::edge::files;
use crate::edge::kube::Values;
use crate::runtime::watch_ext::put;

/// Keys of these values.
pub const KEYS: [&str; 2] = [targets::KEY, siblings::KEY];

/// Values in force.
#[derive(Debug, Clone)]
pub struct ConfigValues {
    /// Target policy.
    pub rules: watch::Receiver<Arc<TargetRules>>,
    /// Addresses of the group's replicas.
    pub siblings: watch::Receiver<Arc<Siblings>>,
}

#[derive(Debug)]
pub struct ConfigValuesSender {
    rules: watch::Sender<Arc<TargetRules>>,
    siblings: watch::Sender<Arc<Siblings>>,
}

/// The values in a config directory; defaults without files.
pub fn channel(dir: Option<&Path>) -> (ConfigValuesSender, ConfigValues) {
    let ((rules, rules_receiver), (siblings, siblings_receiver)) = (watch::channel(Arc::default()), watch::channel(Arc::default()));
    let sender = ConfigValuesSender { rules, siblings };
    let read = |key: &str| Some((key.to_owned(), files::read_one(&dir?.join(key)).ok().flatten()?));
    sender.follow(&KEYS.into_iter().filter_map(read).collect());
    (sender, ConfigValues { rules: rules_receiver, siblings: siblings_receiver })
}

impl ConfigValuesSender {
    /// Puts the values of these documents in force.
    pub fn follow(&self, values: &Values) {
        put_document(&self.rules, targets::KEY, values);
        put_document(&self.siblings, siblings::KEY, values);
    }
}

fn put_document<T: DeserializeOwned + PartialEq>(sender: &watch::Sender<Arc<T>>, key: &str, values: &Values) {
    let Some(text) = values.get(key) else { return };
    match serde_json::from_slice::<T>(text) {
        Ok(found) => {
            if put(sender, Arc::new(found)) {
                tracing::info!(key, "value of the config Secret in force");
            }
        }
        Err(error) => tracing::warn!("invalid {key} in the config Secret; the previous one stays in force: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn values(key: &str, text: &'static str) -> Values {
        [(key.to_owned(), Bytes::from_static(text.as_bytes()))].into()
    }

    #[test]
    fn unreadable_value_leaves_the_last_one_in_force() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(targets::KEY), r#"{"denied":["10.0.0.0/8"],"later":1}"#).expect("a file");
        std::fs::write(dir.path().join(siblings::KEY), r#"["10.0.0.2","fd00::2"]"#).expect("a file");
        let (sender, values_in_force) = channel(Some(dir.path()));
        sender.follow(&values(targets::KEY, r#"{"denied":["10.0.0.0"]}"#));
        sender.follow(&values(siblings::KEY, r#"["127.0.0.1"]"#));
        assert_eq!((values_in_force.rules.borrow().denied.len(), values_in_force.siblings.borrow().len()), (1, 2));
        sender.follow(&values(targets::KEY, "{}"));
        sender.follow(&values(siblings::KEY, "[]"));
        assert_eq!((&**values_in_force.rules.borrow(), values_in_force.siblings.borrow().len()), (&TargetRules::default(), 0));
        assert!(!channel(Some(&dir.path().join("missing"))).1.rules.has_changed().expect("a sender"));
    }
}

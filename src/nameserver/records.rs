//! Records in force: those of the newest good document, from a file at startup and then from a watch of the `ConfigMap`.

use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::watch;

use super::metrics::Metrics;
use crate::edge::kube::{Cluster, ObjectEvent, Values};
use crate::model::base::backoff::Backoff;
use crate::model::nameserver::records::{FIELD, Records};
use crate::model::settings::ObjectName;
use crate::runtime::metrics::number;
use crate::runtime::snapshot::SnapshotCell;

/// The records in force. Clones share them.
#[derive(Debug, Clone)]
pub struct ActiveRecords {
    records: SnapshotCell<Records>,
    /// Whether a document was loaded.
    loaded: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

impl ActiveRecords {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { records: SnapshotCell::new(Records::default()), loaded: watch::channel(false).0, metrics }
    }

    pub fn cell(&self) -> SnapshotCell<Records> {
        self.records.clone()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn is_loaded(&self) -> bool {
        *self.loaded.borrow()
    }

    /// Waits for the first document.
    pub async fn loaded(&self) {
        // The sender is in `self`.
        let _ = self.loaded.subscribe().wait_for(|loaded| *loaded).await;
    }

    /// Loads the file of a mounted `ConfigMap`. Without it the watch has the first document.
    pub fn load_file(&self, path: &Path) {
        match std::fs::read(path) {
            Ok(document) => self.load(Some(&document)),
            Err(error) => tracing::info!(path = %path.display(), %error, "no records in a file yet: waiting for the ConfigMap"),
        }
    }

    /// Follows a `ConfigMap`. Never ends.
    pub async fn follow(self, cluster: Cluster, ObjectName { namespace, name }: ObjectName) {
        let mut events = Box::pin(cluster.watch_config_map(&namespace, &name, Backoff::WATCH));
        let mut is_lost = false;
        while let Some(event) = events.next().await {
            match event {
                ObjectEvent::Current(values) => self.load_values(&values),
                ObjectEvent::Gone => self.miss("the ConfigMap does not exist"),
                ObjectEvent::Live => {
                    if std::mem::take(&mut is_lost) {
                        tracing::info!("records are current again");
                    }
                }
                ObjectEvent::Lost(error) => {
                    self.metrics.watch_faults.inc([error.reason()]);
                    if !std::mem::replace(&mut is_lost, true) {
                        tracing::warn!(reason = error.reason(), "watch of the records failed: {error}; the last records stay in force");
                    }
                }
            }
        }
    }

    fn load_values(&self, values: &Values) {
        self.load(values.get(FIELD).map(AsRef::as_ref));
    }

    /// Loads a document. An absent or empty one replaces none: a `ConfigMap` that was deleted and created again is empty at first.
    fn load(&self, document: Option<&[u8]>) {
        let document = document.unwrap_or_default();
        if document.iter().all(u8::is_ascii_whitespace) && self.is_loaded() {
            return self.miss("the document is empty");
        }
        match Records::parse(document) {
            Ok(records) => self.replace(records),
            Err(error) => {
                self.metrics.loads.inc(["rejected"]);
                tracing::error!("records rejected: {error}; the last records stay in force");
            }
        }
    }

    fn replace(&self, records: Records) {
        self.metrics.loads.inc(["loaded"]);
        self.metrics.records.set([], number(records.len() as u64));
        self.metrics.skipped.set([], number(records.skipped() as u64));
        tracing::info!(names = records.len(), skipped = records.skipped(), "records loaded");
        self.records.replace(records);
        self.loaded.send_replace(true);
    }

    fn miss(&self, why: &str) {
        self.metrics.loads.inc(["missing"]);
        tracing::warn!("{why}: the last records stay in force");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(names: &[&str]) -> String {
        let ip4: std::collections::BTreeMap<_, _> = names.iter().map(|name| (name, ["10.0.0.1"])).collect();
        serde_json::json!({"version": "v1alpha1", "ip4": ip4}).to_string()
    }

    #[test]
    fn last_good_records_stay_after_malformed_empty_and_missing_documents() {
        let active = ActiveRecords::new(Arc::new(Metrics::new().expect("families")));
        let count = || active.records.read().len();
        active.load(Some(b"{"));
        assert!(!active.is_loaded(), "nothing good yet");
        active.load(Some(document(&["a.ts.net", "b.ts.net"]).as_bytes()));
        assert_eq!((active.is_loaded(), count()), (true, 2));
        for bad in [Some(&b"{"[..]), Some(b""), None, Some(br#"{"version":"v2"}"#)] {
            active.load(bad);
            assert_eq!(count(), 2, "{bad:?}");
        }
        active.load(Some(document(&[]).as_bytes()));
        assert_eq!(count(), 0, "a document without names is no empty one");
    }

    #[test]
    fn first_document_may_be_empty_as_the_tailscale_operator_creates_it() {
        let active = ActiveRecords::new(Arc::new(Metrics::new().expect("families")));
        active.load(None);
        assert!(active.is_loaded());
    }
}

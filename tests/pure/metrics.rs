//! docs/metrics.md lists exactly the existing families.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure metrics` rewrites the lists.

use kit::golden::assert_part;
use tailyard::proxy::metrics::Metrics;
use tailyard::reconciler::metrics::Metrics as Reconciler;

const DOCUMENT: &str = "docs/metrics.md";
const PROXY: &str = "<!-- families: made by tests/pure/metrics.rs -->\n";
const RECONCILER: &str = "<!-- families of the reconciler: made by tests/pure/metrics.rs -->\n";
const END: &str = "<!-- end of families -->";

#[test]
fn metrics_document_lists_exactly_all_families() {
    let (proxy, reconciler) = (Metrics::new().expect("families"), Reconciler::new().expect("families"));
    assert_part(DOCUMENT, PROXY, END, &proxy.registry().table());
    assert_part(DOCUMENT, RECONCILER, END, &reconciler.registry().table());
}

/// Labels that scraping sets on each series, and those that a group's `ServiceMonitor` copies. A metric's own label of the same name
/// would be stored as `exported_…`.
const TARGET_LABELS: [&str; 10] = [
    "job",
    "instance",
    "namespace",
    "service",
    "pod",
    "container",
    "endpoint",
    "ts_proxy_type",
    "ts_proxy_parent_name",
    "ts_proxy_parent_namespace",
];

#[test]
fn metric_labels_differ_from_target_labels() {
    let (proxy, reconciler) = (Metrics::new().expect("families"), Reconciler::new().expect("families"));
    let table = proxy.registry().table() + &reconciler.registry().table();
    let labels: Vec<_> =
        table.lines().filter_map(|row| row.split('|').nth(3)).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(labels.len() > 50, "{labels:?}");
    let taken: Vec<_> = labels.into_iter().filter(|label| TARGET_LABELS.contains(label)).collect();
    assert_eq!(taken, [""; 0]);
}

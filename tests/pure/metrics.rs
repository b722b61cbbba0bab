//! docs/metrics.md lists exactly the families that there are.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure metrics` writes the lists anew.

use kit::golden::assert_part;
use tailyard::proxy::metrics::Metrics;
use tailyard::reconciler::metrics::Metrics as Reconciler;

const DOCUMENT: &str = "docs/metrics.md";
const PROXY: &str = "<!-- families: made by tests/pure/metrics.rs -->\n";
const RECONCILER: &str = "<!-- families of the reconciler: made by tests/pure/metrics.rs -->\n";
const END: &str = "<!-- end of families -->";

#[test]
fn the_document_lists_every_family_and_no_other() {
    let (proxy, reconciler) = (Metrics::new().expect("families"), Reconciler::new().expect("families"));
    assert_part(DOCUMENT, PROXY, END, &proxy.registry().table());
    assert_part(DOCUMENT, RECONCILER, END, &reconciler.registry().table());
}

//! docs/metrics.md lists exactly the families that there are.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use tailyard::proxy::metrics::Metrics;
use tailyard::reconciler::metrics::Metrics as Reconciler;

const BEGIN: &str = "<!-- families: made by tests/metrics.rs -->\n";
const RECONCILER: &str = "<!-- families of the reconciler: made by tests/metrics.rs -->\n";
const END: &str = "<!-- end of families -->";

/// The document with its list of families replaced by what the program has.
fn with_families(document: &str, begin: &str, table: &str) -> String {
    let (before, rest) = document.split_once(begin).expect("the marker before the list");
    let (_, after) = rest.split_once(END).expect("the marker after the list");
    format!("{before}{begin}{table}{END}{after}")
}

#[test]
fn the_document_lists_every_family() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let document = fs::read_to_string(&path).expect("docs/metrics.md");
    let wanted = with_families(&document, BEGIN, &Metrics::new().expect("families").registry().table());
    let wanted = with_families(&wanted, RECONCILER, &Reconciler::new().expect("families").registry().table());
    if std::env::var_os("TAILYARD_WRITE_DOCS").is_some() {
        return fs::write(&path, &wanted).expect("written");
    }
    assert!(
        document == wanted,
        "docs/metrics.md is not what the program has; write it with\n  TAILYARD_WRITE_DOCS=1 cargo test --test metrics"
    );
}

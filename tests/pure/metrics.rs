//! docs/metrics.md lists exactly the existing families; queries in documents, alerts and the dashboard use labels that they have.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure metrics` rewrites the lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use kit::files;
use kit::golden::assert_part;
use tailyard::nameserver::metrics::Metrics as Nameserver;
use tailyard::proxy::metrics::Metrics;
use tailyard::reconciler::metrics::Metrics as Reconciler;

const DOCUMENT: &str = "docs/metrics.md";
const PROXY: &str = "<!-- families: made by tests/pure/metrics.rs -->\n";
const RECONCILER: &str = "<!-- families of the reconciler: made by tests/pure/metrics.rs -->\n";
const NAMESERVER: &str = "<!-- families of the nameserver: made by tests/pure/metrics.rs -->\n";
const END: &str = "<!-- end of families -->";

#[test]
fn metrics_document_lists_exactly_all_families() {
    let (proxy, reconciler) = (Metrics::new().expect("families"), Reconciler::new().expect("families"));
    assert_part(DOCUMENT, PROXY, END, &proxy.registry().table());
    assert_part(DOCUMENT, RECONCILER, END, &reconciler.registry().table());
    assert_part(DOCUMENT, NAMESERVER, END, &Nameserver::new().expect("families").registry().table());
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
    let table = proxy.registry().table() + &reconciler.registry().table() + &Nameserver::new().expect("families").registry().table();
    let labels: Vec<_> =
        table.lines().filter_map(|row| row.split('|').nth(3)).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(labels.len() > 50, "{labels:?}");
    let taken: Vec<_> = labels.into_iter().filter(|label| TARGET_LABELS.contains(label)).collect();
    assert_eq!(taken, [""; 0]);
}

/// Labels of each family.
fn labels() -> BTreeMap<String, BTreeSet<String>> {
    let (proxy, reconciler) = (Metrics::new().expect("families"), Reconciler::new().expect("families"));
    let table = proxy.registry().table() + &reconciler.registry().table() + &Nameserver::new().expect("families").registry().table();
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let rows = table.lines().map(|row| row.split('|').collect::<Vec<_>>()).filter(|cells| cells.len() > 3);
    let mut all = BTreeMap::<String, BTreeSet<String>>::new();
    for cells in rows {
        for name in quoted(cells[1]) {
            all.entry(name).or_default().extend(quoted(cells[3]));
        }
    }
    all
}

/// Selectors such as `tailyard_x_total{reason="y"}` in a text whose family or label does not exist, and the number of selectors.
fn faulty_selectors(text: &str, labels: &BTreeMap<String, BTreeSet<String>>) -> (Vec<String>, usize) {
    let (mut faults, mut count) = (Vec::new(), 0);
    for (at, _) in text.match_indices("tailyard_") {
        let name: String = text[at..].chars().take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_').collect();
        let Some((matchers, _)) = text[at + name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}')) else { continue };
        count += 1;
        let family = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| labels.get(name.strip_suffix(suffix)?)).or(labels.get(&name));
        let label = |matcher: &str| matcher.split(['=', '!', '~']).next().unwrap_or_default().trim().to_owned();
        let unknown = |label: &String| !TARGET_LABELS.contains(&label.as_str()) && family.is_none_or(|family| !family.contains(label));
        // A value may have a comma only in a regular expression, and no query of ours has one.
        let bad: Vec<_> = matchers.split(',').map(label).filter(|label| !label.is_empty()).filter(unknown).collect();
        faults.extend(bad.iter().map(|label| format!("{name} has no label {label}")));
        faults.extend(family.is_none().then(|| format!("{name} is no family")));
    }
    (faults, count)
}

#[test]
fn queries_use_existing_families_and_labels() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_chart = root.join("charts/tailyard");
    let documents = [files(&root.join("docs"), "md"), vec![root.join("README.md"), root.join("CHANGELOG.md"), of_chart.join("README.md")]];
    let queries = [files(&of_chart.join("files"), "yaml"), files(&of_chart.join("files"), "json")];
    let (labels, mut total) = (labels(), 0);
    for path in documents.concat().into_iter().chain(queries.concat()) {
        let (faults, count) = faulty_selectors(&fs::read_to_string(&path).expect("text").replace("\\\"", "\""), &labels);
        assert_eq!(faults, [""; 0], "{}", path.display());
        total += count;
    }
    assert!(total > 30, "{total} selectors");
    let (faults, _) = faulty_selectors(r#"`tailyard_reconcile_errors_total{error="x"}` and `tailyard_none{a,job="b"}`"#, &labels);
    let expected = ["tailyard_reconcile_errors_total has no label error", "tailyard_none has no label a", "tailyard_none is no family"];
    assert_eq!(faults, expected);
}

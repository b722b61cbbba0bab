//! Tests that docs/failures.md and docs/differences.md name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Every function and every module of a folder.
fn names(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            names.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            self::names(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.insert(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
            let text = fs::read_to_string(&path).expect("a file");
            let functions = text.lines().filter_map(|line| line.trim_start().split_once("fn ")?.1.split(['(', '<']).next());
            names.extend(functions.map(str::to_owned));
        }
    }
}

/// The tests that the last column of each table names and that do not exist. A name may be cut with an ellipsis.
fn missing(document: &str, names: &BTreeSet<String>) -> Vec<String> {
    let cells = document.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.trim_end_matches('|').rsplit('|').next());
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let tests = quoted.filter(|text| text.contains("::") || text.contains('…'));
    let exists = |text: &str| {
        let last = text.rsplit("::").next().unwrap_or_default();
        match (last.strip_prefix('…').unwrap_or(last), last.contains('…')) {
            ("", _) => true,
            (whole, false) => names.contains(whole),
            (part, true) => names.iter().any(|name| name.contains(part.trim_end_matches('…'))),
        }
    };
    tests.filter(|text| !exists(text)).map(str::to_owned).collect()
}

#[test]
fn every_test_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = BTreeSet::new();
    for folder in ["src", "tests"] {
        names(&root.join(folder), &mut all);
    }
    for document in ["docs/failures.md", "docs/differences.md"] {
        let text = fs::read_to_string(root.join(document)).expect("a document");
        assert!(text.matches("::").count() > 20, "{document} names tests");
        assert_eq!(missing(&text, &all), [""; 0], "{document}");
    }
}

#[test]
fn a_name_that_is_none_is_found() {
    let names = BTreeSet::from(["good_one".to_owned()]);
    let table = "| a | `x::good_one` |\n| b::c | `x::bad_one`, `…one`, `…_two` |\n`x::outside`";
    assert_eq!(missing(table, &names), ["x::bad_one", "…_two"]);
}

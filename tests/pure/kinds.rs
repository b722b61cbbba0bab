//! A watched kind is a row of a table: the files that docs/architecture.md names are all that a new one edits.

use std::path::Path;

use crate::source::files;

/// The most existing files that a new kind may edit.
const MAX_EDITED: usize = 4;
/// Kinds that only the table and their own files name: no other code distinguishes them.
const BY_TABLE_ALONE: [&str; 8] = ["Group", "Class", "Tailnet", "Node", "Namespace", "IngressClass", "BackendSlice", "Credentials"];

/// Rows of the table in a section: file and edit.
fn rows<'a>(document: &'a str, heading: &str) -> Vec<(&'a str, &'a str)> {
    let section = document.split_once(heading).expect("the section").1;
    let section = section.split("\n#").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    cells.map(|(file, edit)| (file, edit.trim_end_matches(" |"))).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn documented_files_are_those_that_name_a_watched_custom_resource() {
    let document = read("docs/architecture.md");
    let rows = rows(&document, "\n### Add a kind\n");
    assert!((1..=MAX_EDITED).contains(&rows.len()), "{rows:?}");
    for (file, edit) in rows {
        let text = read(file).to_lowercase();
        assert!(text.contains("tailnet"), "{file} does not name the example ({edit})");
    }
}

#[test]
fn table_alone_distinguishes_kinds() {
    let paths = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reconciler"), "rs");
    let sources: Vec<_> = paths.iter().map(|path| (path, std::fs::read_to_string(path).expect("a file"))).collect();
    let named = |text: &str| BY_TABLE_ALONE.into_iter().filter(|kind| text.contains(&format!("CachedObject::{kind}("))).collect::<Vec<_>>();
    let others: Vec<_> = sources.iter().map(|(path, text)| (path, named(text))).filter(|(_, kinds)| !kinds.is_empty()).collect();
    assert!(others.is_empty(), "use WatchedKind or ClusterCache::get: {others:?}");
    assert_eq!(named("match object { CachedObject::Node(node) => 1 }"), ["Node"]);
}

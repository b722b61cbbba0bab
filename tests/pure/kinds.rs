//! A watched kind is a row of a table: the files that docs/architecture.md names are all that a new one edits.

use std::path::Path;

use kit::files;

/// The most existing Rust files that a new kind may edit, those of tests included.
const MAX_EDITED: usize = 5;
/// Kinds that only the table and their own files name: no other code distinguishes them.
const BY_TABLE_ALONE: [&str; 8] = ["Group", "Class", "Tailnet", "Node", "Namespace", "IngressClass", "BackendSlice", "Credentials"];

/// Rows of the table in a section: file and edit.
fn rows<'a>(document: &'a str, heading: &str) -> Vec<(&'a str, &'a str)> {
    let section = document.split_once(heading).expect("the section").1;
    let section = section.split("\n#").next().unwrap_or_default();
    let table = section.split_once("\n| File | Edit |\n").expect("the table").1.split("\n\n").next().unwrap_or_default();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    cells.map(|(file, edit)| (file, edit.trim_end_matches(" |"))).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn documented_files_are_those_that_name_a_watched_custom_resource() {
    let document = read("docs/architecture.md");
    let rows = rows(&document, "\n### Add a kind\n");
    let sources = rows.iter().filter(|(file, _)| Path::new(file).extension().is_some_and(|extension| extension == "rs")).count();
    assert!((1..=MAX_EDITED).contains(&sources), "{rows:?}");
    assert!(document.contains("at most five existing Rust files"), "the page has the limit, too");
    for (file, edit) in rows {
        let text = read(file).to_lowercase();
        assert!(text.contains("tailnet"), "{file} does not name the example ({edit})");
    }
}

/// Whether a text names the work key of a kind that is reconciled by itself.
fn lists_keys(text: &str) -> bool {
    ["WorkKey::Class", "WorkKey::Tailnet"].into_iter().any(|key| text.contains(key))
}

#[test]
fn cache_lists_work_keys_by_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reconciler");
    let others = files(&root.join("cache"), "rs").into_iter().chain([root.join("cache.rs")]).filter(|path| {
        let path = path.to_string_lossy();
        !path.contains("/cache/kinds") && !path.contains("/tests")
    });
    let others: Vec<_> = others.filter(|path| lists_keys(&std::fs::read_to_string(path).expect("a file"))).collect();
    assert!(others.is_empty(), "use WatchedKind::own_key: {others:?}");
    assert!(lists_keys(&read("src/reconciler/cache/kinds/tailscale.rs")));
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

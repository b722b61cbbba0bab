//! docs/served.md has everything of the Tailscale operator: its kinds, the names in its source, and the variables of its proxy.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kit::definitions::{their_directory, their_source};
use kit::files;

/// Folders of the module with the operator and its proxies. Their tests are left out.
const FOLDERS: [&str; 6] = ["cmd/k8s-operator", "k8s-operator", "kube", "cmd/k8s-proxy", "cmd/containerboot", "cmd/k8s-nameserver"];
/// Prefix of names of Kubernetes objects, and of Go packages.
const PREFIX: &str = "tailscale.com/";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Texts between double quotes in the operator's Go files below these folders.
fn literals(folders: &[&str]) -> BTreeSet<String> {
    let source = their_source();
    let go = folders.iter().flat_map(|folder| files(&source.join(folder), "go"));
    let go = go.filter(|path| !path.to_string_lossy().ends_with("_test.go") && !path.components().any(|part| part.as_os_str() == "e2e"));
    let texts: Vec<_> = go.map(|path| read(&path)).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn page() -> String {
    read(&kit::root().join("docs/served.md"))
}

/// Names in code spans of the first cells of the page's tables.
fn rows(page: &str) -> BTreeSet<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches(['`', ' ']).split('`').next().unwrap_or_default()).collect()
}

#[test]
fn each_kind_and_name_of_the_operator_has_a_row() {
    let (page, source) = (page(), their_source());
    let kinds = files(&their_directory(), "yaml").into_iter().map(|path| {
        let text = read(&path);
        let kind = text.lines().find_map(|line| line.strip_prefix("    kind: ").or_else(|| line.strip_prefix("        kind: ")));
        kind.expect("a kind").to_owned()
    });
    let is_name = |text: &String| {
        let package = text.strip_prefix(PREFIX).map(|package| source.join(package));
        package.is_some_and(|package| !package.exists()) && !text.contains(['%', ' ']) && !text.starts_with("tailscale.com/client")
    };
    let labels = |text: &String| text.starts_with("ts_p") && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let named = literals(&FOLDERS).into_iter().filter(|text| is_name(text) || labels(text));
    let wanted: BTreeSet<String> = kinds.chain(named).collect();
    assert!(wanted.len() > 45, "{wanted:?}");
    let rows = rows(&page);
    let missing: Vec<_> = wanted.iter().filter(|name| !rows.contains(name.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new(), "add a row to docs/served.md");
    let gone: Vec<_> = rows.iter().filter(|row| !wanted.contains(**row)).collect();
    assert_eq!(gone, Vec::<&&str>::new(), "the operator has none of these");
}

#[test]
fn each_variable_of_the_operators_proxy_is_read_or_named() {
    let settings = kit::root().join("src/model");
    let sources = files(&settings.join("settings"), "rs").into_iter().chain([settings.join("settings.rs")]);
    let text: String = sources.map(|path| read(&path)).collect::<String>() + &page();
    let is_variable = |name: &&String| {
        let prefix = ["TS_", "POD_", "EXPERIMENTAL_", "KUBERNETES_SERVICE_"].iter().any(|prefix| name.starts_with(prefix));
        prefix && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let literals = literals(&["cmd/containerboot"]);
    let variables: Vec<_> = literals.iter().filter(is_variable).collect();
    assert!(variables.len() > 35, "{variables:?}");
    let words: BTreeSet<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let unread: Vec<_> = variables.into_iter().filter(|name| !words.contains(name.as_str())).collect();
    assert_eq!(unread, Vec::<&String>::new());
}

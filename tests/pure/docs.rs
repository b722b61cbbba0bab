//! docs/failures.md, docs/differences.md, docs/served.md and SECURITY.md name existing tests: the first one in the line `- **Test**: …`
//! under each heading `### `, the others in the last column of their tables. A test is written `` `path` ``, a scenario of the cluster
//! tier `` `cluster` "name" ``; an entry without a test has "not tested". All documents name existing files, and items that are in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kit::files;
use kit::guide::{self, Fate};

type Check = fn(&str, &BTreeSet<String>) -> Findings;

/// Documents, each with its check and its untested entries, by the beginning of the heading or first cell.
const DOCUMENTS: [(&str, Check, &[&str]); 4] = [
    ("docs/failures.md", check_headings, &["tailscaled rejects `ShieldsUp` during a drain", "tailscaled has no config file"]),
    ("docs/differences.md", check_tables, &[]),
    ("docs/served.md", check_tables, &[]),
    ("SECURITY.md", check_tables, &[]),
];
/// Lines under a heading of docs/failures.md, in this order.
const FIELDS: [&str; 4] = ["Effect", "Detect", "Action", "Test"];
const NOT_TESTED: &str = "not tested";
/// Macros that generate tests from functions: their arguments up to the first of `:` and `)` are names of tests.
const MACROS: [&str; 3] = ["on_every_backend!(", "in_every_firewall_and_family!(", "in_cases!("];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Adds the tests of a folder, as cargo names them.
fn add_tests(folder: &Path, module: &str, tests: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner = if matches!(name.as_str(), "main" | "lib") { module.to_owned() } else { format!("{module}{name}::") };
        if path.is_dir() {
            add_tests(&path, &inner, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a file");
            tests.extend(tests_in(&text).into_iter().map(|test| inner.clone() + &test));
        }
    }
}

/// Tests of a file: functions with an attribute that ends in `test`, in inline modules by their indentation, and those that macros
/// generate.
pub(crate) fn tests_in(text: &str) -> Vec<String> {
    let (mut tests, mut modules, mut is_test) = (Vec::new(), Vec::<(usize, String)>::new(), false);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with("#[test]") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = item(code, "mod ").filter(|_| code.ends_with('{')) {
            modules.retain(|(of, _)| *of < indent);
            modules.push((indent, name.to_owned()));
        } else if let Some(name) = item(code, "fn ").filter(|_| std::mem::take(&mut is_test)) {
            modules.retain(|(of, _)| *of < indent);
            tests.push(modules.iter().map(|(_, module)| module.as_str()).chain([name]).collect::<Vec<_>>().join("::"));
        }
    }
    let made = MACROS.iter().flat_map(|name| text.split(name).skip(1)).filter_map(|rest| rest.split([':', ')']).next());
    tests.extend(made.flat_map(|names| names.split(',')).map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned));
    tests
}

/// Name of the item that begins on a line, with or without visibility and `async`.
fn item<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let (before, rest) = code.split_once(keyword)?;
    let words = before.split_whitespace().all(|word| word.starts_with("pub") || word == "async");
    words.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

/// Names of the scenarios, each after its tier.
fn scenarios() -> BTreeSet<String> {
    let files = [("cluster", "tests/cluster/cluster/scenarios.rs"), ("services", "tests/cluster/services.rs")];
    let names = |(tier, file): (&str, &str)| {
        let text = read(file);
        let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix("(\"")?.split_once("\", "));
        rows.map(|(name, _)| format!("`{tier}` \"{name}\"")).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(names).collect()
}

/// Result of a check: errors, and the first cells or headings of untested entries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    errors: Vec<String>,
    untested: Vec<String>,
}

impl Findings {
    /// Checks the tests that the entry `title` names in a line.
    fn check_tests(&mut self, line: usize, title: &str, tests: &str, existing: &BTreeSet<String>) {
        if tests == NOT_TESTED {
            self.untested.push(title.to_owned());
            return;
        }
        let unknown = tests.split(", ").filter(|test| !existing.contains(*test));
        self.errors.extend(unknown.map(|test| format!("line {line}: {test} is not a test")));
    }
}

/// Checks the rows of the tables whose last column is `test` or `tests`.
fn check_tables(document: &str, existing: &BTreeSet<String>) -> Findings {
    let mut findings = Findings::default();
    let mut has_tests = false;
    for (number, line) in (1..).zip(document.lines()).filter(|(_, line)| line.starts_with('|') && !line.starts_with("|---")) {
        let line = line.replace("\\|", "");
        let cells: Vec<_> = line.trim_end().trim_matches('|').split('|').map(str::trim).collect();
        if document.lines().nth(number).is_some_and(|next| next.starts_with("|---")) {
            has_tests = cells.last().is_some_and(|last| matches!(*last, "test" | "tests"));
            continue;
        }
        let Some(tests) = cells.last().filter(|_| has_tests) else { continue };
        if cells.iter().any(|cell| cell.is_empty()) {
            findings.errors.push(format!("line {number}: a cell is empty"));
        }
        findings.check_tests(number, cells[0], tests, existing);
    }
    findings
}

/// Checks that each `### ` heading has the lines of [`FIELDS`] in their order and no others.
fn check_headings(document: &str, existing: &BTreeSet<String>) -> Findings {
    let mut findings = Findings::default();
    let lines: Vec<(usize, &str)> = (1..).zip(document.lines()).filter(|(_, line)| !line.is_empty()).collect();
    for (index, (number, line)) in lines.iter().enumerate() {
        let Some(title) = line.strip_prefix("### ") else { continue };
        let body: Vec<(usize, &str)> = lines[index + 1..].iter().copied().take_while(|(_, line)| !line.starts_with('#')).collect();
        let values: Vec<&str> = FIELDS.iter().zip(&body).map_while(|(name, (_, line))| field_value(line, name)).collect();
        if body.len() == FIELDS.len() && values.len() == FIELDS.len() {
            findings.check_tests(body[3].0, title, values[3], existing);
        } else {
            findings.errors.push(format!("line {number}: {title:?} does not have the lines {}, each with a value", FIELDS.join(", ")));
        }
    }
    findings
}

/// Value in a line such as `- **Effect**: none`; `None` for another field or an empty value.
fn field_value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = line.strip_prefix("- **")?.strip_prefix(name)?.strip_prefix("**:")?.trim();
    (!value.is_empty()).then_some(value)
}

/// Tests in a folder of the tree, as cargo names them.
fn tests_of(folder: &str) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    add_tests(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), "", &mut tests);
    tests
}

/// All tests of the library and of the test programs.
fn all_tests() -> BTreeSet<String> {
    ["src", "tests/pure", "tests/machine", "tests/api", "tests/cluster", "tests/package"].into_iter().flat_map(tests_of).collect()
}

/// Program and filter of each `--test PROGRAM … FILTER` in a text; options between them are skipped.
fn test_filters(text: &str) -> Vec<(&str, &str)> {
    let commands = text.lines().flat_map(|line| line.split("--test ").skip(1)).filter_map(|rest| rest.split(['`', '#', ')']).next());
    let words = commands.map(|command| command.split_whitespace().filter(|word| !word.starts_with('-')));
    words.filter_map(|mut words| Some((words.next()?, words.next()?))).collect()
}

#[test]
fn each_test_filter_selects_a_test() {
    let files = documents().into_iter().chain([PathBuf::from("Makefile")]);
    let commands = files.map(|file| (read(&file.to_string_lossy()), file)).collect::<Vec<_>>();
    let filters: Vec<_> = commands.iter().flat_map(|(text, file)| test_filters(text).into_iter().map(move |of| (file, of))).collect();
    assert!(filters.iter().any(|(file, (program, _))| file.ends_with("Makefile") && *program == "api"), "{filters:?}");
    for (file, (program, filter)) in filters {
        let selects = tests_of(&format!("tests/{program}")).iter().any(|test| test.contains(filter));
        assert!(selects, "{}: --test {program} {filter} runs no test", file.display());
    }
}

#[test]
fn each_block_of_commands_is_run_by_existing_tests_or_has_a_reason() {
    assert_eq!(guide::faults(), Vec::<String>::new());
    let tests = all_tests();
    for (document, begin, fate) in guide::BLOCKS {
        match fate {
            Fate::RunBy(names) => {
                assert!(!names.is_empty() && names.iter().all(|name| tests.contains(*name)), "{document}: {begin}: {names:?}");
            }
            Fate::NotRun(reason) => assert!(reason.len() > 10, "{document}: {begin}"),
        }
    }
}

#[test]
fn each_row_and_heading_names_existing_tests() {
    let existing = all_tests().into_iter().map(|test| format!("`{test}`")).chain(scenarios()).collect();
    for (document, check, allowed) in DOCUMENTS {
        let Findings { errors, untested } = check(&read(document), &existing);
        assert!(errors.is_empty(), "{document}:\n{}", errors.join("\n"));
        let same = untested.len() == allowed.len() && untested.iter().zip(allowed).all(|(entry, start)| entry.starts_with(start));
        assert!(same, "{document}: untested entries: {untested:?}, expected {allowed:?}");
    }
}

/// Folders with files that documents name by their path in the tree.
const FOLDERS: [&str; 5] = ["bench/", "charts/", "config/", "src/", "tests/"];
/// Keywords that define items.
const KEYWORDS: [&str; 7] = ["const", "enum", "fn", "mod", "struct", "trait", "type"];

/// Paths in a document, each with the items before it: `` `one`, `Two::three` (`src/a.rs`) ``.
fn named_paths(document: &str) -> Vec<(String, Vec<String>)> {
    let text = document.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts: Vec<&str> = text.split('`').collect();
    let mut named = Vec::new();
    for (index, path) in parts.iter().enumerate().skip(1).step_by(2) {
        let is_path = path.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
        if !is_path || !FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let (mut at, mut separator, mut items) = (index, " (", Vec::new());
        while at > 1 && parts[at - 1] == separator {
            at -= 2;
            items.push(parts[at].rsplit("::").next().unwrap_or_default().to_owned());
            separator = ", ";
        }
        named.push(((*path).to_owned(), items));
    }
    named
}

/// Whether a source file defines an item.
fn defines(text: &str, item: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    KEYWORDS.iter().any(|keyword| text.split(&format!("{keyword} {item}")).skip(1).any(ends))
}

/// Paths and items in a document that do not exist.
fn missing_names(document: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = Vec::new();
    for (path, items) in named_paths(document) {
        if !root.join(&path).exists() {
            missing.push(path);
        } else if path.starts_with("src/") && root.join(&path).is_file() {
            let text = read(&path);
            missing.extend(items.into_iter().filter(|item| !defines(&text, item)).map(|item| format!("{item} in {path}")));
        }
    }
    missing
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let others =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "charts/tailyard/README.md", "tests/README.md", "bench/README.md"];
    files(&root.join("docs"), "md").into_iter().chain(others.map(|name| root.join(name))).collect()
}

/// Anchors of a document's headings.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut is_fenced = false;
    let headings = document.lines().filter(|line| {
        is_fenced ^= line.starts_with("```");
        !is_fenced && line.starts_with('#')
    });
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

/// Relative links of a document at this path to a missing file or heading.
fn broken_links(path: &Path, document: &str) -> Vec<String> {
    let links = document.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let is_broken = |link: &&str| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let file = if file.is_empty() { path.to_owned() } else { path.parent().expect("a folder").join(file) };
        let has_anchor = || fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(anchor));
        !file.exists() || !(anchor.is_empty() || has_anchor())
    };
    links.filter(|link| !link.starts_with("http")).filter(is_broken).map(str::to_owned).collect()
}

#[test]
fn document_links_have_existing_files_and_headings() {
    for path in documents() {
        let text = fs::read_to_string(&path).expect("a document");
        assert_eq!(broken_links(&path, &text), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn link_without_file_or_heading_is_found() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/failures.md");
    let text = "[a](#config) [b](#nothing) [c](doctor.md) [d](none.md) [e](doctor.md#none) [f](https://none.example/#x) [g](doctor.md#tun)";
    assert_eq!(broken_links(&path, text), ["#nothing", "none.md", "doctor.md#none"]);
}

#[test]
fn files_and_items_in_documents_exist() {
    let documents = documents();
    let texts: Vec<_> = documents.iter().map(|path| fs::read_to_string(path).expect("a document")).collect();
    let items: usize = texts.iter().flat_map(|text| named_paths(text)).map(|(_, items)| items.len()).sum();
    assert!(items > 30, "docs/architecture.md names the functions that decide, not {items}");
    for (path, text) in documents.iter().zip(&texts) {
        assert_eq!(missing_names(text), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn missing_file_and_item_are_found() {
    let document =
        "`no`: `Findings::lines`,\n`read_file` (`src/main.rs`) and `src/none.rs`, `target/none`, `config/*.yaml`; `main` (`src/main.rs`)";
    assert_eq!(missing_names(document), ["read_file in src/main.rs", "lines in src/main.rs", "src/none.rs"]);
    assert!(defines("pub const fn all() {}", "all") && !defines("fn all_of() {}", "all"));
}

/// Names of tests in the samples.
fn sample_tests() -> BTreeSet<String> {
    BTreeSet::from(["`x::good_one`".to_owned(), "`cluster` \"a kill\"".to_owned()])
}

#[test]
fn row_without_existing_test_is_an_error() {
    let table = "| fault | test |\n|---|---|\n| a \\| b | `x::good_one`, `cluster` \"a kill\" |\n| c | not tested |\n\
                 | d | `x::bad_one`, beside the code |\n| e |  |\n`x::outside`";
    let errors = [
        "line 5: `x::bad_one` is not a test",
        "line 5: beside the code is not a test",
        "line 6: a cell is empty",
        "line 6:  is not a test",
    ];
    let expected = Findings { errors: errors.map(str::to_owned).to_vec(), untested: vec!["c".to_owned()] };
    assert_eq!(check_tables(table, &sample_tests()), expected);
}

#[test]
fn heading_without_four_fields_or_existing_test_is_an_error() {
    let fault = |title: &str, action: &str, test: &str| {
        format!("### {title}\n\n- **Effect**: a\n- **Detect**: b\n- **Action**:{action}\n- **Test**: {test}\n\n")
    };
    let document = [
        "# Title\n\n- **Test**: `x::outside`\n\n## Group\n\n".to_owned(),
        fault("good", " c", "`x::good_one`, `cluster` \"a kill\""),
        fault("untested", " c", "not tested"),
        fault("unknown", " c", "`x::bad_one`"),
        fault("empty", "", "`x::good_one`"),
        fault("order", " c\n- **Detect**: d", "`x::good_one`"),
        "### short\n\n- **Effect**: a\n\n## Next group\n".to_owned(),
    ];
    let missing = |line: usize, title: &str| {
        format!("line {line}: {title:?} does not have the lines Effect, Detect, Action, Test, each with a value")
    };
    let errors = vec!["line 26: `x::bad_one` is not a test".to_owned(), missing(28, "empty"), missing(35, "order"), missing(43, "short")];
    let expected = Findings { errors, untested: vec!["untested".to_owned()] };
    assert_eq!(check_headings(&document.concat(), &sample_tests()), expected);
}

#[test]
fn helpers_and_modules_are_not_tests() {
    let text = "fn helper() {}\n#[test]\nfn plain() {}\n#[tokio::test(flavor = \"x\")]\nasync fn later() {}\nmod tests {\n    fn helper() {}\n    \
                #[test]\n    fn inner() {}\n}\n#[test]\nfn after() {}\nin_cases!(of_a_macro: ipv4(1));\non_every_backend!(one, two);\n";
    assert_eq!(tests_in(text), ["plain", "later", "tests::inner", "after", "one", "two", "of_a_macro"]);
}

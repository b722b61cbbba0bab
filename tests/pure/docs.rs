//! The rows of docs/failures.md, docs/differences.md and SECURITY.md name the tests that show them, in their last column: `` `path` `` of a test,
//! `` `cluster` "name" `` of a scenario of the cluster tier, or the words "not tested".

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The documents, each with the rows that are not tested, by the beginning of their first cell.
const DOCUMENTS: [(&str, &[&str]); 3] = [
    (
        "docs/failures.md",
        &[
            "tailscaled does not take it that nobody is to be let in",
            "somebody changes tailscaled's serve config",
            "services are to be advertised and tailscaled has no config file",
            "clock jumps",
        ],
    ),
    ("docs/differences.md", &[]),
    ("SECURITY.md", &[]),
];
const NOT_TESTED: &str = "not tested";
/// Macros that make tests of functions: their arguments up to the first of `:` and `)` are names of tests.
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

/// The tests of a file: functions with an attribute that ends in `test`, in inline modules by their indentation, and those that
/// macros make.
fn tests_in(text: &str) -> Vec<String> {
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
    tests.extend(made.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()));
    tests
}

/// The name of an item that a line begins, whatever stands before the keyword.
fn item<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let (before, rest) = code.split_once(keyword)?;
    let words = before.split_whitespace().all(|word| word.starts_with("pub") || word == "async");
    words.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

/// The names of the scenarios of the cluster tier.
fn scenarios() -> BTreeSet<String> {
    let text = read("tests/cluster/cluster/scenarios.rs");
    let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix("(\"")?.split_once("\", "));
    rows.map(|(name, _)| format!("`cluster` \"{name}\"")).collect()
}

/// What is wrong with the rows of a document's tables whose last column is of tests, and the first cells of those that are not tested.
fn judge(document: &str, known: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
    let (mut faults, mut untested) = (Vec::new(), Vec::new());
    let mut of_tests = false;
    for (number, line) in (1..).zip(document.lines()).filter(|(_, line)| line.starts_with('|') && !line.starts_with("|---")) {
        let line = line.replace("\\|", "");
        let cells: Vec<_> = line.trim_end().trim_matches('|').split('|').map(str::trim).collect();
        if document.lines().nth(number).is_some_and(|next| next.starts_with("|---")) {
            of_tests = cells.last().is_some_and(|last| matches!(*last, "test" | "tests"));
            continue;
        }
        let Some(last) = cells.last().filter(|_| of_tests) else { continue };
        if cells.iter().any(|cell| cell.is_empty()) {
            faults.push(format!("line {number}: a cell is empty"));
        }
        if *last == NOT_TESTED {
            untested.push(cells[0].to_owned());
            continue;
        }
        let unknown = last.split(", ").filter(|test| !known.contains(*test));
        faults.extend(unknown.map(|test| format!("line {number}: {test} is no test")));
    }
    (faults, untested)
}

#[test]
fn each_row_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    add_tests(&root.join("src"), "", &mut tests);
    for program in ["pure", "machine", "api", "cluster", "package"] {
        add_tests(&root.join("tests").join(program), "", &mut tests);
    }
    let known = tests.into_iter().map(|test| format!("`{test}`")).chain(scenarios()).collect();
    for (document, allowed) in DOCUMENTS {
        let (faults, untested) = judge(&read(document), &known);
        assert!(faults.is_empty(), "{document}:\n{}", faults.join("\n"));
        let same = untested.len() == allowed.len() && untested.iter().zip(allowed).all(|(row, of)| row.starts_with(of));
        assert!(same, "{document}: rows that are not tested: {untested:?}, expected {allowed:?}");
    }
}

#[test]
fn a_row_without_a_test_is_found() {
    let known = BTreeSet::from(["`x::good_one`".to_owned(), "`cluster` \"a kill\"".to_owned()]);
    let table = "| fault | test |\n|---|---|\n| a \\| b | `x::good_one`, `cluster` \"a kill\" |\n| c | not tested |\n\
                 | d | `x::bad_one`, beside the code |\n| e |  |\n`x::outside`";
    let (faults, untested) = judge(table, &known);
    let expected =
        ["line 5: `x::bad_one` is no test", "line 5: beside the code is no test", "line 6: a cell is empty", "line 6:  is no test"];
    assert_eq!((faults, untested), (expected.map(str::to_owned).to_vec(), vec!["c".to_owned()]));
}

#[test]
fn helpers_and_modules_are_no_tests() {
    let text = "fn helper() {}\n#[test]\nfn plain() {}\n#[tokio::test(flavor = \"x\")]\nasync fn later() {}\nmod tests {\n    fn helper() {}\n    \
                #[test]\n    fn inner() {}\n}\n#[test]\nfn after() {}\nin_cases!(of_a_macro: ipv4(1));\non_every_backend!(one, two);\n";
    assert_eq!(tests_in(text), ["plain", "later", "tests::inner", "after", "one", "two", "of_a_macro"]);
}

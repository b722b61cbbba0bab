//! Language rules of documents, program texts and identifiers: the field's terms, and a list of banned words with replacements.
//!
//! Texts of the program are its string literals outside of tests: log messages, conditions, Events, help and metric descriptions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kit::files;
use serde_json::Value;

use crate::docs::tests_in;
use crate::source::{Source, identifiers, tree, without_tests};

/// Words that no document and no text of the program may have, with replacements.
const BANNED: [(&str, &str); 65] = [
    ("anew", "again"),
    ("anybody", "name the program or client"),
    ("ask whom", "name the target"),
    ("asks", "requests"),
    ("barred", "unavailable"),
    ("becomes of", "name the outcome"),
    ("befalls", "happens to"),
    ("befell", "happened to"),
    ("believed", "trusted"),
    ("believes", "trusts"),
    ("comes to", "is, or results in"),
    ("everybody", "all clients"),
    ("forgiven", "accepted"),
    ("forgives", "accepts"),
    ("goes by", "uses, or depends on"),
    ("goodbye", "a final notice"),
    ("he", "it"),
    ("heard", "received"),
    ("hears", "receives"),
    ("held back", "withheld"),
    ("her", "its"),
    ("himself", "itself"),
    ("his", "its"),
    ("hush", "mute"),
    ("hushed", "muted"),
    ("in nobody's way", "not a readiness failure"),
    ("is let go", "is released"),
    ("is let in", "is accepted"),
    ("is told", "is reported"),
    ("judged", "validated, or compared"),
    ("judges", "validates, or compares"),
    ("leads to", "is routed to, or results in"),
    ("led to", "routed to, or resulted in"),
    ("let go", "released"),
    ("let in", "accepted"),
    ("let nobody", "reject"),
    ("lets go", "releases"),
    ("lets in", "accepts"),
    ("made anew", "recreated"),
    ("made known", "imported, or reported"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("mends", "repairs"),
    ("nobody", "name the program or client"),
    ("of late", "recently"),
    ("she", "it"),
    ("shun", "eject"),
    ("shunned", "ejected"),
    ("shuns", "ejects"),
    ("somebody", "name the program or client"),
    ("someone", "name the program or client"),
    ("speaks", "uses"),
    ("spoken", "used"),
    ("stood", "was, or was established"),
    ("surgeon", "flow cleanup"),
    ("taken back", "withdrawn"),
    ("tells", "reports"),
    ("the twin", "the service of the other cluster"),
    ("told", "reported, or name the content"),
    ("unasked", "without a request"),
    ("vanished", "missing, or deleted"),
    ("what it is to", "name the desired state"),
    ("whoever", "name the program or client"),
    ("whom", "name the target"),
    ("wishes", "requests"),
];

/// Names without content: no type, function, field or variable may have one of them alone.
const VAGUE: [&str; 34] = [
    "told",
    "held",
    "kept",
    "stood",
    "seen",
    "spoken",
    "known",
    "led",
    "asked",
    "left",
    "hushed",
    "judged",
    "mended",
    "nobody",
    "shunned",
    "wished",
    "able",
    "alone",
    "aside",
    "asks",
    "carry",
    "elsewhere",
    "give",
    "give_back",
    "given_up",
    "going",
    "in_the_way",
    "leave",
    "news",
    "said",
    "shut",
    "standing",
    "whose",
    "wish",
];

/// Words that no test name may begin with: a name states the subject and the expectation.
const PRONOUNS: [&str; 5] = ["it", "what", "whatever", "who", "whoever"];

/// Last words of the name of a constant of type `Duration`, which say its quantity; `MAX_` and `MIN_` do so at the beginning.
const QUANTITIES: [&str; 12] =
    ["AGE", "DEADLINE", "DELAY", "GRACE", "INTERVAL", "LIFETIME", "PERIOD", "REQUEUE", "TIMEOUT", "TTL", "WAIT", "WINDOW"];

/// First words of clauses and references, with which no description of a field begins: `kubectl explain` shows it alone.
const CLAUSES: [&str; 16] =
    ["how", "if", "it", "its", "that", "their", "they", "those", "what", "when", "where", "whether", "which", "who", "whose", "why"];

/// Type names that several places share by convention.
const CONVENTIONAL: [&str; 8] = ["Error", "Inputs", "Kind", "Limits", "Metrics", "Settings", "Snapshot", "State"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of src outside of tests.
fn sources() -> Vec<(String, Source)> {
    let source = |(name, text): (String, String)| (name.clone(), Source::new(&name, &text));
    tree().into_iter().map(source).filter(|(_, source)| !source.is_test).collect()
}

/// All code of the repository, with its paths.
fn code() -> Vec<(String, String)> {
    let folders =
        ["src", "bench", "tests/api", "tests/cluster", "tests/fuzz/targets", "tests/kit", "tests/machine", "tests/package", "tests/pure"];
    let read = |path: PathBuf| (path.display().to_string(), fs::read_to_string(&path).expect("text"));
    folders.iter().flat_map(|folder| files(&root().join(folder), "rs")).map(read).collect()
}

/// Vague names in a text.
fn vague(text: &str) -> Vec<String> {
    identifiers(text).into_iter().filter(|word| VAGUE.contains(&word.as_str())).collect()
}

/// Banned words in a text, with replacements.
fn banned(text: &str) -> Vec<String> {
    let words: Vec<String> = text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).map(str::to_lowercase).collect();
    let text = format!(" {} ", words.join(" "));
    let found = BANNED.iter().filter(|(word, _)| text.contains(&format!(" {word} ")));
    found.map(|(word, instead)| format!("{word:?}, write: {instead}")).collect()
}

/// Prose of a document: everything except code and quotations of the program.
fn prose(document: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(document.lines()) {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced {
            lines.push((number, line.split('`').step_by(2).collect::<Vec<_>>().join(" ")));
        }
    }
    lines
}

/// All descriptions in a definition, of columns, too.
fn descriptions(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("description").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(descriptions)).collect()
        }
        Value::Array(values) => values.iter().flat_map(descriptions).collect(),
        _ => Vec::new(),
    }
}

/// Lines that are comments, without their code.
fn comments(text: &str, mark: &str) -> Vec<(usize, String)> {
    let comment = |line: &str| line.trim_start().strip_prefix(mark).map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join(" "));
    (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, comment(line)?))).collect()
}

#[test]
fn documents_use_the_fields_terms() {
    let mut documents = [files(&root().join("docs"), "md"), files(&root().join("bench/words"), "md")].concat();
    let others =
        ["README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "bench/README.md", "charts/tailyard/README.md", "tests/README.md"];
    documents.extend(others.map(|name| root().join(name)));
    let mut faults = Vec::new();
    for path in documents {
        let text = fs::read_to_string(&path).expect("a document");
        for (number, line) in prose(&text) {
            faults.extend(banned(&line).iter().map(|fault| format!("{}:{number}: {fault}", path.display())));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn texts_of_the_program_use_the_fields_terms() {
    let mut faults = Vec::new();
    for (name, source) in sources() {
        let texts = source.texts.iter().filter(|text| text.contains(' '));
        faults
            .extend(texts.flat_map(|text| banned(text).into_iter().map(|fault| format!("{name}: {fault}, in {text}")).collect::<Vec<_>>()));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn descriptions_of_definitions_are_noun_phrases_in_the_fields_terms() {
    let mut faults = Vec::new();
    for path in files(&root().join("config/crd"), "yaml") {
        let definition: Value = serde_saphyr::from_str(&fs::read_to_string(&path).expect("text")).expect("YAML");
        let described = descriptions(&definition);
        assert!(described.len() >= 10, "{}: {described:?}", path.display());
        for text in described {
            let first = text.split(' ').next().unwrap_or_default().to_lowercase();
            let is_clause = CLAUSES.contains(&first.trim_end_matches([',', '.', ':'])).then(|| "begin with the subject".to_owned());
            faults.extend(banned(&text).into_iter().chain(is_clause).map(|fault| format!("{}: {fault}, in {text:?}", path.display())));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn comments_use_the_fields_terms() {
    let read = |path: PathBuf| (path.display().to_string(), fs::read_to_string(&path).expect("text"));
    let below = |folder: &str, ending| files(&root().join(folder), ending).into_iter().map(read);
    let manifests = ["charts", "config"].into_iter().flat_map(|folder| below(folder, "yaml")).map(|file| ("#", file));
    let programs = code().into_iter().chain(below("tests/servers", "go")).map(|file| ("//", file));
    let mut faults = Vec::new();
    for (mark, (name, text)) in manifests.chain(programs) {
        for (number, line) in comments(&text, mark) {
            faults.extend(banned(&line).iter().map(|fault| format!("{name}:{number}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn no_name_is_vague() {
    let faults: Vec<_> =
        code().iter().flat_map(|(name, text)| vague(text).into_iter().map(move |word| format!("{name}: {word}"))).collect();
    assert!(faults.is_empty(), "name the content:\n{}", faults.join("\n"));
}

/// Names of constants of type `Duration` in a line that do not say their quantity.
fn unnamed_quantity(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("const ")?;
    let (name, kind) = rest.split_once(": ")?;
    let is_duration = kind.starts_with("Duration =") || kind.starts_with("std::time::Duration =");
    let is_named =
        name.starts_with("MAX_") || name.starts_with("MIN_") || QUANTITIES.contains(&name.rsplit('_').next().unwrap_or_default());
    (is_duration && !is_named && before.trim_start_matches(|c: char| c.is_alphanumeric() || "() :".contains(c)).is_empty()).then_some(name)
}

#[test]
fn names_of_durations_say_the_quantity() {
    let production = tree().into_iter().filter(|(name, text)| !Source::new(name, text).is_test);
    let unnamed = |(name, text): (String, String)| {
        without_tests(&text).lines().filter_map(unnamed_quantity).map(|constant| format!("{name}: {constant}")).collect::<Vec<_>>()
    };
    let unnamed: Vec<_> = production.flat_map(unnamed).collect();
    assert!(unnamed.is_empty(), "end with one of {QUANTITIES:?}:\n{}", unnamed.join("\n"));
    assert_eq!(unnamed_quantity("    pub(crate) const SILENCE: Duration = Duration::from_secs(1);"), Some("SILENCE"));
    assert_eq!(unnamed_quantity("const CALL_TIMEOUT: Duration = Duration::from_secs(1);"), None);
    assert_eq!(unnamed_quantity("const SILENCE: usize = 1;"), None);
    let text =
        "#[cfg(test)]\nmod tests;\nconst SILENCE: Duration = ZERO;\n#[cfg(test)]\nmod inner {\n    const PAUSE: Duration = ZERO;\n}\n";
    assert_eq!(without_tests(text).lines().filter_map(unnamed_quantity).collect::<Vec<_>>(), ["SILENCE"], "only test modules are cut");
}

#[test]
fn test_names_use_the_fields_terms() {
    let mut faults = Vec::new();
    for (path, text) in code() {
        for test in tests_in(&text) {
            let words = test.rsplit("::").next().unwrap_or_default().replace('_', " ");
            let is_vague = PRONOUNS.contains(&words.split(' ').next().unwrap_or_default());
            faults.extend(
                banned(&words)
                    .into_iter()
                    .chain(is_vague.then(|| "name the subject first".to_owned()))
                    .map(|fault| format!("{path}: {test}: {fault}")),
            );
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn type_names_stand_for_one_idea() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (name, source) in sources() {
        for defined in source.types {
            places.entry(defined).or_default().push(name.clone());
        }
    }
    places.retain(|_, places| places.len() > 1);
    println!("{} type names stand for two or more types", places.len());
    places.retain(|name, _| !CONVENTIONAL.contains(&name.as_str()));
    assert!(places.is_empty(), "type names that stand for two or more types: {places:#?}");
}

#[test]
fn a_banned_word_is_found_with_its_replacement() {
    assert_eq!(
        banned("Nobody new is told."),
        [
            "\"is told\", write: is reported",
            "\"nobody\", write: name the program or client",
            "\"told\", write: reported, or name the content"
        ]
    );
    assert_eq!(banned("The mythology of tolders"), [""; 0], "whole words only");
    let document = "`told` is code\n```\nnobody\n```\nsomebody\n";
    let found: Vec<_> = prose(document).into_iter().filter(|(_, line)| !banned(line).is_empty()).map(|(number, _)| number).collect();
    assert_eq!(found, [5]);
    let text = "struct A;\nfn f() { let told = \"nobody speaks\"; } // told\n#[cfg(test)]\nmod tests {\n    fn held() {}\n}\n";
    let source = Source::new("a.rs", text);
    assert_eq!((source.texts, source.types), (vec!["\"nobody speaks\"".to_owned()], vec!["A".to_owned()]));
    assert_eq!(vague(text), ["told", "held"], "names of tests, too");
}

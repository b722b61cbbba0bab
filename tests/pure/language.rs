//! The language of documents, program texts and identifiers: the field's terms, none of the words that they replace.
//!
//! Texts of the program are its string literals outside of tests: log messages, conditions, Events, help and metric descriptions.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::source::{Source, files, tree};

/// Words that no document and no text of the program has, and what to write.
const BANNED: [(&str, &str); 26] = [
    ("anew", "again"),
    ("ask whom", "name the target"),
    ("barred", "unavailable"),
    ("becomes of", "name the outcome"),
    ("believed", "trusted"),
    ("believes", "trusts"),
    ("forgives", "accepts"),
    ("goodbye", "a final notice"),
    ("hushed", "muted"),
    ("in nobody's way", "not a readiness failure"),
    ("is let go", "is released"),
    ("is let in", "is accepted"),
    ("is told", "is reported"),
    ("leads to", "is routed to, or results in"),
    ("let nobody", "reject"),
    ("made anew", "recreated"),
    ("mended", "repaired"),
    ("nobody", "name the program or client"),
    ("shunned", "ejected"),
    ("somebody", "name the program or client"),
    ("speaks", "uses"),
    ("surgeon", "flow cleanup"),
    ("the twin", "the service of the other cluster"),
    ("told", "reported, or name the content"),
    ("what it is to", "name the desired state"),
    ("whoever", "name the program or client"),
];

/// Names that say nothing of what they hold: neither a type, a function, a field nor a variable has one of them alone.
const VAGUE: [&str; 10] = ["told", "held", "kept", "stood", "seen", "spoken", "known", "led", "asked", "left"];

/// Type names that stand for one idea in each place by convention.
const CONVENTIONAL: [&str; 8] = ["Error", "Inputs", "Kind", "Limits", "Metrics", "Settings", "Snapshot", "State"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of src outside of tests.
fn sources() -> Vec<(String, Source)> {
    let source = |(name, text): (String, String)| (name.clone(), Source::new(&name, &text));
    tree().into_iter().map(source).filter(|(_, source)| !source.is_test).collect()
}

/// The banned words of a text, each with what to write.
fn banned(text: &str) -> Vec<String> {
    let words: Vec<String> = text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).map(str::to_lowercase).collect();
    let text = format!(" {} ", words.join(" "));
    let found = BANNED.iter().filter(|(word, _)| text.contains(&format!(" {word} ")));
    found.map(|(word, instead)| format!("{word:?}, write: {instead}")).collect()
}

/// The prose of a document: what is neither code nor a quotation of the program.
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

#[test]
fn documents_use_the_fields_terms() {
    let mut documents = files(&root().join("docs"), "md");
    documents
        .extend(["README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "charts/tailyard/README.md"].map(|name| root().join(name)));
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
fn no_name_is_vague() {
    let mut faults = Vec::new();
    for (name, source) in sources() {
        faults.extend(source.identifiers.iter().filter(|word| VAGUE.contains(&word.as_str())).map(|word| format!("{name}: {word}")));
    }
    assert!(faults.is_empty(), "name the content:\n{}", faults.join("\n"));
}

#[test]
fn type_names_stand_for_one_idea() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (name, source) in sources() {
        for defined in source.types {
            places.entry(defined).or_default().push(name.clone());
        }
    }
    places.retain(|name, places| places.len() > 1 && !CONVENTIONAL.contains(&name.as_str()));
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
    let source = Source::new(
        "a.rs",
        "struct A;\nfn f() { let told = \"nobody speaks\"; } // told\n#[cfg(test)]\nmod tests {\n    fn held() {}\n}\n",
    );
    assert_eq!((source.texts, source.types), (vec!["\"nobody speaks\"".to_owned()], vec!["A".to_owned()]));
    assert_eq!(source.identifiers.iter().filter(|word| VAGUE.contains(&word.as_str())).count(), 1);
}

//! config/crd equals the output of `tailyard crd`, and docs/compatibility.md lists all differences from the Tailscale operator's
//! definitions.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Map, Value, json};

use kit::definitions::{KINDS, directory, file, ours, theirs};
use kit::golden::{assert_golden, assert_part};

const BEGIN: &str = "<!-- differences: made by tests/package/crd.rs -->\n";
const END: &str = "<!-- end of differences -->";

/// Output of the program, document by document.
fn printed() -> Vec<String> {
    let output = Command::new(kit::tailyard()).arg("crd").output().expect("the compiled binary");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.split("---\n").skip(1).map(|document| format!("---\n{document}")).collect()
}

#[test]
fn crd_files_equal_printed_definitions() {
    let printed = printed();
    assert_eq!(printed.len(), KINDS.len());
    for (kind, document) in KINDS.into_iter().zip(printed) {
        assert_golden(&format!("config/crd/{}", file(kind)), &document);
    }
    let there = fs::read_dir(directory()).expect("config/crd").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(there.collect::<BTreeSet<_>>(), KINDS.map(|kind| file(kind).into()).into(), "one file for each kind");
}

/// Place in a definition, with the value on either side.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    place: String,
    ours: bool,
    theirs: bool,
}

/// All differences except texts. The order of required fields is ignored, and 0.0 equals 0.
fn differences(place: &str, ours: &Value, theirs: &Value) -> Vec<Difference> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => in_objects(place, ours, theirs),
        (Value::Array(ours), Value::Array(theirs)) if place.ends_with(".required") => {
            let set = |values: &[Value]| values.iter().map(Value::to_string).collect::<BTreeSet<_>>();
            if set(ours) == set(theirs) { vec![] } else { vec![other(place)] }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let pairs = ours.iter().zip(theirs).enumerate();
            pairs.flat_map(|(index, (ours, theirs))| differences(&format!("{place}[{index}]"), ours, theirs)).collect()
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => vec![],
        _ if ours == theirs => vec![],
        _ => vec![other(place)],
    }
}

fn in_objects(place: &str, ours: &Map<String, Value>, theirs: &Map<String, Value>) -> Vec<Difference> {
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    // A description is a text, unless it is the name of a field.
    let names = names.into_iter().filter(|name| place.ends_with(".properties") || *name != "description");
    let of_one = |name: &String| match (ours.get(name), theirs.get(name)) {
        (Some(ours), Some(theirs)) => differences(&format!("{place}.{name}"), ours, theirs),
        (ours, theirs) => vec![Difference { place: format!("{place}.{name}"), ours: ours.is_some(), theirs: theirs.is_some() }],
    };
    names.flat_map(of_one).collect()
}

fn other(place: &str) -> Difference {
    Difference { place: place.to_owned(), ours: true, theirs: true }
}

/// Differences as the document lists them.
fn table(differences: &[Difference]) -> String {
    let row = |Difference { place, ours, theirs }: &Difference| {
        let what = match (ours, theirs) {
            (true, false) => "ours only",
            (false, true) => "theirs only",
            _ => "differs",
        };
        let place = place.replace(".spec.versions[0].schema.openAPIV3Schema", "").replace(".properties.", ".");
        format!("| `{place}` | {what} |\n")
    };
    format!("| where | what |\n|---|---|\n{}", differences.iter().map(row).collect::<String>())
}

#[test]
fn all_crd_differences_are_documented() {
    let pairs = KINDS.into_iter().zip(ours().into_iter().zip(theirs()));
    let found: Vec<_> = pairs.flat_map(|(kind, (ours, theirs))| differences(kind, &ours, &theirs)).collect();
    assert_part("docs/compatibility.md", BEGIN, END, &table(&found));
}

#[test]
fn crd_differences_are_found_in_every_field() {
    let [_, _, _, _, group, _] = ours();
    assert_eq!(differences("a", &group, &group), []);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let cases = [
        (format!("{schema}/type/enum/0"), json!("egres")),
        (format!("{schema}/tags/items/pattern"), json!("^tag:")),
        (format!("{schema}/replicas/minimum"), json!(1)),
        (format!("{schema}/type/x-kubernetes-validations/0/message"), json!("no")),
        (format!("{schema}/kubeAPIServer/properties"), json!({})),
        ("/spec/names/shortNames".to_owned(), json!([])),
        ("/spec/versions/0/additionalPrinterColumns/0/jsonPath".to_owned(), json!(".status")),
    ];
    for (pointer, value) in cases {
        let mut changed = group.clone();
        *changed.pointer_mut(&pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        assert_ne!(differences("a", &group, &changed), [], "{pointer}");
    }
    let texts = |text: &str| json!({"properties": {"a": {"description": text}}});
    assert_eq!(differences("a", &texts("b"), &texts("c")), [], "texts are our own");
    let fields = |name: &str| json!({"properties": {name: {"type": "string"}}});
    assert_eq!(differences("a", &fields("a"), &fields("description")).len(), 2, "a field of that name is no text");
}

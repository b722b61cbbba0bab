#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(rules: Value) -> Result<Grants, GrantsError> {
    Grants::read(&BTreeMap::from([(CAPABILITY.to_owned(), serde_json::from_value(rules).expect("a list"))]))
}

fn names(groups: &[&str]) -> Vec<SubjectName> {
    groups.iter().map(|group| SubjectName::read(group).expect("a name")).collect()
}

fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

#[test]
fn groups_of_all_rules_are_joined_in_order_without_duplicates() {
    let rules = json!([
        {"impersonate": {"groups": ["g1", "g2"]}},
        {"impersonate": {"groups": ["g1", "g3"]}},
        {"impersonate": {"groups": ["g4"]}},
        {"impersonate": {"groups": ["g2"]}},
        {},
        {"impersonate": {}},
        {"impersonate": {"groups": []}},
        {"impersonate": null},
        {"impersonate": {"groups": null}},
        null,
    ]);
    assert_eq!(read(rules), Ok(Grants { groups: names(&["g1", "g2", "g3", "g4"]), ..Grants::default() }));
    assert_eq!(read(json!([])), Ok(Grants::default()));
    assert_eq!(Grants::read(&BTreeMap::new()), Ok(Grants::default()));
}

#[test]
fn recorder_fields_of_all_rules_are_merged() {
    let (first, second) = ("100.64.0.9:80", "[fd7a:115c:a1e0::9]:80");
    let cases = [
        (json!([{"recorder": ["tag:rec"], "recorderAddrs": [first, second], "enforceRecorder": true}]), vec![first, second], true),
        (json!([{"recorderAddrs": [first, second]}]), vec![first, second], false),
        (json!([{"recorderAddrs": [second]}, {"recorderAddrs": [first]}, {"enforceRecorder": true}]), vec![second, first], true),
        (json!([{"recorderAddrs": [first]}, {"recorderAddrs": [first], "enforceRecorder": false}]), vec![first, first], false),
        (json!([{"impersonate": {"groups": []}}]), vec![], false),
        (json!([{"enforceRecorder": true}, {"enforceRecorder": null}]), vec![], true),
    ];
    for (rules, recorders, enforces) in cases {
        let grants = read(rules.clone()).expect("grants");
        assert_eq!((grants.recorders, grants.enforces_recorder), (addresses(&recorders), enforces), "{rules}");
    }
    assert!(read(json!([{"enableEvents": true}, {}])).expect("grants").reports_requests);
    let foreign = BTreeMap::from([("example.com/cap".to_owned(), vec![json!(5)])]);
    assert_eq!(Grants::read(&foreign), Ok(Grants::default()));
}

#[test]
fn field_names_match_in_any_case_and_two_spellings_are_malformed() {
    let rules = json!([{"Impersonate": {"GROUPS": ["g"]}, "EnforceRecorder": true, "enableevents": true, "other": 5}]);
    let grants = Grants { groups: names(&["g"]), enforces_recorder: true, reports_requests: true, ..Grants::default() };
    assert_eq!(read(rules), Ok(grants));
    let error = read(json!([{}, {"enforceRecorder": true, "EnforceRecorder": false}])).expect_err("void");
    assert!(error.to_string().contains("rule 2") && error.to_string().contains("enforceRecorder"), "{error}");
}

#[test]
fn one_malformed_rule_voids_all_and_the_message_names_the_field() {
    let cases = [
        (json!([]), "the rule must be an object"),
        (json!(5), "the rule must be an object"),
        (json!("g"), "the rule must be an object"),
        (json!({"impersonate": ["g"]}), "impersonate must be an object"),
        (json!({"impersonate": {"groups": "g"}}), "impersonate.groups must be a list"),
        (json!({"impersonate": {"groups": ["g", 5]}}), "impersonate.groups[1] must be a string"),
        (json!({"impersonate": {"groups": ["g", null]}}), "impersonate.groups[1] must be a string"),
        (json!({"impersonate": {"groups": [""]}}), "impersonate.groups[0]: \"\" is no name"),
        (json!({"impersonate": {"groups": ["a\nb"]}}), "impersonate.groups[0]: \"a\\nb\" is no name"),
        (json!({"recorder": "tag:rec"}), "recorder must be a list"),
        (json!({"recorder": [1]}), "recorder[0] must be a string"),
        (json!({"recorderAddrs": ["100.64.0.9"]}), "recorderAddrs[0] must be an IP address and a port"),
        (json!({"recorderAddrs": ["100.64.0.9:80", ""]}), "recorderAddrs[1] must be an IP address and a port"),
        (json!({"enforceRecorder": "true"}), "enforceRecorder must be true or false"),
        (json!({"enableEvents": 1}), "enableEvents must be true or false"),
    ];
    for (rule, expected) in cases {
        let message = read(json!([{"impersonate": {"groups": ["g1"]}}, rule])).expect_err("void").to_string();
        assert!(message.starts_with("rule 2 of tailscale.com/cap/kubernetes: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn former_capability_grants_groups_only_and_only_without_the_current_one() {
    let rule = json!({"impersonate": {"groups": ["old"]}, "enforceRecorder": true, "recorderAddrs": ["100.64.0.9:80"]});
    let mut caps = BTreeMap::from([(FORMER_CAPABILITY.to_owned(), vec![rule]), (CAPABILITY.to_owned(), Vec::new())]);
    assert_eq!(Grants::read(&caps), Ok(Grants { groups: names(&["old"]), ..Grants::default() }));
    caps.insert(CAPABILITY.to_owned(), vec![json!({})]);
    assert_eq!(Grants::read(&caps), Ok(Grants::default()));
    caps.remove(CAPABILITY);
    caps.insert(FORMER_CAPABILITY.to_owned(), vec![json!([])]);
    assert!(Grants::read(&caps).expect_err("void").to_string().contains(FORMER_CAPABILITY));
}

#[test]
fn number_of_rules_groups_and_recorders_is_bounded() {
    let groups: Vec<_> = (0..=MAX_GROUPS).map(|number| format!("g{number}")).collect();
    let cases = [
        (vec![json!({}); MAX_RULES], vec![json!({}); MAX_RULES + 1]),
        (vec![json!({"impersonate": {"groups": groups[1..]}})], vec![json!({"impersonate": {"groups": groups}})]),
        (vec![json!({"impersonate": {"groups": vec!["g"; 10]}}); 100], vec![json!({"impersonate": {"groups": vec!["g"; 11]}}); 100]),
        (
            vec![json!({"recorderAddrs": ["100.64.0.9:80"]}); MAX_RECORDERS],
            vec![json!({"recorderAddrs": vec!["100.64.0.9:80"; 1_000_000]})],
        ),
    ];
    for (most, over) in cases {
        assert!(read(most.into()).is_ok());
        assert_eq!(read(over.into()), Err(GrantsError::TooMany { capability: CAPABILITY }));
    }
}

/// Small JSON values with the names of fields.
fn json_values() -> impl Strategy<Value = Value> {
    const NAMES: &[&str] = &["impersonate", "groups", "recorder", "recorderAddrs", "enforceRecorder", "enableEvents", "Groups"];
    let leaves = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        Just(json!(1)),
        "(g[0-3]|system:masters| g|100\\.64\\.0\\.9:80)".prop_map(Value::from),
    ];
    leaves.prop_recursive(4, 24, 4, |inner| {
        let fields = proptest::collection::btree_map(proptest::sample::select(NAMES), inner.clone(), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Fields>().into()),
        ]
    })
}

proptest! {
    /// No rule can be added that takes groups away, or that makes a malformed one disappear.
    #[test]
    fn added_rule_never_hides_a_malformed_one(rules in proptest::collection::vec(json_values(), 0..4), added in json_values()) {
        let longer = [rules.clone(), vec![added]].concat();
        match (read(rules.into()), read(longer.into())) {
            (Err(_), longer) => prop_assert!(longer.is_err()),
            (Ok(grants), Ok(longer)) => {
                prop_assert!(longer.groups.starts_with(&grants.groups) && longer.recorders.starts_with(&grants.recorders));
                prop_assert!(longer.enforces_recorder >= grants.enforces_recorder);
                prop_assert!(longer.reports_requests >= grants.reports_requests);
            }
            (Ok(_), Err(error)) => prop_assert!(error.to_string().contains(CAPABILITY)),
        }
    }
}

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Members {
    Members::default().next(&Bytes::copy_from_slice(text.as_bytes())).expect("an object").0
}

/// Names that changed between two texts; removed ones with a minus.
fn changes(before: &str, after: &str) -> Vec<String> {
    let changes = read(before).next(&Bytes::copy_from_slice(after.as_bytes())).expect("an object").1;
    changes.iter().map(|(name, place)| if place.is_some() { name.to_string() } else { format!("-{name}") }).collect()
}

/// Whether the next text is spliced rather than parsed whole.
fn is_spliced(before: &str, after: &str) -> bool {
    let (before, after) = (read(before), Bytes::copy_from_slice(after.as_bytes()));
    before.ends(&after).and_then(|common| before.splice(&after, common)).is_some()
}

const FOUR: &str = r#"{"a":{"x":1},"b":2,"c":[3],"d":"4"}"#;

#[test]
fn only_changed_members_are_reported() {
    for (after, expected) in [
        (r#"{"a":{"x":1},"b":22,"c":[3],"d":"4"}"#, vec!["b"]),
        (r#"{"a":{"x":1},"b":2 , "c":[3],"d":"4"}"#, vec![]),
        (r#"{"a":{"x":1},"c":[3],"d":"4"}"#, vec!["-b"]),
        (r#"{"a":{"x":1},"b":2,"bb":{},"c":[3],"d":"4"}"#, vec!["bb"]),
        (r#"{"a":{"x":1},"b":2,"c":[3]}"#, vec!["-d"]),
        (r#"{"a":{"x":1},"b":2,"c":[3],"d":"4","e":5}"#, vec!["e"]),
        (r#"{"a":{"x":1},"c":2,"b":[3],"d":"4"}"#, vec!["b", "c"]),
    ] {
        assert_eq!(changes(FOUR, after), expected, "{after}");
        assert!(is_spliced(FOUR, after), "{after}");
    }
}

#[test]
fn ambiguous_change_is_parsed_as_a_whole() {
    for (after, expected) in [
        (r#"{"a":{"x":1},"a":2,"c":[3],"d":"4"}"#, vec!["a", "-b"]),
        (r#"{"a":{"x":1},"d":2,"c":[3],"d":"4"}"#, vec!["-b"]),
        (r#"{"a":{"x":2},"b":2,"c":[3],"d":"4"}"#, vec!["a"]),
        ("null", vec!["-a", "-b", "-c", "-d"]),
        (" \n", vec!["-a", "-b", "-c", "-d"]),
    ] {
        assert_eq!(changes(FOUR, after), expected, "{after}");
        assert!(!is_spliced(FOUR, after), "{after}");
    }
    assert_eq!(changes(r#"{"a":1,"b":2,"a":3}"#, r#"{"a":1,"b":2}"#), ["a"], "the first of two counts when the last has gone");
}

#[test]
fn invalid_text_is_rejected_after_any_other() {
    for broken in [
        r#"{"a":{"x":1},"b":2,,"c":[3],"d":"4"}"#,
        r#"{"a":{"x":1},"c":[3],,"d":"4"}"#,
        r#"{"a":{"x":1},"b":2},{"c":[3],"d":"4"}"#,
        r#"{"a":{"x":1},"b":2,"c":[3],}"#,
        "{\"a\":{\"x\":1},\"b\":2\u{c},\"c\":[3],\"d\":\"4\"}",
        r#"{"a":{"x":1},"b":2"c":[3],"d":"4"}"#,
        r#"{"a":{"x":1},"b":"2,"c":[3],"d":"4"}"#,
        r#"{"a":{"x":1},"b":2,"c":[3],"d":"4""#,
    ] {
        let text = Bytes::copy_from_slice(broken.as_bytes());
        let (after, fresh) = (read(FOUR).next(&text), Members::default().next(&text));
        assert_eq!(after.map_err(|fault| fault.to_string()), Err(fresh.expect_err(broken).to_string()));
    }
}

fn object() -> impl Strategy<Value = String> {
    let value =
        prop_oneof![Just("1"), Just("12"), Just(r#""\"},""#), Just("{}"), Just(r#"{"p":[1,{"q":2}]}"#), Just(" [ ] "), Just("null")];
    let members = proptest::collection::vec(("[a-f]", value), 0..7);
    members.prop_map(|members| {
        let members: Vec<_> = members.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

/// Consecutive texts: different objects, and the same text with some bytes replaced.
fn texts() -> impl Strategy<Value = Vec<String>> {
    let exchange = (any::<prop::sample::Index>(), 0_usize..6, "[,:{}\\[\\]\"a-f 12\\\\]{0,6}");
    let step = prop_oneof![object().prop_map(Ok), exchange.prop_map(Err)];
    (object(), proptest::collection::vec(step, 1..6)).prop_map(|(first, steps)| {
        let mut texts = vec![first];
        for step in steps {
            let last = texts.last().expect("one").clone();
            texts.push(step.unwrap_or_else(|(at, length, put)| {
                let at = at.index(last.len() + 1);
                format!("{}{put}{}", &last[..at], &last[(at + length).min(last.len())..])
            }));
        }
        texts
    })
}

proptest! {
    #[test]
    fn parsed_members_do_not_depend_on_the_previous_text(texts in texts()) {
        let mut before = Members::default();
        for text in texts {
            let text = Bytes::from(text.into_bytes());
            match (before.next(&text), Members::default().next(&text)) {
                (Ok((next, changes)), Ok((fresh, _))) => {
                    prop_assert_eq!(&next, &fresh);
                    let value = |members: &Members, name: &Arc<str>| {
                        let member = members.list.iter().find(|member| member.name == *name);
                        member.map(|member| members.text(member.value.clone()).to_vec())
                    };
                    for name in before.list.iter().chain(&next.list).map(|member| &member.name) {
                        let differs = value(&before, name) != value(&next, name);
                        prop_assert_eq!(changes.contains_key(name), differs, "{}", name);
                    }
                    before = next;
                }
                (Err(after), Err(fresh)) => prop_assert_eq!(after.to_string(), fresh.to_string()),
                (after, fresh) => prop_assert!(false, "after another: {:?}, alone: {:?}", after, fresh),
            }
        }
    }
}

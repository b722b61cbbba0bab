//! Conversion of values.

use super::super::values::{ConvertedValues, MAX_BYTES, ValuesFault, convert, of_environment, parse};
use super::*;

fn converted(theirs: &Value) -> ConvertedValues {
    convert(theirs.as_object().expect("a mapping"), "tailscale-operator")
}

/// A value under a path.
fn nested(key: &str, value: Value) -> Value {
    key.rsplit('.').fold(value, |value, name| json!({name: value}))
}

#[test]
fn every_value_of_the_operator_is_answered() {
    for upstream in VALUES {
        let samples = [json!("a"), json!(true), json!(["a"]), json!({"a": "b"}), json!([{"name": "A", "value": "b"}])];
        let answers = samples.map(|sample| converted(&nested(upstream.key, sample)));
        let has = |answered: fn(&ConvertedValues) -> bool| answers.iter().any(answered);
        match upstream.answer {
            Replacement::Key(ours, _) => {
                let is_set = |converted: &ConvertedValues| {
                    let path = format!("/{}", ours.replace('.', "/"));
                    Value::from(converted.values.clone()).pointer(&path).is_some()
                };
                assert!(answers.iter().any(|answer| is_set(answer) && answer.refused.is_empty()), "{}", upstream.key);
                assert!(answers.iter().any(|answer| answer.refused.len() == 1), "{}: a wrong type is refused", upstream.key);
            }
            Replacement::Part(_) => {
                assert!(has(|converted| !converted.values.is_empty() || !converted.refused.is_empty()), "{}", upstream.key);
            }
            Replacement::Dropped(_) => assert!(answers.iter().all(|converted| converted.dropped.len() == 1), "{}", upstream.key),
            Replacement::Refused(_) => assert!(answers.iter().all(|converted| converted.refused.len() == 1), "{}", upstream.key),
        }
        assert_eq!(converted(&nested(upstream.key, json!(null))), converted(&json!({})), "{} without value", upstream.key);
    }
}

#[test]
fn every_variable_of_the_operator_is_answered() {
    for variable in VARIABLES {
        let environment = of_environment([(variable.name, Some("true"))]);
        let extra = converted(&json!({"operatorConfig": {"extraEnv": [{"name": variable.name, "value": "true"}]}}));
        match variable.answer {
            Replacement::Key(..) => assert!(environment.refused.is_empty() && !environment.values.is_empty(), "{}", variable.name),
            Replacement::Dropped(_) => assert_eq!(environment.dropped.len(), 1, "{}", variable.name),
            Replacement::Refused(_) => assert_eq!((environment.refused.len(), extra.refused.len()), (1, 1), "{}", variable.name),
            Replacement::Part(_) => panic!("{}: a variable is one value", variable.name),
        }
        assert_eq!(of_environment([(variable.name, Some(variable.default))]), ConvertedValues::default(), "{}", variable.name);
        let of_secret = json!({"name": variable.name, "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}});
        let of_secret = converted(&json!({"operatorConfig": {"extraEnv": [of_secret]}}));
        assert_eq!(of_secret.refused.len() + of_secret.dropped.len(), 1, "{}: it has no value here", variable.name);
    }
}

#[test]
fn names_of_the_operators_objects_follow_its_chart() {
    let of = |theirs: Value| {
        let values = Value::from(convert(theirs.as_object().expect("a mapping"), "my-ts").values);
        let text = |pointer: &str| values.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text("/operatorConfig/secret"), text("/controlPlane/credentials/oauth/existingSecret"))
    };
    let names = |secret: &str, oauth: &str| (secret.to_owned(), oauth.to_owned());
    assert_eq!(of(json!({})), names("", "operator-oauth"));
    assert_eq!(of(json!({"fullnameOverride": "acme", "nameOverride": "x"})), names("acme", "acme-oauth"));
    assert_eq!(of(json!({"nameOverride": "op"})), names("my-ts-op", "my-ts-op-oauth"));
    assert_eq!(of(json!({"nameOverride": "ts"})), names("my-ts", "my-ts-oauth"), "the release's name has it");
    let long = format!("{}-{}", "a".repeat(62), "b".repeat(9));
    assert_eq!(of(json!({"fullnameOverride": long})).0, "a".repeat(62));
}

#[test]
fn secrets_and_lines_of_a_file_are_not_in_its_comments() {
    let text = converted(&json!({"oauth": {"clientId": "k1", "clientSecret": "tskey-secret"}, "a\nimage: x": 1})).text().expect("YAML");
    assert!(!text.contains("tskey-secret") && text.contains("#   a image: x: the Tailscale operator's chart has no such value"), "{text}");
    let values = parse(&text).expect("YAML");
    assert_eq!(Value::from(values), json!({"controlPlane": {"credentials": {"oauth": {"existingSecret": "operator-oauth"}}}}));
}

#[test]
fn files_that_are_no_values_are_refused() {
    assert_eq!(parse("# nothing\n"), Ok(Map::new()));
    assert_eq!(parse("- a\n"), Err(ValuesFault::NoMapping));
    assert_eq!(parse(&" ".repeat(MAX_BYTES + 1)), Err(ValuesFault::TooLarge(MAX_BYTES + 1)));
    for bad in ["a: [", "a: 1\na: 2\n", "a: *b\n"] {
        assert!(matches!(parse(bad), Err(ValuesFault::Syntax(_))), "{bad}");
    }
    let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| format!("{text}a{n}: &a{n} [*a{m}, *a{m}]\n", m = n - 1));
    assert!(matches!(parse(&bomb), Err(ValuesFault::Syntax(_))), "aliases are bounded");
}

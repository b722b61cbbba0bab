//! tailscaled's config file for a one-step login: selection and validation.
//!
//! Less strict than the daemon: unknown fields are accepted.

use std::collections::BTreeSet;

use super::settings::Secret;
use crate::model::base::hujson::{self, Object, ObjectProp, Ranged, Value};
use crate::model::tailnet::advertise::Advertised;

/// Capability version if the daemon does not report its own: the one that the operator writes for every daemon.
pub const OLDEST_CAPVER: u32 = 106;

/// Relevant content of a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfFile {
    /// Auth key (`AuthKey`).
    pub auth_key: Option<Secret>,
    /// Whether preferences are locked (`Locked`, default true).
    pub locked: bool,
    /// Tailscale Services to advertise (`AdvertiseServices`).
    pub services: BTreeSet<String>,
    /// Whether all connections are blocked (`ShieldsUp`).
    pub shields_up: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfFault {
    #[error("no cap-N.hujson in the config directory with N up to {capver}, the capability version of tailscaled")]
    None { capver: u32 },
    #[error("the config file is not UTF-8 text")]
    Text,
    #[error("the config file is not HuJSON: {0}")]
    Syntax(String),
    #[error("the config file holds no JSON object")]
    Shape,
    #[error("the config file's Version is {0:?}; tailscaled reads \"alpha0\"")]
    Version(String),
    #[error("the config file's {field} must be {wanted}")]
    Type { field: &'static str, wanted: &'static str },
}

impl ConfFault {
    /// Label value of metrics; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::None { .. } => "NoConfig",
            Self::Text | Self::Syntax(_) => "Syntax",
            Self::Shape | Self::Type { .. } => "Shape",
            Self::Version(_) => "Version",
        }
    }
}

/// Capability version in a config file's name (`cap-N.hujson`), if it is one.
fn version(name: &str) -> Option<u32> {
    name.strip_prefix("cap-")?.strip_suffix(".hujson")?.parse().ok()
}

pub fn is_config(name: &str) -> bool {
    version(name).is_some()
}

/// Name of the newest file in the directory that a daemon of this capability version can read.
pub fn choose<'a>(names: impl IntoIterator<Item = &'a str>, capver: u32) -> Result<&'a str, ConfFault> {
    let usable =
        names.into_iter().filter_map(|name| version(name).map(|version| (version, name))).filter(|(version, _)| *version <= capver);
    usable.max().map(|(_, name)| name).ok_or(ConfFault::None { capver })
}

pub fn check(bytes: &[u8]) -> Result<ConfFile, ConfFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| ConfFault::Text)?;
    let object = object(text)?;
    let field = |name: &'static str| fields(&object, name).next_back().map(|field| &field.value);
    match field("Version") {
        Some(Value::StringLit(version)) if version.value == "alpha0" => {}
        Some(Value::StringLit(version)) => return Err(ConfFault::Version(version.value.to_string())),
        _ => return Err(ConfFault::Type { field: "Version", wanted: "\"alpha0\"" }),
    }
    let auth_key = match field("AuthKey") {
        Some(Value::StringLit(key)) if !key.value.is_empty() => Some(Secret::new(key.value.as_ref())),
        None | Some(Value::NullKeyword(_) | Value::StringLit(_)) => None,
        Some(_) => return Err(ConfFault::Type { field: "AuthKey", wanted: "a string" }),
    };
    let locked = match field("Locked") {
        Some(Value::BooleanLit(locked)) => locked.value,
        None | Some(Value::NullKeyword(_)) => true,
        Some(_) => return Err(ConfFault::Type { field: "Locked", wanted: "true or false" }),
    };
    let services = match field(SERVICES) {
        Some(list @ Value::Array(_)) => texts(list).map(str::to_owned).collect(),
        None | Some(Value::NullKeyword(_)) => BTreeSet::new(),
        Some(_) => return Err(ConfFault::Type { field: SERVICES, wanted: "a list" }),
    };
    Ok(ConfFile { auth_key, locked, services, shields_up: shields_up(&object) })
}

const SERVICES: &str = "AdvertiseServices";
const ROUTES: &str = "AdvertiseRoutes";
const SHIELDS: &str = "ShieldsUp";

/// Copy of a file with reduced advertised services and shields-up as requested; otherwise equal. A text that is no config stays unchanged.
///
/// Shields-up is always written: tailscaled keeps the last value, even that of a predecessor that was killed before it could revert it.
pub fn advertising(bytes: &[u8], advertised: &Advertised) -> Vec<u8> {
    let Some((text, object)) = std::str::from_utf8(bytes).ok().and_then(|text| Some((text, object(text).ok()?))) else {
        return bytes.to_vec();
    };
    let list = |items: &[&str]| serde_json::to_string(items).unwrap_or_else(|_| "[]".to_owned());
    let services: Vec<&str> = advertised.services.iter().map(String::as_str).collect();
    let mut changes: Vec<(usize, usize, String)> =
        fields(&object, SERVICES).map(|field| (field.value.range().start, field.value.range().end, list(&services))).collect();
    if changes.is_empty() && !services.is_empty() {
        let inside = object.range().start + 1;
        changes.push((inside, inside, format!("\"{SERVICES}\":{},", list(&services))));
    }
    let shields_up = (advertised.shields_up || shields_up(&object)).to_string();
    changes.extend(fields(&object, SHIELDS).map(|field| (field.value.range().start, field.value.range().end, shields_up.clone())));
    if fields(&object, SHIELDS).next().is_none() {
        let inside = object.range().start + 1;
        changes.push((inside, inside, format!("\"{SHIELDS}\":{shields_up},")));
    }
    changes.extend(fields(&object, ROUTES).map(|field| {
        let retained: Vec<&str> = texts(&field.value).filter(|text| !advertised.withholds(text)).collect();
        (field.value.range().start, field.value.range().end, list(&retained))
    }));
    changes.sort_unstable();
    let mut text = text.to_owned();
    for (start, end, new) in changes.into_iter().rev() {
        text.replace_range(start..end, &new);
    }
    text.into_bytes()
}

fn object(text: &str) -> Result<Object<'_>, ConfFault> {
    match hujson::parse(text).map_err(ConfFault::Syntax)? {
        Some(Value::Object(object)) => Ok(object),
        _ => Err(ConfFault::Shape),
    }
}

/// Whether the file itself sets shields-up.
fn shields_up(object: &Object<'_>) -> bool {
    fields(object, SHIELDS).next_back().is_some_and(|field| matches!(&field.value, Value::BooleanLit(up) if up.value))
}

/// Fields of this name: the daemon ignores case, and the last of several wins.
fn fields<'a, 'b>(object: &'b Object<'a>, name: &'static str) -> impl DoubleEndedIterator<Item = &'b ObjectProp<'a>> {
    object.properties.iter().filter(move |field| field.name.as_str().eq_ignore_ascii_case(name))
}

/// Strings of a list.
fn texts<'b>(value: &'b Value<'_>) -> impl Iterator<Item = &'b str> {
    let list = value.as_array().map(|list| list.elements.iter()).into_iter().flatten();
    list.filter_map(|item| item.as_string_lit().map(|text| text.value.as_ref()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn newest_config_within_the_capability_version_is_chosen() {
        let names = ["cap-95.hujson", "cap-106.hujson", "cap-200.hujson", "..data", "cap-x.hujson", "cap-107.json"];
        assert_eq!(choose(names, 142), Ok("cap-106.hujson"));
        assert_eq!(choose(names, 100), Ok("cap-95.hujson"));
        assert_eq!(choose(names, 94), Err(ConfFault::None { capver: 94 }));
        assert_eq!(choose(["cap-99.hujson", "cap-100.hujson"], 142), Ok("cap-100.hujson"), "as numbers, not as text");
    }

    #[test]
    fn config_of_the_operator_is_parsed() {
        let text = br#"{"Version":"alpha0","AcceptDNS":false,"Locked":false,"Hostname":"eg-0","AuthKey":"tskey-1","NewField":[1]}"#;
        let file = |auth_key, locked| ConfFile { auth_key, locked, services: BTreeSet::new(), shields_up: false };
        assert_eq!(check(text), Ok(file(Some(Secret::new("tskey-1")), false)));
        let human = b"// by hand\n{\n  \"version\": \"alpha0\", /* no key */\n  \"authKey\": null,\n}\n// the end\n";
        assert_eq!(check(human), Ok(file(None, true)));
    }

    #[test]
    fn config_that_tailscaled_would_refuse_is_rejected() {
        let kinds = |text: &str| check(text.as_bytes()).map_err(|fault| fault.reason());
        assert_eq!(kinds(""), Err("Shape"));
        assert_eq!(kinds("{\"Version\":\"alpha0\""), Err("Syntax"));
        assert_eq!(kinds("{\"Version\":\"alpha0\"} {}"), Err("Syntax"));
        assert_eq!(kinds("{Version:'alpha0'}"), Err("Syntax"));
        assert_eq!(kinds("[]"), Err("Shape"));
        assert_eq!(kinds("{\"Version\":\"beta1\"}"), Err("Version"));
        assert_eq!(kinds("{}"), Err("Shape"));
        assert_eq!(kinds("{\"Version\":\"alpha0\",\"AuthKey\":7}"), Err("Shape"));
        assert_eq!(check(b"\xff"), Err(ConfFault::Text));
    }

    #[test]
    fn written_config_differs_only_in_advertised_services_and_routes() {
        let advertised = |services: &[&str], withheld: &[&str]| Advertised {
            services: services.iter().map(|name| (*name).to_owned()).collect(),
            withheld: withheld.iter().map(|route| route.parse().expect("a prefix")).collect(),
            shields_up: false,
        };
        let text = r#"{"Version":"alpha0", /* two */ "advertiseServices":["svc:a","svc:b"],"AdvertiseRoutes":["10.9.0.1/32","10.9.0.2/32"],"X":1}"#;
        let written = |advertised: &Advertised| String::from_utf8(advertising(text.as_bytes(), advertised)).expect("text");
        assert_eq!(check(text.as_bytes()).expect("good").services, ["svc:a".to_owned(), "svc:b".to_owned()].into());
        assert_eq!(
            written(&advertised(&["svc:b"], &["10.9.0.1/32"])),
            r#"{"ShieldsUp":false,"Version":"alpha0", /* two */ "advertiseServices":["svc:b"],"AdvertiseRoutes":["10.9.0.2/32"],"X":1}"#
        );
        let none = written(&advertised(&[], &[]));
        assert_eq!(check(none.as_bytes()).expect("good").services, BTreeSet::new());
        let added = advertising(b"{\"Version\":\"alpha0\"}", &advertised(&["svc:c"], &[]));
        assert_eq!(check(&added).expect("good").services, ["svc:c".to_owned()].into());
        assert_eq!(advertising(b"{", &advertised(&["svc:c"], &[])), b"{");
    }

    #[test]
    fn shields_up_is_always_explicit() {
        let shields_up = |text: &str, shields_up| {
            check(&advertising(text.as_bytes(), &Advertised { shields_up, ..Advertised::default() })).map(|file| file.shields_up)
        };
        for text in [r#"{"Version":"alpha0"}"#, r#"{"Version":"alpha0","shieldsUp":null,"ShieldsUp":false}"#] {
            assert_eq!((shields_up(text, true), shields_up(text, false)), (Ok(true), Ok(false)), "{text}");
            let written = advertising(text.as_bytes(), &Advertised::default());
            assert!(String::from_utf8_lossy(&written).contains(r#""ShieldsUp":false"#), "what is not said stays as a predecessor left it");
        }
        assert_eq!(shields_up(r#"{"Version":"alpha0","ShieldsUp":true}"#, false), Ok(true), "who wants it always has it");
    }

    /// Configs of any fields in any order, with comments, wrong types and duplicates.
    fn texts() -> impl Strategy<Value = String> {
        let field = prop::sample::select(vec![
            r#""AuthKey":"tskey-1""#,
            r#""authKey":null"#,
            r#""Locked":false"#,
            r#""Locked":7"#,
            r#""AdvertiseServices":["svc:old"]"#,
            r#""advertiseservices":[]"#,
            r#""AdvertiseServices":null"#,
            r#""AdvertiseServices":7"#,
            r#""AdvertiseRoutes":["10.9.0.1/32","10.9.0.2/32"]"#,
            r#""AdvertiseRoutes":null"#,
            r#""ShieldsUp":true"#,
            r#""shieldsUp":false"#,
            r#""ShieldsUp":null"#,
            r#""Hostname":"é\"}""#,
            r#""X":{"ShieldsUp":[1]} /* } */"#,
        ]);
        let version = prop::sample::select(vec![r#""Version":"alpha0""#, r#""Version":"alpha0""#, r#""version":"beta1""#]);
        (prop::collection::vec(field, 0..6), version, any::<bool>()).prop_map(|(fields, version, comma)| {
            format!("{{ // by hand\n{version},{}{}}}", fields.join(","), if comma && !fields.is_empty() { "," } else { "" })
        })
    }

    proptest! {
        #[test]
        fn advertising_changes_only_services_routes_and_shields(text in texts(), services in prop::collection::btree_set("svc:[a-c]", 0..3), shields_up: bool, withhold: bool) {
            let withheld = if withhold { ["10.9.0.1/32".parse().expect("a prefix")].into() } else { BTreeSet::new() };
            let advertised = Advertised { services: services.clone(), withheld, shields_up };
            let written = advertising(text.as_bytes(), &advertised);
            let (before, after) = (check(text.as_bytes()), check(&written));
            match (before, after) {
                (Ok(before), Ok(after)) => prop_assert_eq!(after, ConfFile { services, shields_up: shields_up || before.shields_up, ..before }),
                // This field is always rewritten.
                (Err(ConfFault::Type { field: SERVICES, .. }), after) => prop_assert_eq!(after.map(|file| file.services), Ok(services)),
                (before, after) => prop_assert_eq!(after, before),
            }
            let written = String::from_utf8(written).expect("text");
            prop_assert_eq!(String::from_utf8(advertising(written.as_bytes(), &advertised)).expect("text"), written.clone(), "a second time changes nothing");
            prop_assert_eq!(written.contains("10.9.0.1/32"), text.contains("10.9.0.1/32") && !withhold);
        }

        #[test]
        fn invalid_config_is_rejected_and_not_modified(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(check(&bytes).is_err());
            prop_assert_eq!(advertising(&bytes, &Advertised::default()), bytes);
        }
    }
}

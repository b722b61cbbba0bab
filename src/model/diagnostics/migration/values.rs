//! Conversion of a values file of the Tailscale operator's chart to one of ours, by [`super::table`]. Its credentials are not copied; variables of
//! `extraEnv` that are no settings are, with their values.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::table::{Replacement, UpstreamVariable, VALUES, VARIABLES, ValueShape};

/// Maximum bytes of a values file.
pub const MAX_BYTES: usize = 1 << 20;
/// Secret and Deployment of the Tailscale operator unless its chart gets another name.
const OPERATOR: &str = "operator";
/// Proxy image of the Tailscale operator's chart.
const PROXY_IMAGE: &str = "tailscale/tailscale";
/// Values of our chart that have parts.
const CREDENTIALS: &str = "controlPlane.credentials";
const OAUTH_SECRET: &str = "controlPlane.credentials.oauth.existingSecret";
const OPERATOR_SECRET: &str = "operatorConfig.secret";
const OWN_PROXY_IMAGE: &str = "proxyImage";

/// A values file that cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValuesFault {
    #[error("{0} bytes are more than the {MAX_BYTES} of a values file")]
    TooLarge(usize),
    #[error("not valid YAML: {0}")]
    Syntax(String),
    #[error("not a values file: it is no mapping")]
    NoMapping,
}

/// Values of our chart, and what a user must know about the others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConvertedValues {
    pub values: Map<String, Value>,
    /// Values without effect: key and reason.
    pub dropped: Vec<(String, String)>,
    /// What a user checks, by key.
    pub notes: Vec<(String, String)>,
    /// Unknown keys, and values without a counterpart.
    pub refused: Vec<(String, String)>,
}

/// Values of a YAML text; an empty one has none.
pub fn parse(text: &str) -> Result<Map<String, Value>, ValuesFault> {
    if text.len() > MAX_BYTES {
        return Err(ValuesFault::TooLarge(text.len()));
    }
    // The first line is enough: the others quote the text, which may have credentials.
    let first = |error: serde_saphyr::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    match serde_saphyr::from_str(text).map_err(|error| ValuesFault::Syntax(first(error)))? {
        Value::Object(values) => Ok(values),
        Value::Null => Ok(Map::new()),
        _ => Err(ValuesFault::NoMapping),
    }
}

/// Converts values of the Tailscale operator's chart; `release` is the name of its release.
pub fn convert(theirs: &Map<String, Value>, release: &str) -> ConvertedValues {
    let mut converted = ConvertedValues::default();
    for upstream in VALUES {
        let Some(value) = get(theirs, upstream.key) else { continue };
        converted.answer(upstream.key, upstream.answer, value);
        if !upstream.note.is_empty() && value != &Value::Bool(false) && value != "false" {
            converted.notes.push((upstream.key.to_owned(), upstream.note.to_owned()));
        }
    }
    converted.credentials(theirs, &full_name(theirs, release));
    converted.proxy_image(theirs);
    converted.environment(get(theirs, "operatorConfig.extraEnv"));
    let unknown = unknown_keys("", theirs).into_iter().map(|(key, why)| (key, why.to_owned()));
    converted.refused.extend(unknown);
    converted
}

/// Values for an environment of the Tailscale operator, each a name and its text, if it has one. Defaults are omitted.
pub fn of_environment<'a>(variables: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> ConvertedValues {
    let mut converted = ConvertedValues::default();
    for (name, text) in variables {
        let Some(upstream) = known_variable(name) else { continue };
        if let Some(text) = text.filter(|text| !text.is_empty() && *text != upstream.default) {
            converted.variable(upstream, text);
        }
    }
    converted
}

fn known_variable(name: &str) -> Option<&'static UpstreamVariable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}

/// A value that is set to something.
pub(super) fn get<'a>(values: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = values.get(first)?;
    match rest {
        Some(rest) => get(value.as_object()?, rest),
        None => Some(value).filter(|value| !is_empty(value)),
    }
}

fn get_text(values: &Map<String, Value>, key: &str) -> Option<String> {
    get(values, key).and_then(plain_text)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn plain_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Name of the operator's objects, as its chart computes it.
fn full_name(theirs: &Map<String, Value>, release: &str) -> String {
    let (full, name) = (get_text(theirs, "fullnameOverride"), get_text(theirs, "nameOverride"));
    let name = match (full, name) {
        (Some(full), _) => full,
        (None, Some(name)) if release.contains(&name) => release.to_owned(),
        (None, Some(name)) => format!("{release}-{name}"),
        (None, None) => OPERATOR.to_owned(),
    };
    let cut: String = name.chars().take(63).collect();
    cut.strip_suffix('-').unwrap_or(&cut).to_owned()
}

/// Keys that the table does not have, each with a reason.
fn unknown_keys(prefix: &str, values: &Map<String, Value>) -> Vec<(String, &'static str)> {
    let mut unknown = Vec::new();
    for (name, value) in values.iter().filter(|(_, value)| !is_empty(value)) {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let is_parent = VALUES.iter().any(|upstream| upstream.key.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.')));
        match value {
            _ if VALUES.iter().any(|upstream| upstream.key == key) => {}
            Value::Object(fields) if is_parent => unknown.extend(unknown_keys(&key, fields)),
            _ if is_parent => unknown.push((key, "it must be a mapping")),
            _ => unknown.push((key, "the Tailscale operator's chart has no such value")),
        }
    }
    unknown
}

/// The value in our notation. The error says what it must be.
fn reshaped(value: &Value, shape: ValueShape) -> Result<Value, &'static str> {
    let text = || plain_text(value).ok_or("it must be a text");
    match shape {
        ValueShape::Text => text().map(Value::from),
        ValueShape::Url => text().map(|url| url.trim_end_matches('/').into()),
        ValueShape::LogLevel => text().map(|level| if level == "info" { "info" } else { "debug" }.into()),
        ValueShape::Flag => match value {
            Value::Bool(_) => Ok(value.clone()),
            _ if value == "true" || value == "false" => Ok((value == "true").into()),
            _ => Err("it must be true or false"),
        },
        ValueShape::Names => match value {
            Value::Array(items) if items.iter().all(Value::is_string) => Ok(value.clone()),
            Value::String(text) => Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()),
            _ => Err("it must be a list of texts"),
        },
        ValueShape::Mapping => value.is_object().then(|| value.clone()).ok_or("it must be a mapping"),
        ValueShape::List => value.is_array().then(|| value.clone()).ok_or("it must be a list"),
    }
}

/// Sets a value by its path.
fn insert(values: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            values.insert(key.to_owned(), value);
        }
        Some((first, rest)) => {
            let parent = values.entry(first).or_insert_with(|| Map::new().into());
            if !parent.is_object() {
                *parent = Map::new().into();
            }
            if let Value::Object(parent) = parent {
                insert(parent, rest, value);
            }
        }
    }
}

impl ConvertedValues {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        insert(&mut self.values, key, value.into());
    }

    fn answer(&mut self, key: &str, answer: Replacement, value: &Value) {
        match answer {
            Replacement::Key(ours, shape) => match reshaped(value, shape) {
                Ok(value) => self.set(ours, value),
                Err(why) => self.refused.push((key.to_owned(), why.to_owned())),
            },
            Replacement::Part(_) => {}
            Replacement::Dropped(why) => self.dropped.push((key.to_owned(), why.to_owned())),
            Replacement::Refused(why) => self.refused.push((key.to_owned(), why.to_owned())),
        }
    }

    fn variable(&mut self, variable: &UpstreamVariable, text: &str) {
        self.answer(variable.name, variable.answer, &text.into());
    }

    /// Credentials in the order of the Tailscale operator's chart: volume, federated identity, Secret.
    fn credentials(&mut self, theirs: &Map<String, Value>, name: &str) {
        if name != OPERATOR {
            self.set(OPERATOR_SECRET, name);
        }
        let text = |key: &str| get_text(theirs, key);
        let mut note = |key: &str, text: String| self.notes.push((key.to_owned(), text));
        match (get(theirs, "oauthSecretVolume"), text("oauth.audience"), text("oauth.clientId")) {
            (Some(_), ..) => {}
            (None, Some(audience), Some(id)) => {
                let subject = "system:serviceaccount:NAMESPACE:tailyard-reconciler, with the release's namespace";
                note("oauth.audience", format!("add a federated identity with the subject {subject}, to the client {id}"));
                self.set(&format!("{CREDENTIALS}.workloadIdentity.clientId"), id);
                self.set(&format!("{CREDENTIALS}.workloadIdentity.audience"), audience);
            }
            (None, Some(_), None) => self.refused.push(("oauth.audience".to_owned(), "oauth.clientId must be set, too".to_owned())),
            (None, None, id) => {
                let secret = format!("{name}-oauth");
                let source = match id {
                    Some(_) => "the Tailscale operator's release wrote it from oauth.clientId and oauth.clientSecret; without that release",
                    None => "if it does not exist",
                };
                let create =
                    format!("kubectl create secret generic {secret} --from-literal=client_id=ID --from-literal=client_secret=SECRET");
                note(OAUTH_SECRET, format!("Secret {secret} has client_id and client_secret; {source}, create it: {create}"));
                self.set(OAUTH_SECRET, secret);
            }
        }
    }

    /// The proxy image with its tag or digest. Without either it depends on the version of the operator.
    fn proxy_image(&mut self, theirs: &Map<String, Value>) {
        let part = |name: &str| get_text(theirs, &format!("proxyConfig.image.{name}"));
        let (repository, tag, digest) = (part("repo").or(part("repository")), part("tag"), part("digest"));
        let repository_or_default = repository.as_deref().unwrap_or(PROXY_IMAGE);
        let image =
            digest.map(|digest| format!("{repository_or_default}@{digest}")).or(tag.map(|tag| format!("{repository_or_default}:{tag}")));
        let mut note = |text: String| self.notes.push(("proxyConfig.image".to_owned(), text));
        if !repository_or_default.ends_with("/tailscale") && repository_or_default != "tailscale" {
            note(format!("{repository_or_default} does not end in /tailscale: its Pods are taken for Tailyard's; copy it to such a name"));
        }
        match image {
            Some(image) => {
                note("remove proxyImage for Tailyard's proxies, the last step of docs/migrate.md".to_owned());
                self.set(OWN_PROXY_IMAGE, image);
            }
            None if repository.is_some() => {
                note(format!(
                    "to take over before the proxies change, set proxyImage to {repository_or_default}:v and the operator's version"
                ));
            }
            None => {}
        }
    }

    /// Additional variables of the operator: those that it reads are values, the others stay.
    fn environment(&mut self, variables: Option<&Value>) {
        const KEY: &str = "operatorConfig.extraEnv";
        let Some(variables) = variables else { return };
        let Some(variables) = variables.as_array() else {
            self.refused.push((KEY.to_owned(), "it must be a list".to_owned()));
            return;
        };
        let mut others = Vec::new();
        for variable in variables {
            let Some(name) = variable["name"].as_str().filter(|name| !name.is_empty()) else {
                self.refused.push((KEY.to_owned(), "an entry has no name".to_owned()));
                continue;
            };
            match (known_variable(name), plain_text(&variable["value"])) {
                (None, _) => others.push(variable.clone()),
                (Some(upstream), Some(text)) if text != upstream.default => self.variable(upstream, &text),
                (Some(_), Some(_)) => {}
                (Some(upstream), None) => match upstream.answer {
                    Replacement::Key(ours, _) => self.refused.push((name.to_owned(), format!("it has no value in the file: set {ours}"))),
                    answer => self.answer(name, answer, &Value::Null),
                },
            }
        }
        if !others.is_empty() {
            self.set("extraEnv", others);
        }
    }

    /// The values as a file, with comments on those that are not in it. Fails if they cannot be written as YAML, a bug.
    pub fn text(&self) -> Result<String, serde_saphyr::ser::Error> {
        let mut text = "# Values of Tailyard's chart, converted from those of the Tailscale operator's chart by tailyard migrate values.\n\
                        # Add image.repository: the registry with your image of Tailyard (docs/quickstart.md).\n"
            .to_owned();
        for (title, entries) in [("Without effect", &self.dropped), ("To check", &self.notes), ("Not converted", &self.refused)] {
            if !entries.is_empty() {
                let _ = writeln!(text, "#\n# {title}:");
            }
            for (key, why) in entries {
                // A key or value of the file may have any text, also line breaks of YAML alone.
                let breaks = |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
                let _ = writeln!(text, "#   {}", format!("{key}: {why}").replace(breaks, " "));
            }
        }
        if !self.values.is_empty() {
            text += "\n";
            text += &serde_saphyr::to_string(&self.values)?;
        }
        Ok(text)
    }
}

//! One kubeconfig: its text, and the value that the text has.

use serde_json::{Map, Value, json};

use super::edits::{self, EntryList, TextEdit};
use super::tree;

/// A kubeconfig without entries, keys sorted as kubectl writes them.
const EMPTY: &str = "apiVersion: v1\nclusters: []\ncontexts: []\ncurrent-context: \"\"\nkind: Config\nusers: []\n";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    #[error("not valid YAML: {0}")]
    Syntax(String),
    #[error("not a kubeconfig: it is no mapping with apiVersion v1 and kind Config")]
    Kind,
    #[error("not a kubeconfig: {0} is no list of entries with a name")]
    List(&'static str),
    #[error("its notation cannot be edited safely at {0:?}, such as an anchor or a block scalar; edit it by hand")]
    Notation(String),
}

#[derive(Debug)]
pub(super) struct YamlDocument {
    pub(super) text: String,
    value: Value,
}

impl YamlDocument {
    /// A text without content, such as an empty file, becomes a kubeconfig without entries.
    pub(super) fn parse(text: &str) -> Result<Self, EntryFault> {
        match value(text)? {
            Value::Null => {
                let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
                let text = format!("{text}{newline}{EMPTY}");
                let value = value(&text)?;
                validate(&value)?;
                Ok(Self { text, value })
            }
            value => {
                validate(&value)?;
                Ok(Self { text: text.to_owned(), value })
            }
        }
    }

    pub(super) fn entries(&self, section: EntryList) -> impl Iterator<Item = &Value> {
        self.value[section.list()].as_array().into_iter().flatten()
    }

    pub(super) fn current(&self) -> Option<&str> {
        self.value["current-context"].as_str().filter(|name| !name.is_empty())
    }

    /// Applies an edit to text and value, and fails if the two differ afterwards.
    pub(super) fn apply(self, edit: &TextEdit<'_>) -> Result<Self, EntryFault> {
        let notation = || {
            EntryFault::Notation(match edit {
                TextEdit::Add(section, ..) => section.list().to_owned(),
                TextEdit::Set(section, name, _) | TextEdit::Delete(section, name) => format!("{}: {name}", section.list()),
                TextEdit::Current(_) => "current-context".to_owned(),
            })
        };
        let root = tree::root(&self.text).map_err(|error| EntryFault::Syntax(error.to_string()))?;
        let text = root.and_then(|root| edits::apply(&self.text, &root, edit)).ok_or_else(notation)?;
        let expected = changed(self.value, edit).ok_or_else(notation)?;
        match value(&text) {
            Ok(value) if value == expected => Ok(Self { text, value }),
            _ => Err(notation()),
        }
    }
}

fn value(text: &str) -> Result<Value, EntryFault> {
    // The first line is enough: the others quote the text, which has credentials.
    let first = |error: serde_saphyr::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    serde_saphyr::from_str(text).map_err(|error| EntryFault::Syntax(first(error)))
}

/// What kubectl requires, so that a file of another kind is not changed.
fn validate(value: &Value) -> Result<(), EntryFault> {
    let has = |key: &str, expected: &str| value[key].is_null() || value[key] == expected;
    if !value.is_object() || !has("apiVersion", "v1") || !has("kind", "Config") {
        return Err(EntryFault::Kind);
    }
    let is_named = |entry: &Value| entry["name"].is_string();
    let is_list = |list: &Value| list.is_null() || list.as_array().is_some_and(|entries| entries.iter().all(is_named));
    match EntryList::ALL.into_iter().find(|section| !is_list(&value[section.list()])) {
        Some(section) => Err(EntryFault::List(section.list())),
        None => Ok(()),
    }
}

/// The expected value, computed without the text.
fn changed(mut value: Value, edit: &TextEdit<'_>) -> Option<Value> {
    let list = |value: &mut Value, section: EntryList| match value.as_object_mut()?.entry(section.list()).or_insert(Value::Null) {
        Value::Array(entries) => Some(std::mem::take(entries)),
        _ => Some(Vec::new()),
    };
    match edit {
        TextEdit::Add(section, name, fields) => {
            let mut entries = list(&mut value, *section)?;
            let body: Map<String, Value> = fields.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
            entries.push(json!({ "name": name, section.body(): body }));
            value[section.list()] = entries.into();
        }
        TextEdit::Set(section, name, (key, field)) => {
            let mut entries = list(&mut value, *section)?;
            let entry = entries.iter_mut().find(|entry| entry["name"] == *name)?;
            entry.get_mut(section.body())?.as_object_mut()?.insert((*key).to_owned(), Value::from(*field));
            value[section.list()] = entries.into();
        }
        TextEdit::Delete(section, name) => {
            let mut entries = list(&mut value, *section)?;
            let index = entries.iter().rposition(|entry| entry["name"] == *name)?;
            entries.remove(index);
            value[section.list()] = entries.into();
        }
        TextEdit::Current(name) => value["current-context"] = Value::from(*name),
    }
    Some(value)
}

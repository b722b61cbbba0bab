//! One change of a kubeconfig's entries, as splices of its text. Everything outside of them stays byte for byte.
//!
//! Block and flow (JSON) notation are edited, each in its own notation. The caller compares the result's value with the expected one, so
//! that an unusual notation is refused and never damaged.

use std::ops::Range;

use serde_json::{Value, json};

use super::tree::{Content, YamlNode};

/// Kind of a kubeconfig's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryList {
    Clusters,
    Contexts,
    Users,
}

impl EntryList {
    pub(super) const ALL: [Self; 3] = [Self::Clusters, Self::Contexts, Self::Users];

    /// Key of the list.
    pub(super) fn list(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Contexts => "contexts",
            Self::Users => "users",
        }
    }

    /// Key of an entry's content.
    pub(super) fn body(self) -> &'static str {
        match self {
            Self::Clusters => "cluster",
            Self::Contexts => "context",
            Self::Users => "user",
        }
    }
}

/// Fields of an entry, by key.
pub(super) type Fields<'a> = Vec<(&'static str, &'a str)>;

#[derive(Debug, Clone)]
pub(super) enum TextEdit<'a> {
    /// Adds the entry.
    Add(EntryList, &'a str, Fields<'a>),
    /// Sets a field of an existing entry.
    Set(EntryList, &'a str, (&'static str, &'a str)),
    /// Deletes the last entry of this name.
    Delete(EntryList, &'a str),
    /// Sets the current context.
    Current(&'a str),
}

/// A range of the text with its replacement.
type Splice = (Range<usize>, String);

/// The changed text; `None` if its notation is not supported.
pub(super) fn apply(text: &str, root: &YamlNode, edit: &TextEdit<'_>) -> Option<String> {
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let editor = Editor { text, root, newline };
    let mut splices = match edit {
        TextEdit::Add(section, name, fields) => editor.add(*section, name, fields)?,
        TextEdit::Set(section, name, (key, value)) => {
            let (_, list) = root.entry(section.list())?;
            let Content::List(items) = &list.content else { return None };
            let (_, body) = items.iter().find(|item| is_named(item, name))?.entry(section.body())?;
            vec![editor.set(body, key, value)?]
        }
        TextEdit::Delete(section, name) => editor.delete(*section, name)?,
        TextEdit::Current(name) => vec![editor.set(root, "current-context", name)?],
    };
    // Of two at one position, the insertion precedes the deletion.
    splices.sort_by_key(|(range, _)| (range.start, range.end));
    let mut changed = text.to_owned();
    for (range, replacement) in splices.into_iter().rev() {
        changed.get(range.clone())?;
        changed.replace_range(range, &replacement);
    }
    Some(changed)
}

fn is_named(item: &YamlNode, name: &str) -> bool {
    item.entry("name").is_some_and(|(_, value)| value.scalar() == Some(name))
}

/// A scalar that every YAML reader takes for this text.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._/@".contains(c))
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    let is_url = text.split_once("://").is_some_and(|(scheme, host)| {
        matches!(scheme, "http" | "https") && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c)) && !host.ends_with(':')
    });
    if is_word || is_url { text.to_owned() } else { Value::from(text).to_string() }
}

struct Editor<'a> {
    text: &'a str,
    root: &'a YamlNode,
    newline: &'static str,
}

impl Editor<'_> {
    /// Start of the line of a position.
    fn line(&self, position: usize) -> usize {
        self.text[..position].rfind('\n').map_or(0, |before| before + 1)
    }

    /// Start of the next line, or the end of the text.
    fn next_line(&self, position: usize) -> usize {
        self.text[position..].find('\n').map_or(self.text.len(), |end| position + end + 1)
    }

    /// Width of a line's indentation.
    fn indentation(&self, line: usize) -> usize {
        self.text[line..].len() - self.text[line..].trim_start_matches(' ').len()
    }

    /// End of a node's lines, with the comments below that are indented by more than this.
    fn lines_end(&self, node: &YamlNode, column: usize) -> usize {
        let mut end = self.next_line(node.end);
        while self.indentation(end) > column && self.text[end..].trim_start_matches(' ').starts_with('#') {
            end = self.next_line(end);
        }
        end
    }

    /// Start of the line with the dash of a block list's item.
    fn dash(&self, key: &YamlNode, item: &YamlNode) -> Option<usize> {
        let mut line = self.line(item.start);
        while line > key.end {
            if self.text[line..].trim_start_matches(' ').starts_with('-') {
                return Some(line);
            }
            line = self.line(line - 1);
        }
        None
    }

    /// Inserts lines, also after a last line without an end.
    fn lines(&self, at: usize, lines: &[String]) -> Splice {
        let lines = lines.join(self.newline);
        let open = at > 0 && !self.text[..at].ends_with('\n');
        (at..at, if open { format!("{}{lines}", self.newline) } else { format!("{lines}{}", self.newline) })
    }

    fn add(&self, section: EntryList, name: &str, fields: &Fields<'_>) -> Option<Vec<Splice>> {
        let body: Value = fields.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        let json = json!({ "name": name, section.body(): body }).to_string();
        let lines = |column: usize| item_lines(section, name, fields).into_iter().map(move |line| format!("{:column$}{line}", ""));
        let Some((key, list)) = self.root.entry(section.list()) else {
            if self.root.is_flow {
                return Some(vec![Self::first_entry(self.root, &format!("{}: [{json}]", Value::from(section.list())))]);
            }
            let column = self.root.start - self.line(self.root.start);
            let list = std::iter::once(format!("{:column$}{}:", "", section.list())).chain(lines(column)).collect::<Vec<_>>();
            return Some(vec![self.lines(self.lines_end(self.root, column), &list)]);
        };
        match &list.content {
            Content::List(items) if list.is_flow || self.root.is_flow => match items.last() {
                Some(item) => Some(vec![(item.end..item.end, format!(", {json}"))]),
                None if self.root.is_flow => Some(vec![(list.start..list.end, format!("[{json}]"))]),
                None => Some(self.begin_list(key, list, lines)),
            },
            Content::List(items) => {
                let (first, end) = (items.first()?, items.last()?);
                let column = self.indentation(self.dash(key, first)?);
                Some(vec![self.lines(self.lines_end(end, column), &lines(column).collect::<Vec<_>>())])
            }
            Content::Null if self.root.is_flow => Some(vec![(list.start..list.end, format!("[{json}]"))]),
            Content::Null => Some(self.begin_list(key, list, lines)),
            _ => None,
        }
    }

    /// Replaces an empty list of a block mapping by its first item.
    fn begin_list<L: Iterator<Item = String>>(&self, key: &YamlNode, empty: &YamlNode, lines: impl Fn(usize) -> L) -> Vec<Splice> {
        let start = self.text[..empty.start].trim_end_matches(' ').len();
        let column = key.start - self.line(key.start);
        vec![(start..empty.end, String::new()), self.lines(self.next_line(empty.end), &lines(column).collect::<Vec<_>>())]
    }

    /// Inserts an entry in front of those of a mapping in JSON's notation.
    fn first_entry(map: &YamlNode, entry: &str) -> Splice {
        let has_others = matches!(&map.content, Content::Map(entries) if !entries.is_empty());
        (map.start + 1..map.start + 1, if has_others { format!("{entry}, ") } else { entry.to_owned() })
    }

    fn set(&self, map: &YamlNode, key: &str, value: &str) -> Option<Splice> {
        let Content::Map(entries) = &map.content else { return None };
        let written = if map.is_flow { Value::from(value).to_string() } else { scalar(value) };
        match map.entry(key) {
            Some((_, old)) if matches!(old.content, Content::Null) && old.start == old.end => {
                Some((old.start..old.end, format!(" {written}")))
            }
            Some((_, old)) if matches!(old.content, Content::Null | Content::Scalar(_)) => Some((old.start..old.end, written)),
            Some(_) => None,
            None if map.is_flow => Some(Self::first_entry(map, &format!("{}: {written}", Value::from(key)))),
            None => {
                let (first, _) = entries.first()?;
                let column = self.text[self.line(first.start)..first.start].chars().count();
                Some((first.start..first.start, format!("{key}: {written}{}{:column$}", self.newline, "")))
            }
        }
    }

    fn delete(&self, section: EntryList, name: &str) -> Option<Vec<Splice>> {
        let (key, list) = self.root.entry(section.list())?;
        let Content::List(items) = &list.content else { return None };
        let index = items.iter().rposition(|item| is_named(item, name))?;
        let item = &items[index];
        if list.is_flow {
            let next = items.get(index + 1);
            return Some(vec![match (index.checked_sub(1), next) {
                (Some(before), _) => (items[before].end..item.end, String::new()),
                (None, Some(next)) => (item.start..next.start, String::new()),
                (None, None) => (item.start..item.end, String::new()),
            }]);
        }
        let mut start = self.dash(key, item)?;
        let end = self.lines_end(item, self.indentation(start));
        if end == self.text.len() && !self.text.ends_with('\n') {
            start = self.text[..start].strip_suffix('\n').map_or(start, |text| text.strip_suffix('\r').unwrap_or(text).len());
        }
        let mut splices = vec![(start..end, String::new())];
        if items.len() == 1 {
            let colon = key.end + self.text[key.end..].find(':')? + 1;
            splices.push((colon..colon, " []".to_owned()));
        }
        Some(splices)
    }
}

/// Lines of an item in block notation, keys sorted as kubectl writes them.
fn item_lines(section: EntryList, name: &str, fields: &Fields<'_>) -> Vec<String> {
    let mut body = vec![format!("{}:", section.body())];
    body.extend(fields.iter().map(|(key, value)| format!("  {key}: {}", scalar(value))));
    let name = vec![format!("name: {}", scalar(name))];
    let lines = if section.body() < "name" { [body, name] } else { [name, body] }.concat();
    lines.iter().enumerate().map(|(index, line)| format!("{}{line}", if index == 0 { "- " } else { "  " })).collect()
}

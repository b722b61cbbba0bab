//! YAML nodes with their byte ranges in the text, of one document.
//!
//! Aliases are not followed: a text that has one in the place of a relevant node is not edited.

use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StructureStyle, options};

#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) start: usize,
    /// End of the last scalar or flow collection in it, without trailing whitespace and comments.
    pub(super) end: usize,
    /// Whether it is a collection in JSON's notation.
    pub(super) is_flow: bool,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Null,
    Scalar(String),
    List(Vec<YamlNode>),
    Map(Vec<(YamlNode, YamlNode)>),
    Alias,
}

impl YamlNode {
    /// Key and value of a mapping.
    pub(super) fn entry(&self, key: &str) -> Option<(&YamlNode, &YamlNode)> {
        let Content::Map(entries) = &self.content else { return None };
        entries.iter().find(|(name, _)| name.scalar() == Some(key)).map(|(name, value)| (name, value))
    }

    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(text) => Some(text),
            _ => None,
        }
    }
}

/// Root node; `None` in a text without one.
pub(super) fn root(text: &str) -> Result<Option<YamlNode>, ScanError> {
    let options: Options = options! { emit_comments: false };
    let mut reader = YamlReader { text, events: Parser::new_from_str_with_options(text, options) };
    while let Some(next) = reader.events.next() {
        let (event, span) = next?;
        if event.is_node() {
            return reader.node(&event, span).map(Some);
        }
    }
    Ok(None)
}

struct YamlReader<'text> {
    text: &'text str,
    events: Parser<'text, serde_saphyr::granit_parser::StrInput<'text>>,
}

impl<'text> YamlReader<'text> {
    /// Node that begins with this event. The parser bounds the depth.
    fn node(&mut self, event: &Event<'text>, span: Span) -> Result<YamlNode, ScanError> {
        let range = span.byte_range().unwrap_or_default();
        let (content, style, end) = match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) if matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL") => {
                (Content::Null, StructureStyle::Block, range.end)
            }
            Event::Scalar(text, ..) => (Content::Scalar(text.clone().into_owned()), StructureStyle::Block, range.end),
            Event::SequenceStart(style, ..) => {
                let (items, end) = self.children()?;
                (Content::List(items), *style, end)
            }
            Event::MappingStart(style, ..) => {
                let (children, end) = self.children()?;
                (Content::Map(self.pairs(children)), *style, end)
            }
            _ => (Content::Alias, StructureStyle::Block, range.end),
        };
        let is_flow = style == StructureStyle::Flow;
        let last = match &content {
            Content::List(items) if !is_flow => items.last().map(|item| item.end),
            Content::Map(entries) if !is_flow => entries.last().map(|(_, value)| value.end),
            _ => None,
        };
        let end = last.unwrap_or(end).max(range.start);
        let trimmed = self.text.get(range.start..end).map_or(end, |text| range.start + text.trim_end().len());
        Ok(YamlNode { start: range.start, end: trimmed, is_flow, content })
    }

    /// Nodes up to the end of a collection, and that end.
    fn children(&mut self) -> Result<(Vec<YamlNode>, usize), ScanError> {
        let mut nodes = Vec::new();
        while let Some(next) = self.events.next() {
            let (event, span) = next?;
            if matches!(event, Event::SequenceEnd | Event::MappingEnd) {
                return Ok((nodes, span.byte_range().unwrap_or_default().end));
            }
            if event.is_node() {
                nodes.push(self.node(&event, span)?);
            }
        }
        Ok((nodes, self.text.len()))
    }

    /// Keys with values. The parser reports an omitted value at the next token; here it is beside the colon.
    fn pairs(&self, nodes: Vec<YamlNode>) -> Vec<(YamlNode, YamlNode)> {
        let mut pairs = Vec::new();
        let mut nodes = nodes.into_iter();
        while let (Some(key), Some(mut value)) = (nodes.next(), nodes.next()) {
            let colon = self.text.get(key.end..).and_then(|text| text.find(':'));
            if let (Content::Null, true, Some(colon)) = (&value.content, value.start == value.end, colon) {
                value.start = key.end + colon + 1;
                value.end = value.start;
            }
            pairs.push((key, value));
        }
        pairs
    }
}

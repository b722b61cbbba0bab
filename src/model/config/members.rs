//! The members of a JSON object and where they stand in its text, so that of the text that follows only what differs is read.
//!
//! What two texts have in common at their two ends is not parsed again; the members between are, as an object of their own.
//! Where that leaves a doubt (they are no object, a name would be there twice) the whole text is parsed instead, so that
//! what comes of a text never depends on the one before it.
//!
//! The simpler way, all members as raw values compared by name, takes 1.9 ms at best for 10,000 services (2.3 MB), before anything
//! is hashed or planned: more than the 2 ms that a whole change may take.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A text and its members, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Members {
    text: Bytes,
    list: Vec<Member>,
    /// Some name is there more than once, of which the last counts: such a text is not taken apart.
    doubled: bool,
}

/// A name and where its value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    name: Arc<str>,
    value: Range<usize>,
}

/// What of the members of one text is otherwise in the next, by name: where the value stands; nothing if the member is gone.
pub(super) type MemberChanges = BTreeMap<Arc<str>, Option<Range<usize>>>;

/// How many members of a text stand at either end of another one, letter for letter.
#[derive(Debug, Clone, Copy, Default)]
struct CommonEnds {
    front: usize,
    back: usize,
}

impl Members {
    /// A part of the text.
    pub(super) fn text(&self, place: Range<usize>) -> &[u8] {
        self.text.get(place).unwrap_or_default()
    }

    /// The members of the text that follows and what of them changed. Fails if it is no object; blank and `null` are an empty one.
    pub(super) fn next(&self, text: &Bytes) -> Result<(Self, MemberChanges), serde_json::Error> {
        match self.ends(text).and_then(|ends| self.splice(text, ends)) {
            Some(next) => Ok(next),
            None => self.read(text),
        }
    }

    /// Reads the whole text.
    fn read(&self, text: &Bytes) -> Result<(Self, MemberChanges), serde_json::Error> {
        let blank = text.iter().all(u8::is_ascii_whitespace);
        let found: Option<FoundMembers<'_>> = if blank { None } else { serde_json::from_slice(text)? };
        let mut list = found.unwrap_or_default().members(text);
        let all = list.len();
        let mut names = BTreeSet::new();
        list.reverse();
        list.retain(|member| names.insert(Arc::clone(&member.name)));
        list.reverse();
        let next = Self { text: text.clone(), doubled: list.len() < all, list };
        let changes = next.changes(self, CommonEnds::default());
        Ok((next, changes))
    }

    /// What a following text has in common with this one; nothing if that is of no use.
    ///
    /// A member at the front is kept if the byte after it is too: a number could go on. What is kept of the back begins at the end of a
    /// value, with the comma or the brace that ends whatever comes to stand before it.
    fn ends(&self, text: &[u8]) -> Option<CommonEnds> {
        let front = common_start(&self.text, text);
        let back = common_end(&self.text, text).min(text.len().min(self.text.len()) - front);
        let back_from = self.text.len() - back;
        let ends = CommonEnds {
            front: self.list.partition_point(|member| member.value.end < front),
            back: (self.list.len() - self.list.partition_point(|member| member.value.end < back_from)).checked_sub(1)?,
        };
        (ends.front > 0 && !self.doubled).then_some(ends)
    }

    /// The members of a text that has so many in common with this one; nothing if only the whole text can tell them.
    fn splice(&self, text: &Bytes, ends: CommonEnds) -> Option<(Self, MemberChanges)> {
        let (front, rest) = self.list.split_at_checked(ends.front)?;
        let (middle, back) = rest.split_at_checked(rest.len().checked_sub(ends.back)?)?;
        let begin = front.last()?.value.end;
        let end = (text.len() + middle.last()?.value.end).checked_sub(self.text.len())?;
        let between = trim_start(text.get(begin..end)?);
        let mut list = front.to_vec();
        if let Some((comma, members)) = between.split_first() {
            // A brace in the comma's place: the members are where they were, counted from there.
            let object = [b"{", members, b"}"].concat();
            let found: Option<FoundMembers<'_>> = if *comma == b',' { serde_json::from_slice(&object).ok() } else { None };
            let found = found?.members(&object);
            // A comma wants a member after it.
            (!found.is_empty() && unique(&found, middle, [front, back])).then_some(())?;
            list.extend(found.into_iter().map(|member| member.moved(0, end - between.len())));
        }
        list.extend(back.iter().map(|member| member.clone().moved(self.text.len(), text.len())));
        let next = Self { text: text.clone(), list, doubled: false };
        let changes = next.changes(self, ends);
        Some((next, changes))
    }

    /// What differs between the members that are not kept.
    fn changes(&self, before: &Self, ends: CommonEnds) -> MemberChanges {
        let between = |members: &Self| ends.front..members.list.len().saturating_sub(ends.back);
        let old = before.list.get(between(before)).unwrap_or_default();
        let new = self.list.get(between(self)).unwrap_or_default();
        let mut texts: BTreeMap<_, _> = old.iter().map(|member| (&member.name, before.text(member.value.clone()))).collect();
        let differs = |member: &&Member| texts.remove(&member.name).is_none_or(|text| *text != *self.text(member.value.clone()));
        let mut changes: MemberChanges =
            new.iter().filter(differs).map(|member| (Arc::clone(&member.name), Some(member.value.clone()))).collect();
        changes.extend(texts.into_keys().map(|gone| (Arc::clone(gone), None)));
        changes
    }
}

impl Member {
    /// The member as far from the place `to` as it is from `from`.
    fn moved(self, from: usize, to: usize) -> Self {
        let moved = |at: usize| (at + to).saturating_sub(from);
        Self { value: moved(self.value.start)..moved(self.value.end), ..self }
    }
}

/// Whether every name is there once when these members come in the place of others, which are unique, between those that are kept.
fn unique(new: &[Member], old: &[Member], ends: [&[Member]; 2]) -> bool {
    let mut names = BTreeSet::new();
    if !new.iter().all(|member| names.insert(&member.name)) {
        return false;
    }
    for member in old {
        names.remove(&member.name);
    }
    names.is_empty() || !ends.into_iter().flatten().any(|member| names.contains(&member.name))
}

/// An object's members as they are found.
#[derive(Default)]
struct FoundMembers<'a>(Vec<(String, &'a RawValue)>);

impl FoundMembers<'_> {
    /// Where they stand in the text that they were found in.
    fn members(self, text: &[u8]) -> Vec<Member> {
        let member = |(name, value): (String, &RawValue)| {
            let start = value.get().as_ptr().addr() - text.as_ptr().addr();
            Member { name: name.into(), value: start..start + value.get().len() }
        };
        self.0.into_iter().map(member).collect()
    }
}

impl<'de> Deserialize<'de> for FoundMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = FoundMembers<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = FoundMembers::default();
                while let Some(member) = map.next_entry()? {
                    found.0.push(member);
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Without JSON's white space, which is not all of ASCII's.
fn trim_start(text: &[u8]) -> &[u8] {
    let begin = text.iter().position(|byte| !b" \t\r\n".contains(byte)).unwrap_or(text.len());
    text.get(begin..).unwrap_or_default()
}

/// As much as is compared in one piece.
const PIECE: usize = 256;

/// How many bytes two texts begin with in common.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    let pieces = a.chunks_exact(PIECE).zip(b.chunks_exact(PIECE)).take_while(|(a, b)| a == b).count() * PIECE;
    let rest = a.iter().skip(pieces).zip(b.iter().skip(pieces));
    pieces + rest.take_while(|(a, b)| a == b).count()
}

/// How many bytes two texts end with in common.
fn common_end(a: &[u8], b: &[u8]) -> usize {
    let pieces = a.rchunks_exact(PIECE).zip(b.rchunks_exact(PIECE)).take_while(|(a, b)| a == b).count() * PIECE;
    let rest = a.iter().rev().skip(pieces).zip(b.iter().rev().skip(pieces));
    pieces + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;

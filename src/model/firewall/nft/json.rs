//! A change of elements in nft's JSON format (libnftables-json(5)), for `nft -j -f -` and `tailyard plan`.

use nftables::expr::{Expression, NamedExpression};
use nftables::schema::{Element as Command, NfCmd, NfListObject, NfObject, Nftables};
use nftables::types::NfFamily;

use super::TABLE;
use super::element::{Edits, Element, ElementKey, Set, Value, edits};
use crate::model::firewall::ruleset::{Delta, Ruleset};

/// The change as one transaction: deletions first, one command for each changed set.
///
/// Deletes only elements of `before` and adds only others, so it cannot fail with "not found" in a kernel that has `before`. A change of the
/// interface or of reserved ports is a [`Delta::rewrite`] instead.
pub fn delta(before: &Ruleset, delta: &Delta, after: &Ruleset) -> Nftables<'static> {
    let Edits { delete, add } = edits(before, delta, after);
    let deletions = commands(&delete, false).map(NfCmd::Delete);
    let additions = commands(&add, true).map(NfCmd::Add);
    Nftables { objects: deletions.chain(additions).map(NfObject::CmdObject).collect() }
}

fn commands(elements: &[Element], values: bool) -> impl Iterator<Item = NfListObject<'static>> {
    elements.chunk_by(|a, b| a.set == b.set).filter_map(move |chunk| {
        let set = chunk.first()?.set;
        let elem = chunk.iter().map(|element| expression(element, values)).collect();
        Some(NfListObject::Element(Command { family: NfFamily::INet, table: TABLE.into(), name: Set::name(set).into(), elem }))
    })
}

fn expression(element: &Element, values: bool) -> Expression<'static> {
    let concat = |parts: Vec<Expression<'static>>| Expression::Named(NamedExpression::Concat(parts));
    let text = |text: &dyn std::fmt::Display| Expression::String(text.to_string().into());
    let number = |number: u16| Expression::Number(number.into());
    let key = match &element.key {
        ElementKey::Interface(name) => text(name),
        ElementKey::Number(port) => number(port.get()),
        ElementKey::Port(key) => concat(vec![text(&key.proto), number(key.port.get())]),
        ElementKey::PortSlot(key, slot) => concat(vec![text(&key.proto), number(key.port.get()), Expression::Number(*slot)]),
        ElementKey::Socket(at) => concat(vec![text(&at.ip()), number(at.port())]),
        ElementKey::Host(ip) => text(ip),
        ElementKey::HostSlot(ip, slot) => concat(vec![text(ip), Expression::Number(*slot)]),
    };
    match element.value.filter(|_| values) {
        Some(Value::Address(ip)) => Expression::List(vec![key, text(&ip)]),
        Some(Value::Socket(to)) => Expression::List(vec![key, concat(vec![text(&to.ip()), number(to.port())])]),
        None => key,
    }
}

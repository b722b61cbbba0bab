//! Typed fields of a `HuJSON` object. As in Go, case is ignored, the last of several fields counts, and `null` is unset.

use super::fault::K8sProxyFault;
use crate::model::base::hujson::{Object, Value};

/// Fields of the document, or of a section.
pub(super) struct Fields<'a, 'b> {
    pub(super) object: &'b Object<'a>,
    /// Name of the section with a dot; empty for the document.
    pub(super) section: &'static str,
}

impl<'a, 'b> Fields<'a, 'b> {
    pub(super) fn text(&self, field: &'static str) -> Result<Option<&'b str>, K8sProxyFault> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::StringLit(text)) => Ok(Some(text.value.as_ref())),
            Some(_) => Err(self.fault(field, "a string")),
        }
    }

    /// A text in its form; an empty one is unset.
    pub(super) fn parsed<T>(
        &self,
        field: &'static str,
        wanted: &'static str,
        read: impl FnOnce(&'b str) -> Option<T>,
    ) -> Result<Option<T>, K8sProxyFault> {
        let Some(text) = self.text(field)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        read(text).map(Some).ok_or_else(|| self.fault(field, wanted))
    }

    pub(super) fn boolean(&self, field: &'static str) -> Result<Option<bool>, K8sProxyFault> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::BooleanLit(value)) => Ok(Some(value.value)),
            Some(_) => Err(self.fault(field, "true or false")),
        }
    }

    pub(super) fn port(&self, field: &'static str) -> Result<Option<u16>, K8sProxyFault> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::NumberLit(number)) => {
                let port = number.value.parse().ok().filter(|port| *port != 0);
                port.map(Some).ok_or_else(|| self.fault(field, "a port from 1 to 65535"))
            }
            Some(_) => Err(self.fault(field, "a port from 1 to 65535")),
        }
    }

    /// A list of texts, each in its form; empty if unset.
    pub(super) fn list<T>(
        &self,
        field: &'static str,
        (most, wanted): (usize, &'static str),
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, K8sProxyFault> {
        let list = match self.value(field) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) if list.elements.len() <= most => list,
            Some(_) => return Err(self.fault(field, wanted)),
        };
        let read = |item: &Value<'a>| item.as_string_lit().and_then(|text| read(text.value.as_ref()));
        list.elements.iter().map(|item| read(item).ok_or_else(|| self.fault(field, wanted))).collect()
    }

    pub(super) fn section(&self, field: &'static str, section: &'static str) -> Result<Option<Fields<'a, 'b>>, K8sProxyFault> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Fields { object, section })),
            Some(_) => Err(self.fault(field, "an object")),
        }
    }

    pub(super) fn fault(&self, field: &'static str, wanted: &'static str) -> K8sProxyFault {
        K8sProxyFault::Field { section: self.section, field, wanted }
    }

    fn value(&self, name: &str) -> Option<&'b Value<'a>> {
        let mut fields = self.object.properties.iter().rev();
        let value = fields.find(|field| field.name.as_str().eq_ignore_ascii_case(name)).map(|field| &field.value);
        value.filter(|value| !matches!(value, Value::NullKeyword(_)))
    }
}

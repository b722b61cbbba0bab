//! Grants of a client: its groups in Kubernetes, and recording of its sessions.
//!
//! Source of the format: capability `tailscale.com/cap/kubernetes`, a list of rules (`KubernetesCapRule` of tailscale 1.102). Unknown fields
//! are ignored, `null` and absent mean the same, and names of fields match in any case, as a Go program reads them. One malformed rule voids
//! all, as it may be the one that restricts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::subject::{SubjectError, SubjectName};

pub const CAPABILITY: &str = "tailscale.com/cap/kubernetes";
/// Former name, which grants groups only, and only without a rule of the other name.
pub const FORMER_CAPABILITY: &str = "https://tailscale.com/cap/kubernetes";

const MAX_RULES: usize = 512;
/// Maximum groups of a client, repeated ones included: the API server limits a request's head to 1 MiB.
pub(super) const MAX_GROUPS: usize = 1_000;
const MAX_RECORDERS: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Groups, without duplicates, in the order of the rules.
    pub groups: Vec<SubjectName>,
    /// Addresses of recorders, in the order of the rules.
    pub recorders: Vec<SocketAddr>,
    /// Whether sessions without recording are refused.
    pub enforces_recorder: bool,
    /// Whether each request is reported to a recorder.
    pub reports_requests: bool,
}

/// Why a client's capability is void.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantsError {
    #[error("rule {rule} of {capability}: {fault}; correct the grant in the tailnet policy")]
    Malformed { capability: &'static str, rule: usize, fault: GrantFault },
    #[error("{capability} has more than {MAX_RULES} rules, {MAX_GROUPS} groups or {MAX_RECORDERS} recorders; reduce the grants")]
    TooMany { capability: &'static str },
}

/// Fault of one rule, with the path of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantFault {
    #[error("the rule must be an object")]
    NoObject,
    #[error("{0} must be {1}")]
    Type(String, &'static str),
    #[error("{0} is there in two spellings")]
    Repeated(&'static str),
    #[error("{0}: {1}")]
    Subject(String, SubjectError),
}

type Fields = serde_json::Map<String, Value>;

impl Grants {
    /// Reads a client's grants from its capabilities.
    pub fn read(caps: &BTreeMap<String, Vec<Value>>) -> Result<Self, GrantsError> {
        let rules_of = |name: &str| caps.get(name).map(Vec::as_slice).unwrap_or_default();
        match rules_of(CAPABILITY) {
            [] => {
                let former = Self::of_rules(FORMER_CAPABILITY, rules_of(FORMER_CAPABILITY))?;
                Ok(Self { groups: former.groups, ..Self::default() })
            }
            rules => Self::of_rules(CAPABILITY, rules),
        }
    }

    fn of_rules(capability: &'static str, rules: &[Value]) -> Result<Self, GrantsError> {
        let mut grants = Self::default();
        let mut groups = 0;
        for (index, rule) in rules.iter().enumerate() {
            groups += grants.add(rule).map_err(|fault| GrantsError::Malformed { capability, rule: index + 1, fault })?;
            if index >= MAX_RULES || groups > MAX_GROUPS || grants.recorders.len() > MAX_RECORDERS {
                return Err(GrantsError::TooMany { capability });
            }
        }
        Ok(grants)
    }

    /// Adds a rule. Returns the number of its groups, of which no more than the maximum are read.
    fn add(&mut self, rule: &Value) -> Result<usize, GrantFault> {
        let rule = match rule {
            Value::Null => return Ok(0),
            Value::Object(rule) => rule,
            _ => return Err(GrantFault::NoObject),
        };
        let groups = match field(rule, "impersonate", "impersonate")? {
            None => Vec::new(),
            Some(Value::Object(impersonate)) => texts(impersonate, "groups", "impersonate.groups")?,
            Some(_) => return Err(GrantFault::Type("impersonate".to_owned(), "an object")),
        };
        for (index, group) in groups.iter().enumerate().take(MAX_GROUPS) {
            let subject = SubjectName::read(group).map_err(|error| GrantFault::Subject(format!("impersonate.groups[{index}]"), error))?;
            if !self.groups.contains(&subject) {
                self.groups.push(subject);
            }
        }
        // A tag, which the control plane resolves to addresses.
        texts(rule, "recorder", "recorder")?;
        for (index, address) in texts(rule, "recorderAddrs", "recorderAddrs")?.iter().enumerate().take(MAX_RECORDERS + 1) {
            let no_address = |_| GrantFault::Type(format!("recorderAddrs[{index}]"), "an IP address and a port");
            self.recorders.push(address.parse().map_err(no_address)?);
        }
        self.enforces_recorder |= flag(rule, "enforceRecorder")?;
        self.reports_requests |= flag(rule, "enableEvents")?;
        Ok(groups.len())
    }
}

/// Value of a field; `None` if it is absent or `null`.
fn field<'a>(fields: &'a Fields, name: &str, path: &'static str) -> Result<Option<&'a Value>, GrantFault> {
    let mut found = fields.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    match (found.next(), found.next()) {
        (_, Some(_)) => Err(GrantFault::Repeated(path)),
        (value, None) => Ok(value.filter(|value| !value.is_null())),
    }
}

fn flag(fields: &Fields, name: &'static str) -> Result<bool, GrantFault> {
    match field(fields, name, name)? {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(GrantFault::Type(name.to_owned(), "true or false")),
    }
}

fn texts<'a>(fields: &'a Fields, name: &str, path: &'static str) -> Result<Vec<&'a str>, GrantFault> {
    let list = match field(fields, name, path)? {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(GrantFault::Type(path.to_owned(), "a list")),
    };
    let text = |(index, value): (usize, &'a Value)| value.as_str().ok_or_else(|| GrantFault::Type(format!("{path}[{index}]"), "a string"));
    list.iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests;

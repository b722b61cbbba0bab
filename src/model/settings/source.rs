//! Setting lookup: flag first, then environment, then the default of the table. Collects all validation errors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Flags, SettingFault};
use crate::model::base::go_values;

/// Environment and flags, with the faults found so far.
pub(super) struct SettingSource<'a> {
    env: &'a BTreeMap<String, String>,
    flags: &'a Flags,
    /// Faults, in the order found.
    pub(super) faults: Vec<SettingFault>,
    /// Tolerated faults for the log.
    pub(super) notes: Vec<String>,
}

impl<'a> SettingSource<'a> {
    pub(super) fn new(env: &'a BTreeMap<String, String>, flags: &'a Flags) -> Self {
        Self { env, flags, faults: Vec::new(), notes: Vec::new() }
    }

    /// Name of a setting as given by the user: the flag if used, else the variable.
    pub(super) fn spelled(&self, variable: &str) -> String {
        self.flags.get(variable).map_or(variable, |(flag, _)| flag).to_owned()
    }

    /// Whether the setting was given by its flag.
    pub(super) fn by_flag(&self, variable: &str) -> bool {
        self.flags.get(variable).is_some()
    }

    /// Raw value, even if empty.
    pub(super) fn raw(&self, variable: &str) -> Option<&'a str> {
        self.flags.get(variable).map(|(_, value)| value).or_else(|| self.env.get(variable).map(String::as_str))
    }

    /// Value, or the default if it is empty or unset.
    pub(super) fn text(&self, variable: &str) -> Option<&'a str> {
        self.raw(variable).filter(|value| !value.is_empty()).or_else(|| self.flags.default(variable))
    }

    pub(super) fn owned(&self, variable: &str) -> Option<String> {
        self.text(variable).map(str::to_owned)
    }

    pub(super) fn path(&self, variable: &str) -> Option<PathBuf> {
        self.text(variable).map(PathBuf::from)
    }

    /// Values separated by blanks.
    pub(super) fn words(&self, variable: &str) -> Vec<String> {
        self.text(variable).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// A boolean; an invalid one counts as unset, as the authors of these variables expect, and is noted.
    pub(super) fn tristate(&mut self, variable: &str) -> Option<bool> {
        let text = self.text(variable)?;
        let read = go_values::boolean(text);
        if read.is_none() {
            let setting = self.spelled(variable);
            self.notes.push(format!("{setting}={text:?} is not a boolean (true or false) and counts as unset"));
        }
        read
    }

    pub(super) fn boolean(&mut self, variable: &str, default: bool) -> bool {
        self.tristate(variable).unwrap_or(default)
    }

    /// A duration above zero, if set.
    pub(super) fn optional_duration(&mut self, variable: &str) -> Option<Duration> {
        let read = |text: &str| go_values::duration(text).filter(|length| !length.is_zero());
        self.parsed(variable, "a length of time above zero such as 60s or 1m30s", read)
    }

    /// A duration above zero, of a variable with a default.
    pub(super) fn duration(&mut self, variable: &str) -> Duration {
        self.optional_duration(variable).unwrap_or_default()
    }

    /// An address and port; `pod` as in [`go_values::address_port`].
    pub(super) fn address_port(&mut self, variable: &str, pod: Option<&str>) -> Option<SocketAddr> {
        let read = |text: &str| go_values::address_port(text, pod);
        self.parsed(variable, "an address and port such as 127.0.0.1:9002 or [::]:9002", read)
    }

    /// A value of any form; an invalid one is a fault.
    pub(super) fn parsed<T>(&mut self, variable: &str, want: &'static str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(variable)?;
        let value = read(text);
        if value.is_none() {
            self.bad(variable, want);
        }
        value
    }

    /// A value of a closed set; another one is a fault.
    pub(super) fn one_of<T: Copy>(&mut self, variable: &str, want: &'static str, values: &[(&str, T)]) -> Option<T> {
        self.parsed(variable, want, |text| values.iter().find(|(name, _)| *name == text).map(|(_, value)| *value))
    }

    /// Values separated by commas; an invalid one is a fault.
    pub(super) fn list<T>(&mut self, variable: &str, want: &'static str, read: impl Fn(&str) -> Option<T>) -> Vec<T> {
        self.parsed(variable, want, |text| text.split(',').map(|item| read(item.trim())).collect()).unwrap_or_default()
    }

    /// Records an invalid value.
    pub(super) fn bad(&mut self, variable: &str, want: &'static str) {
        let value = self.raw(variable).unwrap_or_default().to_owned();
        self.faults.push(SettingFault::Value { setting: self.spelled(variable), value, want });
    }

    /// Records a fault if both settings are set.
    pub(super) fn exclusive(&mut self, first: &str, second: &str) {
        if self.text(first).is_some() && self.text(second).is_some() {
            self.faults.push(SettingFault::Exclusive { first: self.spelled(first), second: self.spelled(second) });
        }
    }

    /// Records a fault if the setting is set and its requirement is not met.
    pub(super) fn needs(&mut self, variable: &str, met: bool, needs: &'static str) {
        if self.text(variable).is_some() && !met {
            self.faults.push(SettingFault::Needs { setting: self.spelled(variable), needs });
        }
    }
}

//! Command-line flags, each of which corresponds to a variable.

use std::collections::BTreeMap;

use super::table::{self, Setting};

/// Settings of a command, and the flags given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// In the order of `--help`.
    settings: Vec<Setting>,
    /// By variable.
    given: BTreeMap<&'static str, String>,
}

impl Flags {
    /// Settings of `tailyard proxy`, without flags.
    pub fn proxy() -> Self {
        Self { settings: table::proxy().collect(), given: BTreeMap::new() }
    }

    /// Settings of `tailyard reconciler`, without flags.
    pub fn reconciler() -> Self {
        Self { settings: table::reconciler().collect(), given: BTreeMap::new() }
    }

    /// Settings of `tailyard nameserver`, without flags.
    pub fn nameserver() -> Self {
        Self { settings: table::nameserver().collect(), given: BTreeMap::new() }
    }

    /// Settings of the command, in the order of `--help`.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Adds a flag if it was given. Ignores flags that the command does not have.
    #[must_use]
    pub fn with(mut self, flag: &str, value: Option<String>) -> Self {
        let variable = self.settings.iter().find(|setting| setting.flag == flag).map(|setting| setting.variable);
        self.given.extend(variable.zip(value));
        self
    }

    /// Flag of a variable and its value, if given.
    pub(super) fn get(&self, variable: &str) -> Option<(&'static str, &str)> {
        Some((self.setting(variable)?.flag, self.given.get(variable)?))
    }

    pub(super) fn default(&self, variable: &str) -> Option<&'static str> {
        self.setting(variable).map(|setting| setting.default).filter(|default| !default.is_empty())
    }

    fn setting(&self, variable: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.variable == variable)
    }
}

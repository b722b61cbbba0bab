//! The flags of a command line, each of which stands for a variable.

use std::collections::BTreeMap;

use super::table::{self, Setting};

/// The settings of a command, and the flags that were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// In the order of `--help`.
    settings: Vec<Setting>,
    /// By their variables.
    given: BTreeMap<&'static str, String>,
}

impl Flags {
    /// No flags of `tailyard proxy`.
    pub fn proxy() -> Self {
        Self { settings: table::proxy().collect(), given: BTreeMap::new() }
    }

    /// No flags of `tailyard reconciler`.
    pub fn reconciler() -> Self {
        Self { settings: table::reconciler().collect(), given: BTreeMap::new() }
    }

    /// The settings of the command, in the order of `--help`.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Adds a flag if it was given. One that the command does not have changes nothing.
    #[must_use]
    pub fn with(mut self, flag: &str, value: Option<String>) -> Self {
        let variable = self.settings.iter().find(|setting| setting.flag == flag).map(|setting| setting.variable);
        self.given.extend(variable.zip(value));
        self
    }

    /// The flag that stands for a variable and its value, if it was given.
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

//! Faults of settings.

use std::fmt;

/// One fault. Never contains values of settings that hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingFault {
    /// The value of a variable or flag has an invalid form.
    #[error("{setting}={value:?} is not {want}")]
    Value { setting: String, value: String, want: &'static str },
    /// A part of a structured value is invalid.
    #[error("{setting} is invalid: {why}")]
    Content { setting: String, why: String },
    #[error("{first} and {second} exclude each other: unset one of them")]
    Exclusive { first: String, second: String },
    #[error("{setting} needs {needs}")]
    Needs { setting: String, needs: &'static str },
}

impl SettingFault {
    /// Reason; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Value { .. } | Self::Content { .. } => "InvalidValue",
            Self::Exclusive { .. } => "Exclusive",
            Self::Needs { .. } => "Needs",
        }
    }
}

/// All faults; never empty. Displayed with one line per fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<SettingFault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Faults {}

//! What can be wrong with settings.

use std::fmt;

/// One thing that is wrong. Values of settings that hold secrets are never in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingFault {
    /// A value is not of the expected form.
    #[error("{setting}={value:?} is not {want}")]
    Value {
        /// The variable or flag.
        setting: String,
        value: String,
        want: &'static str,
    },
    #[error("{first} and {second} exclude each other: unset one of them")]
    Exclusive { first: String, second: String },
    #[error("{setting} needs {needs}")]
    Needs { setting: String, needs: &'static str },
}

impl SettingFault {
    /// A closed set of words for this fault.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Value { .. } => "InvalidValue",
            Self::Exclusive { .. } => "Exclusive",
            Self::Needs { .. } => "Needs",
        }
    }
}

/// Everything that is wrong; never empty. Its text has one line for each fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<SettingFault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

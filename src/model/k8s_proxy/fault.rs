//! Faults of a config of the Tailscale operator's API server proxy. None contains a value of the document but its version: one is an auth key.

use super::values::MAX_BYTES;

/// Maximum characters of a version in a message.
const MAX_SHOWN: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum K8sProxyFault {
    #[error("it has {size} bytes: at most {MAX_BYTES} are read")]
    TooLarge { size: usize },
    #[error("it is not UTF-8 text")]
    Text,
    #[error("it is not HuJSON: {0}")]
    Syntax(String),
    #[error("it holds no JSON object")]
    Shape,
    #[error("Version is missing: it must be \"v1alpha1\"")]
    NoVersion,
    #[error("Version is {0:?}, without an object v1alpha1: use an image that knows the version")]
    Version(String),
    #[error("Version is \"v1alpha1\", and there is an object v1alpha1: only one of them may be")]
    TwoVersions,
    /// A field of the document, or of a section, whose name ends with a dot.
    #[error("{section}{field} must be {wanted}")]
    Field { section: &'static str, field: &'static str, wanted: &'static str },
}

impl K8sProxyFault {
    pub(super) fn version(text: &str) -> Self {
        Self::Version(text.chars().take(MAX_SHOWN).collect())
    }

    /// Label of logs; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "TooLarge",
            Self::Text | Self::Syntax(_) => "Syntax",
            Self::Shape | Self::Field { .. } => "Shape",
            Self::NoVersion | Self::Version(_) | Self::TwoVersions => "Version",
        }
    }
}

//! What is doubtful about a service that is served all the same.

use std::net::IpAddr;

use serde::Serialize;

/// A doubt. Its [`kind`](Note::kind) is what metrics and Events say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    /// The service leads to an address for which no peer answers.
    #[error(
        "no peer of this node's view of the tailnet has or routes {0}: connections to it will not be answered; check the address, the tailnet's access rules and its subnet routes"
    )]
    Unrouted(IpAddr),
}

impl Note {
    /// A closed set of words for metric labels and Event reasons.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unrouted(_) => "Unrouted",
        }
    }
}

impl Serialize for Note {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

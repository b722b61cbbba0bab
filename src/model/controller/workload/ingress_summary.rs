//! Numbers of a workload's advertised names and certificates by state, for metrics.

use std::collections::BTreeMap;

/// State of a requested name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublishState {
    /// Served by a replica that gets traffic.
    Whole,
    /// Served in part.
    Partly,
    /// Valid, not served yet.
    Waiting,
    /// Rejected.
    Refused,
}

/// State of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Certified {
    Issued,
    /// Order in progress or pending.
    Waiting,
    /// The latest order failed.
    Failing,
    /// User-provided, unusable.
    Lacking,
    /// User-provided, not valid now.
    Invalid,
    /// User-provided, expires soon.
    Ending,
}

/// Numbers by state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IngressSummary {
    pub published: BTreeMap<PublishState, usize>,
    pub certified: BTreeMap<Certified, usize>,
}

impl IngressSummary {
    /// Whether every name is served, at least in part, and no ordered certificate is awaited.
    pub fn is_complete(&self) -> bool {
        let waits = self.published.keys().any(|state| matches!(state, PublishState::Waiting | PublishState::Refused));
        !self.published.is_empty() && !waits && !self.certified.contains_key(&Certified::Waiting)
    }
}

impl PublishState {
    pub const ALL: [Self; 4] = [Self::Whole, Self::Partly, Self::Waiting, Self::Refused];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "advertised",
            Self::Partly => "partial",
            Self::Waiting => "pending",
            Self::Refused => "rejected",
        }
    }
}

impl Certified {
    pub const ALL: [Self; 6] = [Self::Issued, Self::Waiting, Self::Failing, Self::Lacking, Self::Invalid, Self::Ending];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Waiting => "pending",
            Self::Failing => "failing",
            Self::Lacking => "missing",
            Self::Invalid => "invalid",
            Self::Ending => "expiring",
        }
    }
}

//! Settings of a tailnet that its administrators change: how faults name them.

/// In the answer of a control plane that creates no key for a tag.
const DENIED_TAGS: &str = "requested tags";
/// Policy entry, in faults of replicas that the control plane has not approved.
pub const AUTO_APPROVERS: &str = "autoApprovers";
/// Reason of a certificate that the tailnet does not permit.
pub const HTTPS_DISABLED: &str = "HTTPSDisabled";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TailnetSetting {
    TagOwners,
    AutoApprovers,
    Https,
}

impl TailnetSetting {
    /// The setting that the message of a condition or Event concerns.
    pub fn of_fault(message: &str) -> Option<Self> {
        let texts = [(DENIED_TAGS, Self::TagOwners), (AUTO_APPROVERS, Self::AutoApprovers), (HTTPS_DISABLED, Self::Https)];
        texts.into_iter().find(|(text, _)| message.contains(text)).map(|(_, setting)| setting)
    }
}

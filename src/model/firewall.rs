//! Rulesets and their encodings for nftables and iptables; audit results and traffic counters.
//!
//! Values only; I/O is in [`crate::edge::nft`] and [`crate::edge::iptables`].

pub mod iptables;
pub mod netlink;
pub mod nft;
pub mod routing;
pub mod ruleset;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::base::net::PortKey;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Audit {
    /// The kernel has the written rules.
    Same,
    /// Another program changed the rules: rewrite them, and log `what` differs.
    Drifted { what: String },
}

/// Counters of one match port since its element was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// New flows with a target.
    pub flows: u64,
    /// Packets of both directions, including rejected ones.
    pub packets: u64,
    /// Bytes of these packets, including IP headers.
    pub bytes: u64,
}

/// Counters by match port.
pub type Traffic = BTreeMap<PortKey, Counters>;

//! What a firewall tells us back, whichever one it is: whether it still holds what we wrote, and what it counted.
//!
//! Values only; reading them is the edge's business ([`crate::edge::nft`], [`crate::edge::iptables`]).

pub mod iptables;
pub mod netlink;
pub mod nft;
pub mod ruleset;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::base::net::PortKey;

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Audit {
    /// The kernel holds what was written.
    Same,
    /// Somebody else changed it: it is to be written whole again.
    Drifted {
        /// What differs, for the log.
        what: String,
    },
}

/// What was counted for one match port since its element was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// New flows that were given a target.
    pub flows: u64,
    /// Packets, of both directions, those that were refused included.
    pub packets: u64,
    /// The bytes of these packets, IP headers included.
    pub bytes: u64,
}

/// Counters by match port.
pub type Traffic = BTreeMap<PortKey, Counters>;

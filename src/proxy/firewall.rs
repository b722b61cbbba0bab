//! Which firewall holds the rules: chosen by trying, once something is to be written.

use std::fmt;

use crate::edge::iptables::{Iptables, IptablesError, Variant};
use crate::edge::nft::{Changes, Nft, NftError};
use crate::model::firewall::{Audit, Traffic};
use crate::model::net::InterfaceName;
use crate::model::ruleset::{Delta, Ruleset};
use crate::model::settings::Backend;

use super::program::Fault;

/// The firewall in use.
#[derive(Debug, Clone)]
pub enum Firewall {
    /// nftables.
    Nft(Nft),
    /// iptables, of either kind.
    Iptables(Iptables),
}

impl From<NftError> for Fault {
    fn from(error: NftError) -> Self {
        Self { kind: error.kind(), message: error.to_string() }
    }
}

impl From<IptablesError> for Fault {
    fn from(error: IptablesError) -> Self {
        Self { kind: error.kind(), message: error.to_string() }
    }
}

impl Firewall {
    /// nftables, where that is the firewall in use.
    #[must_use]
    pub fn nft(&self) -> Option<Nft> {
        match self {
            Self::Nft(nft) => Some(nft.clone()),
            Self::Iptables(_) => None,
        }
    }

    /// The first firewall that works here of those that the setting allows; the fault is the last one's.
    pub async fn choose(backend: Backend, interface: &InterfaceName) -> Result<Self, Fault> {
        let candidates: &[Kind] = match backend {
            Backend::Auto => &[Kind::Nftables, Kind::Iptables(Variant::Nft), Kind::Iptables(Variant::Legacy)],
            Backend::Nftables => &[Kind::Nftables],
            Backend::Iptables => &[Kind::Iptables(Variant::Nft), Kind::Iptables(Variant::Legacy)],
            Backend::IptablesNft => &[Kind::Iptables(Variant::Nft)],
            Backend::IptablesLegacy => &[Kind::Iptables(Variant::Legacy)],
        };
        let mut last = Fault { kind: "None", message: "no firewall is allowed by the settings".to_owned() };
        for kind in candidates {
            match kind.open(interface).await {
                Ok(firewall) => return Ok(firewall),
                Err(fault) => {
                    tracing::warn!(kind = fault.kind, "{} cannot hold the rules: {}", kind.name(), fault.message);
                    last = fault;
                }
            }
        }
        Err(last)
    }

    /// Replaces everything of ours.
    pub async fn rewrite(&mut self, ruleset: &Ruleset) -> Result<(), Fault> {
        match self {
            Self::Nft(nft) => nft.rewrite(ruleset).await?,
            Self::Iptables(iptables) => iptables.rewrite(ruleset).await?,
        }
        Ok(())
    }

    /// Changes what differs.
    pub async fn patch(&mut self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> Result<(), Fault> {
        match self {
            Self::Nft(nft) => nft.patch(before, delta, after).await?,
            Self::Iptables(iptables) => iptables.patch(before, delta, after).await?,
        }
        Ok(())
    }

    /// Looks at what was written, where an audit needs that.
    pub async fn note(&mut self) -> Result<(), Fault> {
        match self {
            Self::Nft(_) => Ok(()),
            Self::Iptables(iptables) => Ok(iptables.note().await?),
        }
    }

    /// Whether the kernel still holds what was written.
    pub async fn audit(&mut self, wanted: &Ruleset) -> Result<Audit, Fault> {
        Ok(match self {
            Self::Nft(nft) => nft.audit(wanted).await?,
            Self::Iptables(iptables) => iptables.audit(wanted).await?,
        })
    }

    /// What the kernel has counted, by match port.
    pub async fn counters(&self) -> Result<Traffic, Fault> {
        Ok(match self {
            Self::Nft(nft) => nft.counters().await?,
            Self::Iptables(iptables) => iptables.counters().await?,
        })
    }

    /// Tells of changes that somebody else makes; nothing where the kernel does not tell.
    #[must_use]
    pub fn changes(&self) -> Option<Changes> {
        let changes = match self {
            Self::Nft(nft) => nft.changes(),
            // These rules are nftables underneath, and so are the notices.
            Self::Iptables(iptables) if iptables.variant() == Variant::Nft => Nft::open("nft").and_then(|nft| nft.changes()),
            Self::Iptables(_) => return None,
        };
        changes.inspect_err(|error| tracing::warn!(kind = error.kind(), "foreign changes are found by the timer only: {error}")).ok()
    }
}

impl fmt::Display for Firewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nft(_) => f.write_str(Kind::Nftables.name()),
            Self::Iptables(iptables) => f.write_str(Kind::Iptables(iptables.variant()).name()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Nftables,
    Iptables(Variant),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables(Variant::Nft) => "iptables-nft",
            Self::Iptables(Variant::Legacy) => "iptables-legacy",
        }
    }

    async fn open(self, interface: &InterfaceName) -> Result<Firewall, Fault> {
        match self {
            Self::Nftables => {
                let nft = Nft::open("nft")?;
                nft.probe(interface).await?;
                Ok(Firewall::Nft(nft))
            }
            Self::Iptables(variant) => {
                let iptables = Iptables::open(variant);
                iptables.probe(interface).await?;
                Ok(Firewall::Iptables(iptables))
            }
        }
    }
}

//! Firewall selection: by probing, before the first write.

use std::fmt;

use crate::edge::iptables::{Iptables, IptablesError, Variant};
use crate::edge::nft::{Nft, NftError, NotificationStream};
use crate::model::base::net::InterfaceName;
use crate::model::firewall::Traffic;
use crate::model::settings::FirewallMode;

use crate::proxy::forwarding::ruleset_sync::SyncFault;

#[derive(Debug, Clone)]
pub enum ActiveFirewall {
    Nft(Nft),
    /// iptables-nft or iptables-legacy.
    Iptables(Iptables),
}

impl From<NftError> for SyncFault {
    fn from(error: NftError) -> Self {
        Self { reason: error.reason(), message: error.to_string() }
    }
}

impl From<IptablesError> for SyncFault {
    fn from(error: IptablesError) -> Self {
        Self { reason: error.reason(), message: error.to_string() }
    }
}

impl ActiveFirewall {
    /// nftables, if in use.
    pub fn nft(&self) -> Option<Nft> {
        match self {
            Self::Nft(nft) => Some(nft.clone()),
            Self::Iptables(_) => None,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Nft(_) => Kind::Nftables,
            Self::Iptables(iptables) => Kind::Iptables(iptables.variant),
        }
    }

    /// First working firewall that the setting permits; the error is of the last one.
    pub async fn choose(backend: FirewallMode, interface: &InterfaceName) -> Result<Self, SyncFault> {
        let candidates: &[Kind] = match backend {
            FirewallMode::Auto => &Kind::ALL,
            FirewallMode::Nftables => &[Kind::Nftables],
            FirewallMode::Iptables => &[Kind::Iptables(Variant::Nft), Kind::Iptables(Variant::Legacy)],
            FirewallMode::IptablesNft => &[Kind::Iptables(Variant::Nft)],
            FirewallMode::IptablesLegacy => &[Kind::Iptables(Variant::Legacy)],
        };
        let mut last = SyncFault { reason: "None", message: "no firewall is allowed by the settings".to_owned() };
        for kind in candidates {
            match kind.open(interface).await {
                Ok(firewall) => return Ok(firewall),
                Err(fault) => {
                    tracing::warn!(reason = fault.reason, "{} is not usable: {}", kind.name(), fault.message);
                    last = fault;
                }
            }
        }
        Err(last)
    }

    /// Removes our rules from the other firewalls of this network namespace: an earlier process may have had another setting, and its
    /// rules would stay in force.
    pub async fn remove_others(&self) {
        for other in Kind::ALL.into_iter().filter(|kind| *kind != self.kind()) {
            if let Err(fault) = other.remove().await {
                tracing::warn!(reason = fault.reason, "cannot remove rules of an earlier start from {}: {}", other.name(), fault.message);
            }
        }
    }

    /// Traffic counters by match port.
    pub async fn counters(&self) -> Result<Traffic, SyncFault> {
        Ok(match self {
            Self::Nft(nft) => nft.counters().await?,
            Self::Iptables(iptables) => iptables.counters().await?,
        })
    }

    /// Notifications of changes by other programs; `None` without kernel support.
    pub fn changes(&self) -> Option<NotificationStream> {
        let changes = match self {
            Self::Nft(nft) => nft.changes(),
            // iptables-nft rules are nftables rules, with its notifications.
            Self::Iptables(iptables) if iptables.variant == Variant::Nft => Nft::open("nft").and_then(|nft| nft.changes()),
            Self::Iptables(_) => return None,
        };
        changes
            .inspect_err(|error| {
                tracing::warn!(reason = error.reason(), "cannot subscribe to ruleset changes; drift is detected by a timer only: {error}");
            })
            .ok()
    }
}

impl fmt::Display for ActiveFirewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nftables,
    Iptables(Variant),
}

impl Kind {
    /// All of them, in order of preference.
    const ALL: [Self; 3] = [Self::Nftables, Self::Iptables(Variant::Nft), Self::Iptables(Variant::Legacy)];

    /// Removes our rules; a firewall without its programs has none.
    async fn remove(self) -> Result<(), SyncFault> {
        match self {
            Self::Nftables => match Nft::open("nft")?.remove().await {
                Err(NftError::Missing { .. }) => Ok(()),
                removed => Ok(removed?),
            },
            Self::Iptables(variant) => match Iptables::open(variant).remove().await {
                Err(IptablesError::Missing { .. }) => Ok(()),
                removed => Ok(removed?),
            },
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables(Variant::Nft) => "iptables-nft",
            Self::Iptables(Variant::Legacy) => "iptables-legacy",
        }
    }

    async fn open(self, interface: &InterfaceName) -> Result<ActiveFirewall, SyncFault> {
        match self {
            Self::Nftables => {
                let mut nft = Nft::open("nft")?;
                nft.probe(interface).await?;
                Ok(ActiveFirewall::Nft(nft))
            }
            Self::Iptables(variant) => {
                let iptables = Iptables::open(variant);
                iptables.probe(interface).await?;
                Ok(ActiveFirewall::Iptables(iptables))
            }
        }
    }
}

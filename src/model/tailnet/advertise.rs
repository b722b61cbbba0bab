//! Selects what a replica advertises: the configured services that it serves.
//!
//! Advertised services get traffic, so a service is advertised only once the kernel or a listener handles it. A service that is not
//! served is withheld with its reason and does not affect others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

mod view;

pub use view::{AdvertiseMode, AdvertiseStatus, AdvertiseView, AppliedRuleset, DaemonReport, PlacedSites, SiteStatus};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertised {
    pub services: BTreeSet<String>,
    /// Configured prefixes that are withheld: this replica does not serve them (yet).
    pub withheld: BTreeSet<IpNet>,
    /// Shields-up: tailscaled drops first packets silently, so that clients retransmit to the next advertised replica.
    pub shields_up: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WithdrawalProgress {
    /// New connections must be dropped.
    pub shields_up: bool,
    pub withdrawn: bool,
}

/// Whether a service is served, or the reason against it.
pub type Placement = Result<(), String>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdvertiseInputs {
    /// Services to advertise by config.
    pub configured: BTreeSet<String>,
    /// Placement of the services that this replica handles.
    pub placed: BTreeMap<String, Placement>,
    /// Addresses of L3 services, and whether the kernel forwards them.
    pub addresses: BTreeMap<IpAddr, bool>,
    pub withdrawal: WithdrawalProgress,
}

impl Advertised {
    /// Whether a prefix of the config is withheld.
    pub fn withholds(&self, text: &str) -> bool {
        text.parse::<IpNet>().is_ok_and(|net| self.withheld.contains(&net))
    }
}

impl AdvertiseInputs {
    pub fn advertised(&self) -> Advertised {
        let in_place = |name: &&String| !self.withdrawal.withdrawn && matches!(self.placed.get(*name), Some(Ok(())));
        let withheld = self.addresses.iter().filter(|(_, forwarded)| self.withdrawal.withdrawn || !**forwarded);
        Advertised {
            services: self.configured.iter().filter(in_place).cloned().collect(),
            withheld: withheld.map(|(address, _)| IpNet::from(*address)).collect(),
            shields_up: self.withdrawal.shields_up,
        }
    }

    /// Configured services that are not advertised, with reasons.
    pub fn withheld(&self) -> BTreeMap<String, String> {
        let reason = |name: &String| match self.placed.get(name) {
            Some(Ok(())) => None,
            Some(Err(reason)) => Some(reason.clone()),
            None => Some("no config of this replica says how it is served".to_owned()),
        };
        self.configured.iter().filter_map(|name| Some((name.clone(), reason(name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> AdvertiseInputs {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        AdvertiseInputs {
            configured: ["svc:a", "svc:b", "svc:c"].map(str::to_owned).into(),
            placed: [("svc:a".to_owned(), Ok(())), ("svc:b".to_owned(), Err("no certificate".to_owned())), ("svc:d".to_owned(), Ok(()))]
                .into(),
            addresses: [(ip("10.9.0.1"), true), (ip("fd00::1"), false)].into(),
            withdrawal: WithdrawalProgress::default(),
        }
    }

    #[test]
    fn ready_and_wanted_services_are_advertised() {
        let advertised = facts().advertised();
        assert_eq!(advertised.services, ["svc:a".to_owned()].into());
        assert!(advertised.withholds("fd00::1/128") && !advertised.withholds("10.9.0.1/32") && !advertised.withholds("nonsense"));
        let withheld: Vec<_> = facts().withheld().into_iter().collect();
        assert_eq!(withheld[0], ("svc:b".to_owned(), "no certificate".to_owned()));
        assert_eq!((withheld.len(), withheld[1].0.as_str()), (2, "svc:c"));
    }

    #[test]
    fn draining_replica_raises_shields_then_withdraws() {
        let withdrawal =
            |shields_up, withdrawn| AdvertiseInputs { withdrawal: WithdrawalProgress { shields_up, withdrawn }, ..facts() }.advertised();
        assert_eq!(withdrawal(true, false), Advertised { shields_up: true, ..facts().advertised() }, "whoever is in is still led here");
        let advertised = withdrawal(true, true);
        assert_eq!((advertised.services.len(), advertised.shields_up), (0, true));
        assert!(advertised.withholds("10.9.0.1/32"));
        assert_eq!(withdrawal(false, true), Advertised { shields_up: false, ..advertised }, "what a successor would have to take back");
    }
}

//! What a replica advertises of what it is told to: that which it serves.
//!
//! What is advertised gets traffic, so nothing is advertised before the kernel or a listener answers for it, and nothing that has
//! been told not to be. A service that does not come to be served is withheld with its reason; it hinders no other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

mod view;

pub use view::{AdvertiseMode, AdvertiseStatus, AdvertiseView, AppliedRuleset, DaemonReport, SiteStatus};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertised {
    pub services: BTreeSet<String>,
    /// The prefixes that are not, although the config names them: this replica does not serve them (yet).
    pub withheld: BTreeSet<IpNet>,
    /// Nobody new is let in: tailscaled drops first packets without a word, so that they are sent again and come to whoever is
    /// advertised next.
    pub shut: bool,
}

/// How far a replica is with leaving.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WithdrawalProgress {
    /// Nobody new is to be let in.
    pub shut: bool,
    pub withdrawn: bool,
}

/// Whether a service is in place, or why not.
pub type Placement = Result<(), String>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdvertiseInputs {
    /// The services that the config says are to be advertised.
    pub configured: BTreeSet<String>,
    /// How the services stand that somebody here answers for.
    pub placed: BTreeMap<String, Placement>,
    /// The addresses of services that the kernel forwards, and whether it does.
    pub addresses: BTreeMap<IpAddr, bool>,
    /// How far the replica is with leaving.
    pub leaving: WithdrawalProgress,
}

impl Advertised {
    /// Whether a prefix of the config is left out.
    pub fn withholds(&self, text: &str) -> bool {
        text.parse::<IpNet>().is_ok_and(|net| self.withheld.contains(&net))
    }
}

impl AdvertiseInputs {
    pub fn advertised(&self) -> Advertised {
        let in_place = |name: &&String| !self.leaving.withdrawn && matches!(self.placed.get(*name), Some(Ok(())));
        let withheld = self.addresses.iter().filter(|(_, forwarded)| self.leaving.withdrawn || !**forwarded);
        Advertised {
            services: self.configured.iter().filter(in_place).cloned().collect(),
            withheld: withheld.map(|(address, _)| IpNet::from(*address)).collect(),
            shut: self.leaving.shut,
        }
    }

    /// The services that are to be advertised and are not, and why.
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
            leaving: WithdrawalProgress::default(),
        }
    }

    #[test]
    fn what_is_in_place_and_wanted_is_advertised() {
        let advertised = facts().advertised();
        assert_eq!(advertised.services, ["svc:a".to_owned()].into());
        assert!(advertised.withholds("fd00::1/128") && !advertised.withholds("10.9.0.1/32") && !advertised.withholds("nonsense"));
        let withheld: Vec<_> = facts().withheld().into_iter().collect();
        assert_eq!(withheld[0], ("svc:b".to_owned(), "no certificate".to_owned()));
        assert_eq!((withheld.len(), withheld[1].0.as_str()), (2, "svc:c"));
    }

    #[test]
    fn who_leaves_lets_nobody_new_in_and_then_advertises_nothing() {
        let leaving = |shut, withdrawn| AdvertiseInputs { leaving: WithdrawalProgress { shut, withdrawn }, ..facts() }.advertised();
        assert_eq!(leaving(true, false), Advertised { shut: true, ..facts().advertised() }, "whoever is in is still led here");
        let advertised = leaving(true, true);
        assert_eq!((advertised.services.len(), advertised.shut), (0, true));
        assert!(advertised.withholds("10.9.0.1/32"));
        assert_eq!(leaving(false, true), Advertised { shut: false, ..advertised }, "what a successor would have to take back");
    }
}

//! Status of a replica in its state Secret, in the operator's own format.
//!
//! The operator sends a service's traffic to a replica whose status has exactly the configured ports and target, and compares nothing else.
//! So both are copied from the config. An unresolved service is withheld for a limited time ([`ServeHistory`]), so that replicas that can
//! serve it get the traffic first. After that it is published without addresses, and its ports reject: a rollout waits until every service
//! is reachable through the new Pod, and an unresolvable name would block it. A status always describes a plan that the kernel has applied.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Serialize, Serializer};

use crate::api::egress::{EgressStatus, ServiceStatus};
use crate::api::ingress;
use crate::model::base::gzip;
use crate::model::config::{Config, EgressConfig, IngressConfig};
use crate::model::plan::{Plan, Reason};

mod patience;

pub use patience::{RESOLUTION_GRACE, ServeHistory};

/// The Pod's addresses, which the operator compares with the Pod object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodAddresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl PodAddresses {
    /// The last address of each family.
    pub fn of(addresses: impl IntoIterator<Item = std::net::IpAddr>) -> Self {
        addresses.into_iter().fold(Self::default(), |found, ip| match ip {
            std::net::IpAddr::V4(v4) => Self { v4: Some(v4), ..found },
            std::net::IpAddr::V6(v6) => Self { v6: Some(v6), ..found },
        })
    }

    fn text(self) -> (String, String) {
        (self.v4.map(|ip| ip.to_string()).unwrap_or_default(), self.v6.map(|ip| ip.to_string()).unwrap_or_default())
    }
}

/// Published services, each created while serializing.
#[derive(Debug, Clone, Copy)]
pub struct PublishedServices<'a> {
    plan: &'a Plan,
    config: &'a EgressConfig,
    withheld: &'a BTreeSet<Arc<str>>,
    /// Whether target addresses are included.
    addresses: bool,
}

impl<'a> PublishedServices<'a> {
    fn iter(self) -> impl Iterator<Item = (&'a str, ServiceStatus)> {
        let published = self.config.services.iter().filter(move |(name, _)| !self.withheld.contains(*name));
        published.map(move |(name, service)| {
            let targets = self.plan.egress.get(name).map(|egress| &egress.targets).filter(|targets| self.addresses && !targets.is_empty());
            let status = ServiceStatus {
                ports: service.ports.clone(),
                tailnet_target_ips: targets.map(|targets| targets.iter().map(ToString::to_string).collect()),
                tailnet_target: service.tailnet_target.clone(),
            };
            (&**name, status)
        })
    }
}

impl Serialize for PublishedServices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Egress status of the applied plan for this config, without withheld services.
pub fn egress_status<'a>(
    plan: &'a Plan,
    config: &'a EgressConfig,
    pod: PodAddresses,
    withheld: &'a BTreeSet<Arc<str>>,
) -> EgressStatus<PublishedServices<'a>> {
    let published = PublishedServices { plan, config, withheld, addresses: true };
    let (pod_ipv4, pod_ipv6) = pod.text();
    EgressStatus {
        pod_ipv4,
        pod_ipv6,
        services: published.iter().next().map(|_| published),
        fingerprint: Some(config.fingerprint.clone()),
        rejected: rejected_reasons(config, &plan.rejected),
    }
}

/// Reasons of rejected services, as texts.
fn rejected_reasons<S>(config: &Config<S>, rejected: &OrdMap<Arc<str>, Vec<Reason>>) -> BTreeMap<String, Vec<String>> {
    let configured = |name: &Arc<str>| config.services.contains_key(name) || config.malformed.contains_key(name);
    let rejected = rejected.iter().filter(|(name, _)| configured(name));
    rejected.map(|(name, words)| (name.to_string(), words.iter().map(ToString::to_string).collect())).collect()
}

/// Ingress status of the applied plan for this config: L3 services with at least one served address, as configured. Others are omitted,
/// because published services are advertised.
pub fn ingress_status(plan: &Plan, config: &IngressConfig, pod: PodAddresses) -> ingress::IngressStatus {
    let served = config.services.iter().filter(|(name, _)| plan.ingress.get(*name).is_some_and(|hosts| !hosts.is_empty()));
    let (pod_ipv4, pod_ipv6) = pod.text();
    ingress::IngressStatus {
        configs: served.map(|(name, service)| (name.to_string(), ingress::IngressService::clone(service))).collect(),
        pod_ipv4,
        pod_ipv6,
        fingerprint: Some(config.fingerprint.clone()),
        rejected: rejected_reasons(config, &plan.rejected),
    }
}

/// Maximum size of a status, with room for tailscaled's state in the Secret's 1 MiB.
pub const ROOM: usize = 768 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Value of [`crate::api::egress::KEY`].
    pub plain: Vec<u8>,
    /// Complete status for [`crate::api::egress::KEY_COMPRESSED`], if the plain text is incomplete. Our reconciler reads it first; the
    /// Tailscale operator, whose groups are smaller, ignores it.
    pub packed: Option<Vec<u8>>,
    /// Parts missing in the plain text.
    pub omitted: Omitted,
}

/// Parts omitted from a plain status to make it fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omitted {
    Nothing,
    /// Reasons of rejections; they stay in the metrics.
    Reasons,
    /// Also the target addresses, which the operator ignores.
    Addresses,
    /// All services: the fingerprint of the config and the rejected names remain.
    Services,
}

/// Encodes a status into at most `room` bytes for both keys, as far as parts can be omitted.
pub fn encode(mut status: EgressStatus<PublishedServices<'_>>, room: usize) -> Encoded {
    let text = |status: &EgressStatus<PublishedServices<'_>>| serde_json::to_vec(status).unwrap_or_default();
    let whole = text(&status);
    if whole.len() <= room {
        return Encoded { plain: whole, packed: None, omitted: Omitted::Nothing };
    }
    let packed = gzip::pack(&whole).ok().filter(|packed| packed.len() <= room / 2);
    drop(whole);
    let room = room - packed.as_ref().map_or(0, Vec::len);
    status.rejected.values_mut().for_each(Vec::clear);
    let done = |plain, omitted| Encoded { plain, packed: packed.clone(), omitted };
    let shorter = text(&status);
    if shorter.len() <= room {
        return done(shorter, Omitted::Reasons);
    }
    drop(shorter);
    status.services = status.services.map(|services| PublishedServices { addresses: false, ..services });
    let shorter = text(&status);
    if shorter.len() <= room {
        return done(shorter, Omitted::Addresses);
    }
    drop(shorter);
    status.services = None;
    done(text(&status), Omitted::Services)
}

#[cfg(test)]
mod tests;

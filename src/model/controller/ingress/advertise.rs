//! Names that a replica's config advertises, and names that it serves.
//!
//! Our replica delays names that are not in place yet. The Tailscale operator's advertises its config at once, so its config has only
//! names that it can serve.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::routes::Listener;
use crate::model::controller::egress::acks::speaks;
use crate::model::controller::ingress::config::mapping;
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::spec::PublishTarget;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness;
use crate::model::controller::workload::replicas::ReplicaAdvertisement;

impl IngressPlan<'_> {
    /// What each desired replica advertises, by ordinal.
    pub(crate) fn by_ordinal(&self, pass: &Pass<'_>, shape: &RenderContext<'_>) -> BTreeMap<u32, ReplicaAdvertisement> {
        let none = ObservedReplica::default();
        let advertised = |ordinal| {
            let replica = pass.observed.replicas.get(&ordinal).unwrap_or(&none);
            let (names, routes) = (self.advertised(pass, shape, replica), self.routes(pass, shape, replica));
            (ordinal, ReplicaAdvertisement { names, routes, app_connector: None })
        };
        (0..shape.spec.replicas).map(advertised).collect()
    }

    /// Names for a replica's config.
    fn advertised(&self, work: &Pass<'_>, shape: &RenderContext<'_>, replica: &ObservedReplica) -> BTreeSet<String> {
        let before: BTreeSet<&str> = replica.config.iter().flat_map(|config| config.advertises()).collect();
        let stays = |name: &&String| before.contains(name.as_str());
        let unchanged = self.unchanged.iter().filter(stays);
        let items = self.items.iter().filter(|(name, item)| match &item.state {
            ServiceState::Unknown => before.contains(name.as_str()),
            ServiceState::Owned(addresses) => self.ready(work, shape, replica, (name, item), addresses),
            ServiceState::Creating
            | ServiceState::Conflict(_)
            | ServiceState::ByRoute(_)
            | ServiceState::Unsupported
            | ServiceState::Device => false,
        });
        unchanged.chain(items.map(|(name, _)| name)).cloned().collect()
    }

    /// Whether a replica may advertise a name whose Tailscale Service exists.
    pub(crate) fn ready(
        &self,
        work: &Pass<'_>,
        shape: &RenderContext<'_>,
        replica: &ObservedReplica,
        (name, item): (&String, &Item),
        own: &[String],
    ) -> bool {
        match &item.spec.target {
            PublishTarget::Site(site) => {
                let plain = site.listeners.values().any(|listener| *listener != Listener::Https);
                let certified = || plain || work.observed.is_certified(&item.dns);
                self.before.routes.contains_key(name) && (!shape.stock() || certified())
            }
            PublishTarget::Whole(whole) => {
                let id = (item.claimant.namespace.clone(), item.claimant.name.clone());
                let wanted = mapping(own, whole);
                let written = wanted.is_some() && self.before.mappings.get(name) == wanted.as_ref();
                let unchanged = || {
                    let status = replica.state.as_ref().and_then(|state| state.ingress.as_ref());
                    let status =
                        status.filter(|status| replica.pod.as_ref().is_some_and(|pod| speaks(&status.pod_ipv4, &status.pod_ipv6, pod)));
                    status.is_some_and(|status| status.configs.get(name) == wanted.as_ref())
                };
                // Only the replicas resolve an external name.
                let backed = !whole.external_name.is_empty() || work.observed.publish.backed.contains(&id);
                backed && written && (!shape.stock() || unchanged())
            }
        }
    }
}

/// Names in the config of any replica.
pub(crate) fn advertised_names(work: &Pass<'_>) -> BTreeSet<String> {
    let configs = work.observed.replicas.values().filter_map(|replica| replica.config.as_ref());
    configs.flat_map(|config| config.advertises().map(str::to_owned)).collect()
}

/// Whether a replica that gets traffic advertises a name and is approved for it.
pub fn serves(replica: &ObservedReplica, name: &str) -> bool {
    live(replica) && replica.advertises(name) && !unapproved(replica, name)
}

/// Whether a replica is not approved for a name that it advertises.
pub(crate) fn unapproved(replica: &ObservedReplica, name: &str) -> bool {
    replica.state.as_ref().is_some_and(|state| state.unapproved.contains(name))
}

/// Whether a replica gets traffic and its state is from the current Pod.
pub(crate) fn live(replica: &ObservedReplica) -> bool {
    replica.is_current() && replica.pod.as_deref().is_some_and(readiness::is_ready)
}

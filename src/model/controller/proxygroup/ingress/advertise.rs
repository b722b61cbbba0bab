//! Which names a replica is told to advertise, and which it does.
//!
//! Our replica holds back by itself what is not in place yet. The Tailscale operator's advertises at once what it is told, so
//! that it is told only what it holds.

use std::collections::BTreeSet;

use super::config::mapping;
use super::teardown::awaited;
use super::{Item, Plan, Standing};
use crate::api::routes::Listener;
use crate::model::controller::ingress_spec::Target;
use crate::model::controller::objects::Shape;
use crate::model::controller::proxygroup::work::Work;
use crate::model::controller::proxygroup::{Replica, readiness};

impl Plan<'_> {
    /// The names that a replica is told to advertise.
    pub(in super::super) fn advertised(&self, work: &Work<'_>, shape: &Shape<'_>, replica: &Replica) -> BTreeSet<String> {
        let told: BTreeSet<&str> = replica.config.iter().flat_map(|config| config.advertises()).collect();
        let stays = |name: &&String| told.contains(name.as_str());
        let held = self.held.iter().filter(stays);
        let staying = self.leaving.iter().filter(|name| stays(name) && awaited(work, name));
        let items = self.items.iter().filter(|(name, item)| match &item.standing {
            Standing::Unknown => told.contains(name.as_str()),
            Standing::Ours(addresses) => self.ready(work, shape, replica, (name, item), addresses),
            Standing::Made | Standing::Theirs(_) | Standing::Routed(_) | Standing::Never => false,
        });
        held.chain(staying).chain(items.map(|(name, _)| name)).cloned().collect()
    }

    /// Whether a replica may advertise a name whose Tailscale Service is there.
    pub(super) fn ready(
        &self,
        work: &Work<'_>,
        shape: &Shape<'_>,
        replica: &Replica,
        (name, item): (&String, &Item),
        own: &[String],
    ) -> bool {
        match &item.wish.target {
            Target::Site(site) => {
                let plain = site.listeners.values().any(|listener| *listener != Listener::Https);
                let certified = || plain || Self::certified(work, &shape.owner, &item.dns);
                self.before.routes.contains_key(name) && (!shape.stock() || certified())
            }
            Target::Whole(whole) => {
                let id = (item.claimant.namespace.clone(), item.claimant.name.clone());
                let wanted = mapping(own, whole);
                let written = wanted.is_some() && self.before.mappings.get(name) == wanted.as_ref();
                let held = || {
                    let status = replica.state.as_ref().and_then(|state| state.ingress.as_ref());
                    let status = status.filter(|status| {
                        replica.pod.as_ref().is_some_and(|pod| readiness::speaks(&status.pod_ipv4, &status.pod_ipv6, pod))
                    });
                    status.is_some_and(|status| status.configs.get(name) == wanted.as_ref())
                };
                // Nobody here knows who is behind a name: its replicas do.
                let backed = !whole.external_name.is_empty() || work.observed.publish.backed.contains(&id);
                backed && written && (!shape.stock() || held())
            }
        }
    }
}

/// Whether a replica that gets traffic advertises a name.
#[must_use]
pub fn serves(replica: &Replica, name: &str) -> bool {
    live(replica) && says(replica, name)
}

/// Whether a replica gets traffic, and what it says is its own.
pub(super) fn live(replica: &Replica) -> bool {
    alive(replica) && replica.pod.as_deref().is_some_and(readiness::is_ready)
}

/// Whether a replica's tailscaled was last seen to advertise a name.
pub(super) fn says(replica: &Replica, name: &str) -> bool {
    replica.state.as_ref().is_some_and(|state| state.advertises.contains(name))
}

/// Whether what a replica says is said by the Pod that there is.
fn alive(replica: &Replica) -> bool {
    let uid = replica.pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
    let said = replica.state.as_ref().and_then(|state| state.pod_uid.as_deref());
    uid.zip(said).is_some_and(|(uid, said)| uid.eq_ignore_ascii_case(said))
}

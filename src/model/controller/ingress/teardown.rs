//! Removal of a name: replicas withdraw it, then its Tailscale Service is deleted, then config entry and certificate.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::api::condition::reason;
use crate::model::controller::ingress::advertise::awaited;
use crate::model::controller::ingress::claims::{INVALID_CLASS, claims};
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::ingress::{IngressPlan, Rejection, recorded, subject};
use crate::model::controller::kinds::standalone::handover::POLL_INTERVAL;
use crate::model::controller::policy::assignment::GroupAssignment;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::builder::{GroupPass, deletion};
use crate::model::controller::workload::objects::certificate::domain_of;
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, ingress_config_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{NameConflict, ServiceList, TailnetState};
use crate::model::controller::workload::readiness;
use crate::model::controller::workload::readiness::TIMEOUT;
use crate::model::controller::workload::vip_service::{Release, release};

impl IngressPlan<'_> {
    /// Withdraws names as far as possible. Returns the fully withdrawn ones.
    pub(crate) fn withdraw(&self, work: &mut GroupPass<'_>, shape: &RenderContext<'_>) -> BTreeSet<String> {
        let mut gone = BTreeSet::new();
        if self.leaving.is_empty() {
            return gone;
        }
        let advertised = advertised_by_pods(work);
        for name in &self.leaving {
            if awaited(work, name) {
                work.again(POLL_INTERVAL);
            } else if !withdrawn(work, &advertised, name, &self.former_routes(name)) {
                work.again(TIMEOUT);
            } else if released(work, self.listed, name) {
                gone.insert(name.clone());
            }
        }
        certificates(work, &shape.owner, &gone);
        gone
    }
}

/// Names and routes in the configs of replicas with a Pod.
fn advertised_by_pods(work: &GroupPass<'_>) -> BTreeSet<String> {
    let there = work.observed.replicas.values().filter(|replica| replica.pod.is_some());
    let configs = there.filter_map(|replica| replica.config.as_ref());
    configs.flat_map(|config| config.advertises().chain(config.routes()).map(str::to_owned)).collect()
}

/// Whether no live replica advertises a name or its routes.
fn withdrawn(work: &GroupPass<'_>, advertised: &BTreeSet<String>, name: &str, routes: &BTreeSet<String>) -> bool {
    let now = work.observed.now;
    let silent = |replica: &ObservedReplica| replica.pod.as_deref().is_none_or(|pod| readiness::long_unready(pod, now));
    let by_route = |replica: &ObservedReplica| replica.state.as_ref().is_some_and(|state| !state.routes.is_disjoint(routes));
    let leads = |replica: &ObservedReplica| replica.advertises(name) || by_route(replica);
    !advertised.contains(name)
        && advertised.is_disjoint(routes)
        && work.observed.replicas.values().all(|replica| !leads(replica) || silent(replica))
}

/// Whether this cluster no longer owns a part of a Tailscale Service; plans the necessary requests.
fn released(work: &mut GroupPass<'_>, listed: Option<&ServiceList>, name: &str) -> bool {
    // A rival that does not serve it may never do so, and recreates it if it does. A device does not get the name before.
    let mut rivals = work.observed.publish.rivals.get(name).into_iter().flatten();
    if rivals.any(|rival| rival.serving && !rival.is_proxy()) {
        return true;
    }
    match &work.observed.tailnet {
        TailnetState::Ready { capabilities, .. } if !capabilities.services => return true,
        TailnetState::Ready { .. } => {}
        TailnetState::Asking => return false,
        TailnetState::Unavailable(why) => {
            let (why, waited) = (why.clone(), work.waited());
            if waited {
                left_behind(work, name, &why);
            }
            return waited;
        }
    }
    let action = ControlAction::ReleaseService { name: name.to_owned() };
    let denial = work.observed.denied.get(&action.what()).filter(|denial| work.given_up(denial)).map(|denial| denial.why.clone());
    if let Some(why) = denial {
        left_behind(work, name, &why);
        return true;
    }
    let Some(listed) = listed else { return false };
    if release(listed.services.get(name), &work.observed.settings.cluster) == Release::Nothing {
        return true;
    }
    work.pass.control.push(action);
    false
}

fn left_behind(work: &mut GroupPass<'_>, name: &str, why: &str) {
    let message =
        format!("The control plane still has Tailscale Service {name}: remove it there, or its part of this cluster. It was not, as {why}");
    work.warn_workload("TailscaleServiceOrphaned", message);
}

/// Certificate Secrets of names that are no longer requested.
pub(crate) fn gone_certificates<'a>(
    work: &GroupPass<'a>,
    gone: &BTreeSet<String>,
) -> impl Iterator<Item = (&'a ObjectRef, &'a Arc<Value>)> {
    let rivals = &work.observed.publish.rivals;
    let ends = work.observed.group.as_ref().is_some_and(|group| group.metadata.deletion_timestamp.is_some());
    let goes = move |dns: &str| {
        let name = dns.split_once('.').map(|(label, _)| service_name(label));
        // A proxy takes over a certificate as long as the group exists.
        let is_free = |rivals: &Vec<NameConflict>| rivals.iter().all(|rival| ends && rival.is_proxy());
        name.is_some_and(|name| gone.contains(&name) && rivals.get(&name).is_none_or(is_free))
    };
    work.observed.of(Kind::Secret).filter(move |(_, secret)| domain_of(secret).is_some_and(&goes))
}

/// Deletes certificates of names that are no longer requested, and the Roles that the Tailscale operator created for them.
fn certificates(work: &mut GroupPass<'_>, owner: &Owner, gone: &BTreeSet<String>) {
    let secrets: Vec<_> = gone_certificates(work, gone).collect();
    for (object, secret) in secrets {
        for kind in [Kind::RoleBinding, Kind::Role] {
            let object = ObjectRef::new(kind, &owner.namespace, object.name.clone());
            if let Some(existing) = work.owned(&object) {
                work.pass.delete.push(deletion(&object, existing));
            }
        }
        work.pass.delete.push(deletion(object, secret));
    }
}

/// Withdraws everything of a group that is being deleted. Returns whether nothing is left.
pub(crate) fn end(work: &mut GroupPass<'_>, owner: &Owner) -> bool {
    let before = work.owned(&ingress_config_ref(owner)).map(|config| IngressConfigMap::read(config)).unwrap_or_default();
    let names = recorded(work, &before);
    let pods = work.observed.replicas.values().any(|replica| replica.pod.is_some());
    let mut remaining = pods;
    if !pods && !names.is_empty() {
        let listed = super::listed(work);
        let gone = names.iter().filter(|name| released(work, listed, name)).cloned().collect();
        remaining = gone != names;
        certificates(work, owner, &gone);
    }
    report_unserved(work, &before, !remaining, "is being deleted: name another group.");
    !remaining
}

/// Reports the fault to objects of a missing group, and to objects that could not be assigned to any.
pub(crate) fn orphans(work: &mut GroupPass<'_>, fault: &str) {
    report_unserved(work, &IngressConfigMap::default(), true, fault);
}

/// Reports the fault to objects of a group of another type.
pub(crate) fn elsewhere(work: &mut GroupPass<'_>, fault: &str) {
    let (observed, group) = (work.observed, work.observed.key.group_name());
    // Remembered Services are valid egress Services.
    let mut others = observed.services.values().filter(|service| work.memory.served(service).is_none());
    let asks = others.any(|service| observed.assignment.published(service).group() == Some(group));
    if asks || !observed.publish.ingresses.is_empty() {
        orphans(work, fault);
    }
}

/// Reports that nothing is advertised, and removes finalizers once that is true.
fn report_unserved(work: &mut GroupPass<'_>, before: &IngressConfigMap, done: bool, fault: &str) {
    for claim in claims(work.observed, before) {
        if claim.ours {
            let refused = claim.asks.then(|| match claim.assignment {
                GroupAssignment::Unusable(why) => Rejection::new(INVALID_CLASS, why.to_owned()),
                assignment => Rejection::new(reason::PROXY_GROUP_NOT_READY, assignment.message(work.observed.key.group_name(), fault)),
            });
            let quiet = matches!(claim.object, Parent::Ingress(_)) && !done;
            let refused = refused.as_ref().filter(|_| !quiet);
            if let Some(Rejection { reason, message }) = refused {
                work.lasting(subject(&claim.claimant), reason, message.clone());
            }
            crate::model::controller::ingress::report::unserved(work, &claim, refused, !done);
        }
    }
}

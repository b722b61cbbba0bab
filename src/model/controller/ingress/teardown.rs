//! Removal of a name: replicas withdraw it, then its Tailscale Service is deleted, then config entry and certificate.
//!
//! Replicas report in their state Secrets that they withdraw a name. A Pod can claim there whatever it likes: after [`CLAIM_DEADLINE`] only
//! the config counts, which no Pod writes. The deadline starts when a pass finds that no config names it any more; the config records that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::ingress::advertise::advertised_names;
use crate::model::controller::ingress::claims::{IngressClaim, claims, subject};
use crate::model::controller::ingress::faults::has_address;
use crate::model::controller::ingress::items::IngressPlan;
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::report::{balancer_of, unserved};
use crate::model::controller::ingress::service_state::{lacks_services, listed};
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::objects::certificate::domain_of;
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, ingress_config_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{NameConflict, ServiceList, TailnetState};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Ownership, Pass, deletion};
use crate::model::controller::workload::readiness;
use crate::model::controller::workload::readiness::{TIMEOUT, elapsed};
use crate::model::controller::workload::vip_service::{Release, is_of_another_group, of_group, release};

/// Time for replicas to withdraw a name after their configs stopped naming it. Mounted configs arrive within two minutes.
const CLAIM_DEADLINE: Duration = Duration::from_mins(2);
/// Time for another workload to serve the name of a deleted object.
const SUCCESSOR_DEADLINE: Duration = Duration::from_mins(10);
/// Maximum names with a recorded deadline, 80 kB; others get one when these are withdrawn.
const MAX_DEADLINES: usize = 1_000;

/// How far the replicas have withdrawn a name.
enum Withdrawal {
    /// A config of a replica names it.
    Configured,
    /// A replica claims to advertise it, for this time after the configs stopped naming it.
    Claimed(Duration),
    Done,
}

impl IngressPlan<'_> {
    /// Withdraws names as far as possible. Returns the fully withdrawn ones.
    pub(crate) fn withdraw(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>) -> BTreeSet<String> {
        let mut gone = BTreeSet::new();
        if self.leaving.is_empty() {
            return gone;
        }
        let advertised = advertised_by_pods(work);
        for name in &self.leaving {
            let withdrawal = self.withdrawal(work, &advertised, name);
            match withdrawal {
                Withdrawal::Configured => work.again(TIMEOUT),
                Withdrawal::Claimed(since) if since < CLAIM_DEADLINE => work.again(TIMEOUT.min(CLAIM_DEADLINE.saturating_sub(since))),
                Withdrawal::Claimed(_) | Withdrawal::Done => {
                    if released(work, self.listed, name) {
                        if let Withdrawal::Claimed(since) = withdrawal {
                            claimed(work, name, since);
                        }
                        gone.insert(name.clone());
                    } else {
                        self.report_refusal(work, name);
                    }
                }
            }
        }
        certificates(work, &shape.owner, &self.before, &gone);
        gone
    }

    /// Reports to the object that had a name, else to the group, that the control plane refuses its release.
    fn report_refusal(&self, work: &mut PlanPart<'_>, name: &str) {
        let what = ControlAction::ReleaseService { name: name.to_owned() }.what();
        let Some(denial) = work.observed.denied.get(&what).filter(|denial| denial.refused.is_some()) else { return };
        let claim = self.claims.iter().find(|claim| claim.recorded.iter().any(|recorded| recorded == name));
        let subject = claim.map_or_else(|| work.observed.key.clone(), |claim| subject(&claim.claimant));
        work.lasting(subject, "TailscaleServiceDenied", denial.why.clone());
    }

    /// Names that stay served until another workload serves them: those of objects that move, and for a time those of deleted objects that
    /// other objects request, unless no replica's config names them any more.
    pub(crate) fn awaited(&self, work: &Pass<'_>) -> Vec<String> {
        let advertised = advertised_names(work);
        let is_advertised = |claim: &IngressClaim<'_>, name: &String| {
            lacks_services(work) || claim.object.metadata().deletion_timestamp.is_none() || advertised.contains(name)
        };
        let leaving = self.claims.iter().filter(|claim| !claim.is_requested);
        let names = leaving.flat_map(|claim| claim.recorded.iter().map(move |name| (claim, name)));
        names
            .filter(|(claim, name)| is_advertised(claim, name) && awaits_successor(work, claim, name))
            .map(|(_, name)| name.clone())
            .collect()
    }

    fn withdrawal(&self, work: &Pass<'_>, advertised: &BTreeSet<String>, name: &str) -> Withdrawal {
        let (now, routes) = (work.observed.now, self.former_routes(name));
        if advertised.contains(name) || !advertised.is_disjoint(&routes) {
            return Withdrawal::Configured;
        }
        let silent = |replica: &ObservedReplica| replica.pod.as_deref().is_none_or(|pod| readiness::long_unready(pod, now));
        let by_route = |replica: &ObservedReplica| replica.state.as_ref().is_some_and(|state| !state.routes.is_disjoint(&routes));
        let leads = |replica: &ObservedReplica| replica.advertises(name) || by_route(replica);
        if work.observed.replicas.values().all(|replica| !leads(replica) || silent(replica)) {
            return Withdrawal::Done;
        }
        let since = self.before.leaving.get(name).and_then(|since| Timestamp::from_second(*since).ok());
        Withdrawal::Claimed(since.map_or(Duration::ZERO, |since| elapsed(since, now)))
    }

    /// Since when no config names the leaving names that replicas claim or claimed, in seconds since 1970. A claim that ends and begins again
    /// gets no new time.
    pub(crate) fn record_leaving(&self, work: &Pass<'_>, gone: &BTreeSet<String>) -> BTreeMap<String, i64> {
        let advertised = advertised_by_pods(work);
        let is_claimed = |name: &&String| match self.withdrawal(work, &advertised, name) {
            Withdrawal::Claimed(_) => true,
            Withdrawal::Done => self.before.leaving.contains_key(*name),
            Withdrawal::Configured => false,
        };
        let claimed = self.leaving.difference(gone).filter(is_claimed);
        let (old, new): (Vec<_>, Vec<_>) = claimed.partition(|name| self.before.leaving.contains_key(*name));
        let since = |name: &String| self.before.leaving.get(name).copied().unwrap_or_else(|| work.observed.now.as_second());
        old.into_iter().chain(new).take(MAX_DEADLINES).map(|name| (name.clone(), since(name))).collect()
    }
}

fn awaits_successor(work: &Pass<'_>, claim: &IngressClaim<'_>, name: &str) -> bool {
    let rivals = work.observed.publish.rivals.get(name).map(Vec::as_slice).unwrap_or_default();
    // Without Tailscale Services each group serves it at its own address.
    let waits = |rival: &NameConflict| !rival.serving && (rival.is_proxy() || !lacks_services(work));
    if let Some(deleted) = &claim.object.metadata().deletion_timestamp {
        let is_recent = elapsed(deleted.0, work.observed.now) < SUCCESSOR_DEADLINE;
        return is_recent && !rivals.is_empty() && rivals.iter().all(waits);
    }
    let (rules, group) = (&work.observed.assignment, work.observed.key.group_name());
    let is_assigned = claim.assignment.group().is_some_and(|assigned| assigned != group) || rules.has_own_proxy(claim.object);
    // A workload that refuses it is no rival.
    let mut own = rivals.iter().filter(|rival| rival.claimant == claim.claimant);
    is_assigned && own.all(waits)
}

/// Reports that a name is removed although a replica claims that it advertises it.
fn claimed(work: &mut PlanPart<'_>, name: &str, since: Duration) {
    let message = format!(
        "A replica reports that it still advertises {name}, {} s after its config stopped naming it. The name is removed nevertheless: delete \
         the Pod if it does not stop.",
        since.as_secs()
    );
    work.warn_workload("TailscaleServiceStillAdvertised", message);
}

/// Every name with a record.
pub(super) fn recorded(work: &Pass<'_>, before: &IngressConfigMap) -> BTreeSet<String> {
    let advertised = advertised_names(work);
    let secrets = group_certificates(work, before).filter_map(|(dns, ..)| dns.split_once('.')).map(|(label, _)| service_name(label));
    let (group, cluster) = (work.observed.owning_group(), &work.observed.settings.cluster);
    let listed = work.observed.publish.listed.iter().flat_map(|listed| of_group(listed.services.values(), cluster, group));
    before.names().into_iter().chain(advertised).chain(secrets).chain(listed.map(str::to_owned)).collect()
}

/// Names and routes in the configs of replicas with a Pod.
fn advertised_by_pods(work: &Pass<'_>) -> BTreeSet<String> {
    let there = work.observed.replicas.values().filter(|replica| replica.pod.is_some());
    let configs = there.filter_map(|replica| replica.config.as_ref());
    configs.flat_map(|config| config.advertises().chain(config.routes()).map(str::to_owned)).collect()
}

/// Whether this cluster no longer owns a part of a Tailscale Service; plans the necessary requests.
fn released(work: &mut PlanPart<'_>, listed: Option<&ServiceList>, name: &str) -> bool {
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
            let (why, waited) = (why.clone(), work.observed.deletion_deadline_passed());
            if waited {
                left_behind(work, name, &why);
            }
            return waited;
        }
    }
    let action = ControlAction::ReleaseService { name: name.to_owned() };
    let denial = work.observed.denied.get(&action.what()).filter(|denial| work.deletion_timed_out(denial)).map(|denial| denial.why.clone());
    if let Some(why) = denial {
        left_behind(work, name, &why);
        return true;
    }
    let Some(listed) = listed else { return false };
    let (found, cluster) = (listed.services.get(name), &work.observed.settings.cluster);
    if found.is_some_and(|found| is_of_another_group(found, cluster, work.observed.key.group_name())) {
        return true;
    }
    if release(found, cluster, work.observed.owning_group()) == Release::Nothing {
        return true;
    }
    work.plan.control.push(action);
    false
}

fn left_behind(work: &mut PlanPart<'_>, name: &str, why: &str) {
    let message =
        format!("The control plane still has Tailscale Service {name}: remove it there, or its part of this cluster. It was not, as {why}");
    work.warn_workload("TailscaleServiceOrphaned", message);
}

/// Certificates of a group, each with its DNS name: of the names in its config, and those that only its label records. One of an object
/// with a proxy of its own is never the group's, whatever its name, nor is one of a name in another tailnet.
pub(crate) fn group_certificates<'a>(
    work: &Pass<'a>,
    before: &IngressConfigMap,
) -> impl Iterator<Item = (&'a str, &'a ObjectRef, &'a Arc<Value>)> {
    let pass = *work;
    // Users name hosts with own certificates.
    let hosts = before.routes.values().flat_map(|site| &site.hosts).filter(|(_, host)| host.issue);
    let hosts: BTreeSet<&str> = hosts.map(|(name, _)| name.as_str()).collect();
    let devices = work.observed.replicas.values().filter_map(|replica| replica.device());
    let domains: BTreeSet<&str> = devices.filter_map(|device| device.domain.as_deref()).collect();
    let is_name = move |dns: &str| {
        let parts = dns.split_once('.').filter(|(label, _)| before.origins.contains_key(&service_name(label)));
        parts.is_some_and(|(_, domain)| domains.contains(domain) || hosts.contains(dns))
    };
    let is_ours = move |object: &ObjectRef, secret: &Value| {
        let recorded = pass.observed.publish.recorded_certificates.contains_key(secret["metadata"]["uid"].as_str().unwrap_or_default());
        let has_origin = domain_of(secret).is_some_and(&is_name);
        let is_labelled = secret["metadata"]["labels"][names::PROXY_GROUP] == *pass.observed.key.group_name();
        (is_labelled || (has_origin && !recorded)) && pass.ownership(object, secret) != Ownership::Foreign
    };
    let all = pass.observed.of(Kind::Secret).filter(move |(object, secret)| is_ours(object, secret));
    all.filter_map(|(object, secret)| Some((domain_of(secret)?, object, secret)))
}

/// Certificate Secrets of names that are no longer requested.
pub(crate) fn gone_certificates<'a>(
    work: &Pass<'a>,
    before: &IngressConfigMap,
    gone: &BTreeSet<String>,
) -> impl Iterator<Item = (&'a ObjectRef, &'a Arc<Value>)> {
    let rivals = &work.observed.publish.rivals;
    let ends = work.observed.ends_since().is_some();
    let goes = move |dns: &str| {
        let name = dns.split_once('.').map(|(label, _)| service_name(label));
        // A proxy takes over a certificate as long as the group exists.
        let is_free = |rivals: &Vec<NameConflict>| rivals.iter().all(|rival| ends && rival.is_proxy());
        name.is_some_and(|name| gone.contains(&name) && rivals.get(&name).is_none_or(is_free))
    };
    group_certificates(work, before).filter(move |(dns, ..)| goes(dns)).map(|(_, object, secret)| (object, secret))
}

/// Deletes certificates of names that are no longer requested, and the Roles that the Tailscale operator created for them.
fn certificates(work: &mut PlanPart<'_>, owner: &Owner, before: &IngressConfigMap, gone: &BTreeSet<String>) {
    let secrets: Vec<_> = gone_certificates(work, before, gone).collect();
    for (object, secret) in secrets {
        for kind in [Kind::RoleBinding, Kind::Role] {
            let object = ObjectRef::new(kind, &owner.namespace, object.name.clone());
            if let Some(existing) = work.owned(&object) {
                work.plan.delete.push(deletion(&object, existing));
            }
        }
        work.plan.delete.push(deletion(object, secret));
    }
}

/// Withdraws everything of a group that is being deleted. Returns whether nothing is left.
pub(crate) fn end<'a>(pass: &Pass<'a>) -> (PlanPart<'a>, bool) {
    let mut part = pass.part();
    let work = &mut part;
    let before = pass.owned(&ingress_config_ref(pass.owner)).map(|config| IngressConfigMap::read(config)).unwrap_or_default();
    let names = recorded(work, &before);
    let pods = work.observed.replicas.values().any(|replica| replica.pod.is_some());
    let mut remaining = pods;
    if !pods && !names.is_empty() {
        let listed = listed(work);
        let gone = names.iter().filter(|name| released(work, listed, name)).cloned().collect();
        remaining = gone != names;
        certificates(work, pass.owner, &before, &gone);
    }
    report_unserved(work, &before, !remaining, "is being deleted: name another group.");
    (part, !remaining)
}

/// Reports the fault to objects of a missing group, and to objects that could not be assigned to any.
pub(crate) fn orphans<'a>(pass: &Pass<'a>, fault: &str) -> PlanPart<'a> {
    let mut part = pass.part();
    report_unserved(&mut part, &IngressConfigMap::default(), true, fault);
    part
}

/// Reports the fault to objects of a group of another type.
pub(crate) fn wrong_type<'a>(pass: &Pass<'a>, memory: &Memory, fault: &str) -> PlanPart<'a> {
    let (observed, group) = (pass.observed, pass.observed.key.group_name());
    // Remembered Services are valid egress Services.
    let mut others = observed.services.values().filter(|service| memory.served(service).is_none());
    let is_requested = others.any(|service| observed.assignment.published(service).group() == Some(group));
    if is_requested || !observed.publish.ingresses.is_empty() { orphans(pass, fault) } else { pass.part() }
}

/// Reports that nothing is advertised, and removes finalizers once that is true.
fn report_unserved(work: &mut PlanPart<'_>, before: &IngressConfigMap, done: bool, fault: &str) {
    for claim in claims(work.observed, before) {
        if claim.ours {
            let message = || claim.assignment.message(work.observed.key.group_name(), fault);
            let unusable = || Rejection::new(reason::PROXY_GROUP_NOT_READY, message());
            let refused = claim.is_requested.then(|| claim.fault().unwrap_or_else(unusable));
            let quiet = matches!(claim.object, Parent::Ingress(_)) && !done && has_address(&balancer_of(claim.object));
            let refused = refused.as_ref().filter(|_| !quiet);
            if let Some(Rejection { reason, message }) = refused {
                work.lasting(subject(&claim.claimant), reason, message.clone());
            }
            let remains = !done || claim.is_foreign || work.observed.publish.served_by_others.contains(&claim.claimant);
            unserved(work, &claim, refused, remains);
        }
    }
}

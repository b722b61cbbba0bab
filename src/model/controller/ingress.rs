//! Plans what a group of type `ingress` advertises: one name in the tailnet for each Ingress or Service.
//!
//! Order for a new name: config entry and Tailscale Service, then advertising by the replicas. For a removed name: replicas stop
//! advertising and confirm it, then the Tailscale Service, the config entry, the certificate and the finalizer are removed. Records are
//! in the config and on the replicas; annotations are requests only.

pub mod advertise;
pub mod api_server;
pub mod capacity;
pub mod certificate_orders;
pub mod certificates;
pub mod claims;
pub mod config;
pub mod device_site;
pub mod domain;
pub mod faults;
pub mod items;
pub mod quota;
pub mod rejection;
pub mod report;
pub mod routes;
pub mod service_state;
pub mod share;
pub mod slice_rights;
pub mod spec;
pub mod standalone_certificate;
pub mod summary;
pub mod supported;
pub mod teardown;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::api::condition::reason;
use crate::model::controller::ingress::advertise::advertised_names;
use crate::model::controller::ingress::certificates::expiries;
use crate::model::controller::ingress::claims::{IngressClaim, contest, name_conflict, read};
use crate::model::controller::ingress::domain::{node_sites, suffix, unconfirmed};
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::quota::Limits;
use crate::model::controller::ingress::rejection::{CONFIG_FULL, Rejection};
use crate::model::controller::ingress::service_state::{HANDOVER_POLL_INTERVAL, listed, service_state};
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget, service_name};
use crate::model::controller::ingress::teardown::recorded;
use crate::model::controller::key::Publisher;
use crate::model::controller::workload::objects::ingress::ingress_config_ref;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::provision::POLL_INTERVAL;

/// Maximum repetitions for objects that find no room in the config.
const MAX_AWARDS: usize = 4;

/// Computes the names to advertise and their state. Plans no writes yet. An object that finds no room leaves its name to the next one.
pub(crate) fn plan<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>) -> (IngressPlan<'a>, PlanPart<'a>) {
    if let Some(request) = shape.spec.api_server {
        return api_server::plan_api_server(pass, shape, request);
    }
    let mut without_room = BTreeMap::new();
    let mut planned = award(pass, shape, &without_room);
    for _ in 0..MAX_AWARDS {
        let plan = &planned.0;
        let refused =
            plan.refused.iter().filter(|(claimant, refused)| refused.reason == CONFIG_FULL && !without_room.contains_key(*claimant));
        let refused: BTreeMap<_, _> = refused.map(|(claimant, refused)| (claimant.clone(), refused.clone())).collect();
        let labels: BTreeSet<&str> =
            plan.claims.iter().filter(|claim| refused.contains_key(&claim.claimant)).map(|claim| claim.label.as_str()).collect();
        let is_next =
            |claim: &IngressClaim<'_>| claim.is_requested && labels.contains(&*claim.label) && !refused.contains_key(&claim.claimant);
        if !plan.claims.iter().any(is_next) {
            break;
        }
        without_room.extend(refused);
        planned = award(pass, shape, &without_room);
    }
    planned
}

/// Gives each name to one object, except to those without room.
fn award<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>, without_room: &BTreeMap<Publisher, Rejection>) -> (IngressPlan<'a>, PlanPart<'a>) {
    let mut part = pass.part();
    let work = &mut part;
    let mut plan = IngressPlan::empty(pass, shape);
    let Some(suffix) = suffix(work) else {
        plan.wait(work);
        return (plan, part);
    };
    let wanted = plan.claims.iter().any(|claim| claim.is_requested);
    // If the config is lost, the control plane's records remain.
    let leaves = !plan.before.origins.is_empty() || work.owned(&ingress_config_ref(&shape.owner)).is_none();
    plan.advertised = advertised_names(work);
    let listed = if wanted || leaves { listed(work) } else { plan.listed };
    let mut limits = Limits::of(work, &plan);
    let nodes = node_sites(pass);
    let mut taken: BTreeSet<IpAddr> = plan.before.mappings.values().flat_map(routes::addresses).collect();
    let mut order: Vec<_> = plan.claims.iter().filter(|claim| claim.is_requested).collect();
    order.sort_by_key(|claim| claim.rank());
    for claim in order {
        let name = service_name(&claim.label);
        let room = without_room.get(&claim.claimant).map_or(Ok(()), |refused| Err(refused.clone()));
        let item = room.and_then(|()| plan.admit(work, shape, claim, (&suffix, nodes, &limits))).and_then(|(spec, joins)| {
            // A new leader assumes the replicas' configs are right until the control plane responds.
            let state = match &spec.target {
                PublishTarget::Site(_) if nodes => ServiceState::Unsupported,
                PublishTarget::Whole(whole) if nodes => {
                    ServiceState::ByRoute(routes::allot(shape, plan.before.mappings.get(&name), whole, &mut taken)?)
                }
                _ => service_state(work, shape, (listed, &plan.advertised), (&name, &claim.claimant), &spec, joins),
            };
            let item = Item { claimant: claim.claimant.clone(), dns: format!("{}.{suffix}", spec.label), spec, state };
            if !plan.recorded(&name) {
                limits.count(work, shape, &item);
            }
            Ok(item)
        });
        match item {
            Ok(item) => drop(plan.items.insert(name, item)),
            Err(refused) => {
                if refused.reason == reason::NAME_CONFLICT {
                    // The end of the other object's record enqueues nothing of this one.
                    work.again(POLL_INTERVAL);
                }
                // The last valid config stays, but for a name that an older object of another group has as well.
                let is_lost = |recorded: &String| refused.reason == reason::NAME_CONFLICT && *recorded == name;
                plan.unchanged.extend(claim.recorded.iter().filter(|recorded| !is_lost(recorded)).cloned());
                plan.refused.insert(claim.claimant.clone(), refused);
            }
        }
    }
    let awaited = plan.awaited(work);
    if !awaited.is_empty() {
        work.again(HANDOVER_POLL_INTERVAL);
    }
    plan.unchanged.extend(awaited);
    plan.keep_served_names();
    plan.unchanged.retain(|name| !plan.items.contains_key(name));
    let planned = |name: &String| plan.items.contains_key(name) || plan.unchanged.contains(name);
    plan.leaving = recorded(work, &plan.before).into_iter().filter(|name| !planned(name)).collect();
    capacity::settle(pass, &mut plan, nodes, !shape.stock());
    (plan, part)
}

impl<'a> IngressPlan<'a> {
    /// The request of an object, and whether its name may be shared with other clusters. Rejects a name that another object has.
    fn admit(
        &self,
        work: &mut PlanPart<'_>,
        shape: &RenderContext<'_>,
        claim: &IngressClaim<'_>,
        (suffix, nodes, limits): (&str, bool, &Limits),
    ) -> Result<(PublishSpec, bool), Rejection> {
        claim.fault().map_or(Ok(()), Err)?;
        let name = service_name(&claim.label);
        match self.items.get(&name) {
            Some(item) => return Err(Rejection::new(reason::NAME_CONFLICT, name_conflict(&(&item.claimant).into(), &claim.label))),
            None => contest(work.observed, claim)?,
        }
        let spec = read(work.observed, claim, (suffix, !nodes), None)?;
        supported::fits(work, shape, &spec)?;
        let joins = quota::admit(self, claim, shape, &spec)?;
        if !self.recorded(&name) {
            let certificate = matches!(spec.target, PublishTarget::Site(_)).then(|| format!("{}.{suffix}", spec.label));
            limits.admit(work, shape, &self.tenancy, (claim, certificate.as_deref().filter(|_| !nodes)))?;
        }
        Ok((spec, joins))
    }

    /// Leaves requested names unchanged while the tailnet's domain is unknown: no replica has joined, or the group has none. Others are
    /// withdrawn nevertheless.
    fn wait(&mut self, work: &mut PlanPart<'a>) {
        let awaited = self.awaited(work);
        let former = self.claims.iter().filter(|claim| !claim.is_requested).flat_map(|claim| &claim.recorded);
        self.leaving = former.filter(|name| !awaited.contains(name)).cloned().collect();
        self.unchanged = recorded(work, &self.before).into_iter().filter(|name| !self.leaving.contains(name)).collect();
        if !self.leaving.is_empty() {
            self.listed = listed(work);
        }
        let message = unconfirmed(work);
        for claim in self.claims.iter().filter(|claim| claim.is_requested) {
            let waits = || Rejection::new(reason::PROXY_GROUP_NOT_READY, message.clone());
            self.refused.insert(claim.claimant.clone(), claim.fault().unwrap_or_else(waits));
        }
    }

    /// Rejects requests for names that stay served for their former claimants, whose new requests are rejected.
    fn keep_served_names(&mut self) {
        let former = |name: &String| self.claims.iter().find(|claim| claim.recorded.contains(name)).map(|claim| claim.claimant.clone());
        let served = self.unchanged.iter().filter_map(|name| Some((name.clone(), former(name)?))).collect::<Vec<_>>();
        for (name, former) in served {
            if let Some(item) = self.items.get(&name).filter(|item| item.claimant != former) {
                let rejection = Rejection::new(reason::NAME_CONFLICT, name_conflict(&(&former).into(), &item.spec.label));
                self.refused.insert(item.claimant.clone(), rejection);
                self.items.remove(&name);
            }
        }
    }

    /// Plans all objects and status updates.
    pub(crate) fn plan_writes<'b>(self, pass: &Pass<'b>, shape: &RenderContext<'_>) -> PlanPart<'b> {
        let mut part = pass.part();
        let (work, owner) = (&mut part, pass.owner);
        self.secrets(work, shape);
        let gone = self.withdraw(work, shape);
        self.approve(work, shape, &gone);
        let mut config = config::config(&self, &gone);
        config.orders = self.record_orders(work, &gone);
        config.leaving = self.record_leaving(work, &gone);
        match shape.spec.api_server {
            Some(_) if owner.key.is_standalone() => self.report_device(work, shape),
            Some(_) => self.report_api_server(work, shape),
            None => self.report(work, shape, &gone),
        }
        expiries(work);
        work.want(config.manifest(owner, !shape.stock()));
        part
    }
}

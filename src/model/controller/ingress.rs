//! Plans what a group of type `ingress` advertises: one name in the tailnet for each Ingress or Service.
//!
//! Order for a new name: config entry and Tailscale Service, then advertising by the replicas. For a removed name: replicas stop
//! advertising and confirm it, then the Tailscale Service, the config entry, the certificate and the finalizer are removed. Records are
//! in the config and on the replicas; annotations are requests only.

pub mod advertise;
pub mod capacity;
pub mod certificate_orders;
pub mod claims;
pub mod config;
pub mod device_site;
pub mod quota;
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
use std::time::Duration;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::ingress::claims::{IngressClaim, claims, contest, name_conflict, read};
use crate::model::controller::ingress::quota::Limits;
use crate::model::controller::ingress::service_state::{listed, standing};
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget, service_name};
use crate::model::controller::ingress::standalone_certificate::{RecordedOwner, recorded_owner};
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::tenancy::Tenancy;
use crate::model::controller::workload::actions::device_of_replica;
use crate::model::controller::workload::objects::certificate::{
    account, accounts, accounts_ref, certificate, certificate_ref, is_certificate_of,
};
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, ingress_config_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::{ServiceList, UserCertificate};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Ownership, Pass, deletion, going};
use crate::model::controller::workload::provision::POLL_INTERVAL;
use crate::model::controller::workload::vip_service::{OwnershipRefusal, of_group};
use crate::model::ingress::cert_orders::Validity;

/// Interval of checks whether the other side of a move serves.
pub(crate) const HANDOVER_POLL: Duration = Duration::from_secs(5);
/// Requeue delay after the Secret of a former owner was deleted.
pub(crate) const DELETED_REQUEUE: Duration = Duration::from_secs(1);
/// Requeue delay while another owner uses the Secret.
const IN_USE_REQUEUE: Duration = Duration::from_secs(30);

/// Everything that a group advertises or has advertised.
#[derive(Debug)]
pub(crate) struct IngressPlan<'a> {
    before: IngressConfigMap,
    /// Objects that request a name, or did.
    claims: Vec<IngressClaim<'a>>,
    /// Advertised names, by Tailscale Service.
    items: BTreeMap<String, Item>,
    /// Names that stay unchanged, because their objects are invalid now.
    unchanged: BTreeSet<String>,
    /// Recorded names that are no longer requested.
    leaving: BTreeSet<String>,
    refused: BTreeMap<Publisher, Rejection>,
    /// Tailscale Services of the tailnet, if known.
    listed: Option<&'a ServiceList>,
    /// Names in the config of any replica.
    advertised: BTreeSet<String>,
    tenancy: Tenancy,
}

/// One advertised name.
#[derive(Debug)]
pub(crate) struct Item {
    claimant: Publisher,
    wish: PublishSpec,
    dns: String,
    standing: ServiceState,
}

/// State of a name's Tailscale Service.
#[derive(Debug)]
pub(crate) enum ServiceState {
    /// Not read yet: the current state stays.
    Unknown,
    Owned(Vec<String>),
    Creating,
    /// Owned by another party.
    Conflict(OwnershipRefusal),
    /// The control plane has no Tailscale Services: these addresses are advertised as routes.
    ByRoute(Vec<String>),
    /// The control plane has no Tailscale Services.
    Unsupported,
    /// The name is that of the device of a standalone proxy.
    Device,
}

/// Why an object is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    reason: &'static str,
    message: String,
}

/// Computes the names to advertise and their state. Plans no writes yet.
pub(crate) fn plan<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>) -> (IngressPlan<'a>, PlanPart<'a>) {
    let mut part = pass.part();
    let work = &mut part;
    let mut plan = IngressPlan::empty(pass, shape);
    let Some(suffix) = suffix(work) else {
        plan.wait(pass);
        return (plan, part);
    };
    let wanted = plan.claims.iter().any(|claim| claim.asks);
    // If the config is lost, the control plane's records remain.
    let leaves = !plan.before.origins.is_empty() || work.owned(&ingress_config_ref(&shape.owner)).is_none();
    plan.advertised = advertised_names(work);
    let listed = if wanted || leaves { listed(work) } else { plan.listed };
    let mut limits = Limits::of(work, &plan);
    let nodes = node_sites(pass);
    let mut taken: BTreeSet<IpAddr> = plan.before.mappings.values().flat_map(routes::addresses).collect();
    let mut order: Vec<_> = plan.claims.iter().filter(|claim| claim.asks).collect();
    order.sort_by_key(|claim| claim.rank());
    for claim in order {
        let name = service_name(&claim.label);
        let is_free = || match plan.items.get(&name) {
            Some(item) => Err(Rejection::new(reason::NAME_CONFLICT, name_conflict(&item.claimant, &claim.label))),
            None => contest(work.observed, claim),
        };
        let valid = claim.fault().map_or(Ok(()), Err).and_then(|()| is_free());
        let spec = valid.and_then(|()| read(work.observed, claim, &suffix, None)).and_then(|wish| {
            supported::fits(work, shape, &wish)?;
            let joins = quota::admit(&plan.tenancy, claim, &shape.owner.name, &wish)?;
            if !plan.recorded(&name) {
                let certificate = matches!(wish.target, PublishTarget::Site(_)).then(|| format!("{}.{suffix}", wish.label));
                limits.admit(work, shape, &plan.tenancy, (claim, certificate.as_deref().filter(|_| !nodes)))?;
            }
            Ok((wish, joins))
        });
        let item = spec.and_then(|(wish, joins)| {
            // A new leader assumes the replicas' configs are right until the control plane responds.
            let standing = match &wish.target {
                PublishTarget::Site(_) if nodes => ServiceState::Unsupported,
                PublishTarget::Whole(whole) if nodes => {
                    ServiceState::ByRoute(routes::allot(shape, plan.before.mappings.get(&name), whole, &mut taken)?)
                }
                _ => standing(work, shape, (listed, &plan.advertised), &name, &wish, joins),
            };
            let item = Item { claimant: claim.claimant.clone(), dns: format!("{}.{suffix}", wish.label), wish, standing };
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
                // The last valid config stays.
                plan.unchanged.extend(claim.recorded.iter().cloned());
                plan.refused.insert(claim.claimant.clone(), refused);
            }
        }
    }
    plan.keep_served_names();
    plan.unchanged.retain(|name| !plan.items.contains_key(name));
    let planned = |name: &String| plan.items.contains_key(name) || plan.unchanged.contains(name);
    plan.leaving = recorded(work, &plan.before).into_iter().filter(|name| !planned(name)).collect();
    capacity::settle(&mut plan, !shape.stock());
    (plan, part)
}

/// Whether the control plane has no Tailscale Services, as far as known.
fn lacks_services(work: &Pass<'_>) -> bool {
    work.observed.tailnet.has_services() == Some(false)
}

/// Whether the control plane has no Tailscale Services. While unknown, the replicas' configs decide.
pub(crate) fn node_sites(work: &Pass<'_>) -> bool {
    let owner = work.owner;
    if let Some(has_services) = work.observed.tailnet.has_services() {
        return !has_services;
    }
    let set = work.owned(&ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.name.clone()));
    let containers = set.and_then(|set| set.pointer("/spec/template/spec/containers")?.as_array());
    let env = containers.into_iter().flatten().flat_map(|container| container["env"].as_array().into_iter().flatten());
    env.into_iter().any(|variable| variable["name"] == "TAILYARD_SERVE_ON_NODE_ADDRESS" && variable["value"] == "true")
}

/// Why the domain of the tailnet is not known yet.
fn unconfirmed(work: &Pass<'_>) -> String {
    let denied = work.observed.replicas.keys().find_map(|ordinal| work.observed.denied.get(&device_of_replica(*ordinal)));
    let joined = "It is published when the first replica of its ProxyGroup has joined the tailnet.";
    denied.map_or_else(|| joined.to_owned(), |denial| format!("{joined} The control plane does not confirm its device: {}", denial.why))
}

/// Domain of the tailnet, from the replicas' device records.
fn suffix(work: &Pass<'_>) -> Option<String> {
    work.observed.replicas.values().find_map(|replica| replica.device()?.domain.clone())
}

/// Names in the config of any replica.
fn advertised_names(work: &Pass<'_>) -> BTreeSet<String> {
    let configs = work.observed.replicas.values().filter_map(|replica| replica.config.as_ref());
    configs.flat_map(|config| config.advertises().map(str::to_owned)).collect()
}

/// Every name with a record.
fn recorded(work: &Pass<'_>, before: &IngressConfigMap) -> BTreeSet<String> {
    let advertised = advertised_names(work);
    let secrets = teardown::group_certificates(work).filter_map(|(dns, ..)| dns.split_once('.')).map(|(label, _)| service_name(label));
    let (group, cluster) = (work.observed.key.group_name(), &work.observed.settings.cluster);
    let listed = work.observed.publish.listed.iter().flat_map(|listed| of_group(listed.services.values(), cluster, group));
    before.names().into_iter().chain(advertised).chain(secrets).chain(listed.map(str::to_owned)).collect()
}

impl<'a> IngressPlan<'a> {
    /// Requests and records, before any decision.
    fn empty(work: &Pass<'a>, shape: &RenderContext<'_>) -> Self {
        let before = work.owned(&ingress_config_ref(&shape.owner)).map(|object| IngressConfigMap::read(object)).unwrap_or_default();
        let claims = claims(work.observed, &before);
        Self {
            before,
            claims,
            items: BTreeMap::new(),
            unchanged: BTreeSet::new(),
            leaving: BTreeSet::new(),
            refused: BTreeMap::new(),
            listed: work.observed.publish.listed.as_deref(),
            advertised: BTreeSet::new(),
            tenancy: Tenancy::of(shape.spec.tenants, shape.settings.tenancy, &work.observed.namespaces),
        }
    }

    /// Leaves everything unchanged while the tailnet's domain is unknown.
    fn wait(&mut self, work: &Pass<'_>) {
        self.unchanged = recorded(work, &self.before);
        let message = unconfirmed(work);
        for claim in self.claims.iter().filter(|claim| claim.asks) {
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
                let rejection = Rejection::new(reason::NAME_CONFLICT, name_conflict(&former, &item.wish.label));
                self.refused.insert(item.claimant.clone(), rejection);
                self.items.remove(&name);
            }
        }
    }

    /// Certificate Secrets that the replicas read and write: those of names that the group has or gets. Never a Secret of another
    /// owner, whatever its name.
    pub(crate) fn certificates(&self, work: &Pass<'_>) -> BTreeSet<String> {
        let owner = work.owner;
        let parent = owner.key.publisher();
        let issued: BTreeMap<&str, &Publisher> = self.issued().collect();
        let hosts = self.before.routes.values().flat_map(|site| &site.hosts).filter(|(_, host)| host.issue).map(|(dns, _)| dns.as_str());
        let permitted = |dns: &&str| {
            let object = certificate_ref(owner, dns);
            let Some(existing) = work.owned(&object) else { return true };
            let uid = || existing["metadata"]["uid"].as_str().unwrap_or_default();
            let recorded = match issued.get(dns).copied().or(parent.as_ref()) {
                Some(claimant) => matches!(recorded_owner(work, existing, claimant), RecordedOwner::Unrecorded | RecordedOwner::Same),
                None => !work.observed.publish.recorded_certificates.contains_key(uid()),
            };
            let is_moving = || issued.get(dns).is_some_and(|claimant| is_certificate_of(existing, claimant));
            recorded && (!work.foreign(&object) || is_moving())
        };
        issued.keys().copied().chain(hosts).filter(permitted).map(str::to_owned).collect()
    }

    /// Secrets of user-provided certificates in use.
    pub(crate) fn own_certificates(&self) -> BTreeSet<String> {
        let new = self.items.values().filter_map(|item| if let PublishTarget::Site(site) = &item.wish.target { Some(site) } else { None });
        let hosts = new.chain(self.before.routes.values()).flat_map(|site| site.hosts.values());
        hosts.filter(|host| !host.issue).map(|host| host.secret.clone()).collect()
    }

    /// Names whose certificates the group orders.
    fn issued(&self) -> impl Iterator<Item = (&str, &Publisher)> {
        let ours = |(name, item): &(&String, &Item)| match item.standing {
            ServiceState::Conflict(_) | ServiceState::ByRoute(_) | ServiceState::Unsupported => false,
            ServiceState::Unknown => self.recorded(name),
            ServiceState::Owned(_) | ServiceState::Creating | ServiceState::Device => true,
        };
        let sites = self.items.iter().filter(|(_, item)| matches!(item.wish.target, PublishTarget::Site(_)));
        sites.filter(ours).map(|(_, item)| (item.dns.as_str(), &item.claimant))
    }

    /// Whether the config has an entry for a name.
    fn recorded(&self, name: &str) -> bool {
        let before = &self.before;
        before.origins.contains_key(name) || before.serve.contains_key(name) || before.mappings.contains_key(name)
    }

    /// Plans all objects and status updates.
    pub(crate) fn carry<'b>(self, pass: &Pass<'b>, shape: &RenderContext<'_>) -> PlanPart<'b> {
        let mut part = pass.part();
        let (work, owner) = (&mut part, pass.owner);
        self.secrets(work, shape);
        let gone = self.withdraw(work, shape);
        self.approve(work, shape, &gone);
        let mut config = config::config(&self, &gone);
        config.orders = self.record_orders(work, &gone);
        config.leaving = self.record_leaving(work, &gone);
        self.report(work, shape, &gone);
        expiries(work);
        work.want(config.manifest(owner, !shape.stock()));
        part
    }

    /// Plans the Secrets of certificates and of the ACME account.
    fn secrets(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>) {
        let owner = &shape.owner;
        match shape.account() {
            Some(account) if account.shared => self.shared_account(work, owner),
            Some(_) => drop(work.want(account(owner))),
            None => {}
        }
        for (dns, claimant) in self.issued() {
            let object = certificate_ref(owner, dns);
            let existing = work.owned(&object).map(|object| &**object);
            let recorded = existing.map(|existing| (existing, recorded_owner(work, existing, claimant)));
            match recorded {
                Some((existing, RecordedOwner::Former)) => {
                    work.plan.delete.push(deletion(&object, existing));
                    work.again(DELETED_REQUEUE);
                    continue;
                }
                Some((_, RecordedOwner::Other)) => {
                    work.again(IN_USE_REQUEUE);
                    continue;
                }
                _ => {}
            }
            let is_same = matches!(recorded, Some((_, RecordedOwner::Same)));
            let secret = certificate(owner, dns, claimant, existing.zip(work.observed.certificates.get(dns).copied()));
            // It stays with its object when that moves between a group and a proxy of its own.
            match existing.map(|existing| (work.ownership(&object, existing), is_same || is_certificate_of(existing, claimant))) {
                Some((Ownership::Foreign, true)) => work.plan.apply.push(secret),
                _ => drop(work.want(secret)),
            }
        }
    }

    fn shared_account(&self, work: &mut PlanPart<'_>, owner: &Owner) {
        match work.owned(&accounts_ref(&owner.namespace)) {
            None => work.plan.apply.push(accounts(&owner.namespace)),
            Some(object) if going(object) && !self.items.is_empty() => {
                let message = format!(
                    "Secret {} is being deleted: its finalizer keeps the account by which certificates are renewed. Recreate it from a copy.",
                    names::ACCOUNTS
                );
                work.fault(reason::PROXY_GROUP_CREATION_FAILED, message);
            }
            Some(_) => {}
        }
    }
}

/// Requeues for the next certificate expiry or expiry warning.
fn expiries(work: &mut PlanPart<'_>) {
    let now = work.observed.now;
    let next = |own: &UserCertificate| if let UserCertificate::Leaf(leaf) = own { Validity::of(&leaf.certificate, now).1 } else { None };
    let ends = work.observed.certificates.values().filter_map(|content| content.valid_until).filter(|until| *until > now);
    if let Some(next) = work.observed.publish.certificates.values().filter_map(next).chain(ends).min() {
        work.again(next.duration_since(now).unsigned_abs());
    }
}

impl Rejection {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }

    /// Whether only a change of the object or of its group ends it.
    fn is_final(&self) -> bool {
        ![reason::NAME_CONFLICT, reason::PROXY_GROUP_NOT_READY].contains(&self.reason)
    }
}

/// Subject of Events about an object.
fn subject(claimant: &Publisher) -> WorkloadKey {
    claimant.into()
}

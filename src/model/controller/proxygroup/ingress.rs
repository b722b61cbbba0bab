//! What a group of type ingress publishes: one name in the tailnet for each Ingress or Service, in the order of safety.
//!
//! A name is written into the config and its Tailscale Service is made before a replica is told to advertise it. It is told to
//! stop first of all: then it is waited for until it has, the Tailscale Service goes, then the config's entry, the certificate,
//! and the finalizer. What is recorded is in the config and on the replicas; annotations say only what is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::actions::device_of_replica;
use super::work::{Whose, Work, whose};
use super::{Listed, Subject, TailnetState};
use crate::api::names;
use crate::model::controller::ingress_spec::{Claimant, Own, Refusal, Target, Wish, of_group, service_name};
use crate::model::controller::objects::{
    IngressConfig, Kind, ObjectRef, Owner, Shape, account, accounts, accounts_ref, certificate, certificate_ref, domain_of, filled,
    ingress_config_ref, valid_until,
};
use crate::model::controller::tenancy::Tenancy;
use crate::model::ingress::cert_orders::Validity;

use claims::{Claim, claims, contest, firsts, read};
use service_state::{listed, standing};

mod advertise;
mod claims;
mod config;
mod endpoints;
mod quota;
mod report;
mod room;
mod routes;
mod service_state;
mod summary;
mod supported;
mod teardown;

pub use advertise::serves;
pub use summary::{Certified, Published, Summary};
pub(super) use teardown::{elsewhere, end, orphans};

/// Everything that a group publishes, or did.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    /// The config as it is.
    before: IngressConfig,
    /// Everybody who asks, or did.
    claims: Vec<Claim<'a>>,
    /// What is published, by the name of the Tailscale Service.
    items: BTreeMap<String, Item>,
    /// Names that stay as they are, as what asks for them cannot be read now.
    held: BTreeSet<String>,
    /// Names that are recorded and that nobody wants any more.
    leaving: BTreeSet<String>,
    /// What is to be told to those who ask and get nothing.
    refused: BTreeMap<Claimant, Refused>,
    /// The Tailscale Services of the tailnet, as far as they are known.
    listed: Option<&'a Listed>,
    /// The names that some replica is told to advertise.
    told: BTreeSet<String>,
    /// Who may have what of the group.
    tenancy: Tenancy,
}

/// One name that is published.
#[derive(Debug)]
pub(super) struct Item {
    claimant: Claimant,
    wish: Wish,
    /// Its name in the tailnet.
    dns: String,
    standing: Standing,
}

/// How the Tailscale Service of a name stands.
#[derive(Debug)]
enum Standing {
    /// Nobody has looked yet: what is there goes on.
    Unknown,
    /// It is there and ours, with these addresses.
    Ours(Vec<String>),
    /// It is being made.
    Made,
    /// It is somebody else's.
    Theirs(Refusal),
    /// The control plane has none, and these addresses stand for it, as routes.
    Routed(Vec<String>),
    /// The control plane has none.
    Never,
}

/// Why somebody gets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    reason: &'static str,
    message: String,
}

/// Finds out what is to be published and how it stands. Nothing is written yet.
pub(super) fn plan<'a>(work: &mut Work<'a>, shape: &Shape<'_>) -> Plan<'a> {
    let mut plan = Plan::empty(work, shape);
    let Some(suffix) = suffix(work) else {
        plan.wait(work);
        return plan;
    };
    let wanted = plan.claims.iter().any(|claim| claim.asks);
    // A config that got lost leaves what the control plane has on record.
    let leaves = !plan.before.origins.is_empty() || work.owned(&ingress_config_ref(&shape.owner)).is_none();
    plan.told = told(work);
    let listed = if wanted || leaves { listed(work) } else { plan.listed };
    let firsts = firsts(work.observed, &plan.claims);
    let nodes = node_sites(work, &shape.owner);
    let mut taken: BTreeSet<IpAddr> = plan.before.mappings.values().flat_map(routes::addresses).collect();
    for claim in plan.claims.iter().filter(|claim| claim.asks) {
        let name = service_name(&claim.label);
        let asked = contest(&firsts, claim).and_then(|()| read(work.observed, claim, &suffix)).and_then(|wish| {
            supported::fits(work, shape, &wish)?;
            let joins = quota::admit(&plan.tenancy, claim, &shape.owner.group, &wish)?;
            Ok((wish, joins))
        });
        let stood = asked.and_then(|(wish, joins)| {
            // A new leader takes it to be as the replicas were told, until the control plane has answered.
            let standing = match &wish.target {
                Target::Site(_) if nodes => Standing::Never,
                Target::Whole(whole) if nodes => {
                    Standing::Routed(routes::allot(shape, plan.before.mappings.get(&name), whole, &mut taken)?)
                }
                _ => standing(work, shape, (listed, &plan.told), &name, &wish, joins),
            };
            Ok((wish, standing))
        });
        match stood {
            Ok((wish, standing)) => {
                let dns = format!("{}.{suffix}", wish.label);
                plan.items.insert(name, Item { claimant: claim.claimant.clone(), wish, dns, standing });
            }
            Err(refused) => {
                // The last good one goes on.
                if refused.reason != TAKEN {
                    plan.held.extend(claim.recorded.iter().cloned());
                }
                plan.refused.insert(claim.claimant.clone(), refused);
            }
        }
    }
    plan.held.retain(|name| !plan.items.contains_key(name));
    let kept = |name: &String| plan.items.contains_key(name) || plan.held.contains(name);
    plan.leaving = recorded(work, &plan.before).into_iter().filter(|name| !kept(name)).collect();
    quota::limit(work, shape, &mut plan);
    room::settle(&mut plan, !shape.stock());
    plan
}

/// Whether the control plane is known to have no Tailscale Services.
fn lacks_services(work: &Work<'_>) -> bool {
    matches!(&work.observed.tailnet, TailnetState::Ready { capabilities, .. } if !capabilities.services)
}

/// Whether the control plane has no Tailscale Services. While nobody can say it is as the replicas were told.
pub(super) fn node_sites(work: &Work<'_>, owner: &Owner) -> bool {
    if let TailnetState::Ready { capabilities, .. } = &work.observed.tailnet {
        return !capabilities.services;
    }
    let set = work.owned(&ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.group.clone()));
    let containers = set.and_then(|set| set.pointer("/spec/template/spec/containers")?.as_array());
    let env = containers.into_iter().flatten().flat_map(|container| container["env"].as_array().into_iter().flatten());
    env.into_iter().any(|variable| variable["name"] == "TAILYARD_SERVE_ON_NODE_ADDRESS" && variable["value"] == "true")
}

/// The reason of those whose name somebody else has.
const TAKEN: &str = "NameConflict";

/// Why the domain of the tailnet is not known yet.
fn unconfirmed(work: &Work<'_>) -> String {
    let denied = work.observed.replicas.keys().find_map(|ordinal| work.observed.denied.get(&device_of_replica(*ordinal)));
    let joined = "It is published when the first replica of its ProxyGroup has joined the tailnet.";
    denied.map_or_else(|| joined.to_owned(), |denial| format!("{joined} The control plane does not confirm its device: {}", denial.why))
}

/// The domain of the tailnet: that of the replicas' recorded devices.
fn suffix(work: &Work<'_>) -> Option<String> {
    work.observed.replicas.values().find_map(|replica| replica.device()?.domain.clone())
}

/// The names that some replica is told to advertise.
fn told(work: &Work<'_>) -> BTreeSet<String> {
    let told = work.observed.replicas.values().filter_map(|replica| replica.config.as_ref());
    told.flat_map(|config| config.advertises().map(str::to_owned)).collect()
}

/// Every name of which there is anything.
fn recorded(work: &Work<'_>, before: &IngressConfig) -> BTreeSet<String> {
    let told = told(work);
    let secrets = work.observed.of(Kind::Secret).filter_map(|(_, held)| domain_of(held));
    let secrets = secrets.filter_map(|dns| dns.split_once('.')).map(|(label, _)| service_name(label));
    let (group, cluster) = (&*work.observed.name, &work.observed.settings.cluster);
    let listed = work.observed.publish.listed.iter().flat_map(|listed| of_group(listed.services.values(), cluster, group));
    before.names().into_iter().chain(told).chain(secrets).chain(listed.map(str::to_owned)).collect()
}

impl<'a> Plan<'a> {
    /// Who asks and what there is, before anything is judged.
    fn empty(work: &Work<'a>, shape: &Shape<'_>) -> Self {
        let before = work.owned(&ingress_config_ref(&shape.owner)).map(|held| IngressConfig::read(held)).unwrap_or_default();
        let claims = claims(work.observed, &before);
        Self {
            before,
            claims,
            items: BTreeMap::new(),
            held: BTreeSet::new(),
            leaving: BTreeSet::new(),
            refused: BTreeMap::new(),
            listed: work.observed.publish.listed.as_deref(),
            told: BTreeSet::new(),
            tenancy: Tenancy::of(shape.spec, shape.settings.tenancy, &work.observed.namespaces),
        }
    }

    /// Leaves everything as it is, as the domain of the tailnet is not known yet.
    fn wait(&mut self, work: &Work<'_>) {
        self.held = recorded(work, &self.before);
        let message = unconfirmed(work);
        for claim in self.claims.iter().filter(|claim| claim.asks) {
            self.refused.insert(claim.claimant.clone(), Refused::new("ProxyGroupNotReady", message.clone()));
        }
    }

    /// The Secrets of certificates that the replicas read and write: those that carry this group's labels, and those that are yet to
    /// be made. A Secret of somebody else is never among them, whatever its name.
    pub(super) fn certificates(&self, work: &Work<'_>, owner: &Owner) -> BTreeSet<String> {
        let ours =
            |held: &Value| whose(owner, held) == Whose::Ours && held["metadata"]["labels"][names::PROXY_GROUP] == owner.group.as_str();
        let there = work.observed.of(Kind::Secret).filter(|(_, held)| ours(held)).filter_map(|(_, held)| domain_of(held));
        let absent = |dns: &&str| work.owned(&certificate_ref(owner, dns)).is_none();
        there.chain(self.issued().map(|(dns, _)| dns).filter(absent)).map(str::to_owned).collect()
    }

    /// The Secrets of users' own certificates that are shown.
    pub(super) fn own_certificates(&self) -> BTreeSet<String> {
        let new = self.items.values().filter_map(|item| if let Target::Site(site) = &item.wish.target { Some(site) } else { None });
        let hosts = new.chain(self.before.routes.values()).flat_map(|site| site.hosts.values());
        hosts.filter(|host| !host.issue).map(|host| host.secret.clone()).collect()
    }

    /// The names whose certificates the group orders.
    fn issued(&self) -> impl Iterator<Item = (&str, &Claimant)> {
        let ours = |(name, item): &(&String, &Item)| match item.standing {
            Standing::Theirs(_) | Standing::Routed(_) | Standing::Never => false,
            Standing::Unknown => self.recorded(name),
            Standing::Ours(_) | Standing::Made => true,
        };
        let sites = self.items.iter().filter(|(_, item)| matches!(item.wish.target, Target::Site(_)));
        sites.filter(ours).map(|(_, item)| (item.dns.as_str(), &item.claimant))
    }

    /// Whether the config has anything of a name.
    fn recorded(&self, name: &str) -> bool {
        let before = &self.before;
        before.origins.contains_key(name) || before.serve.contains_key(name) || before.mappings.contains_key(name)
    }

    /// Wants everything that is published, and tells those who asked.
    pub(super) fn carry(self, work: &mut Work<'_>, shape: &Shape<'_>) {
        let owner = &shape.owner;
        self.secrets(work, shape);
        let gone = self.withdraw(work, shape);
        self.approve(work, shape, &gone);
        let mut config = config::config(&self, &gone);
        config.orders = self.record_orders(work, &gone);
        config.told = self.tell(work, shape, &gone);
        expiries(work);
        work.want(owner, config.manifest(owner, !shape.stock()));
    }

    /// Wants the Secrets of certificates, and that of the account which they are ordered with.
    fn secrets(&self, work: &mut Work<'_>, shape: &Shape<'_>) {
        let owner = &shape.owner;
        match shape.account() {
            Some(account) if account.shared => self.shared_account(work, owner),
            Some(_) => drop(work.want(owner, account(owner))),
            None => {}
        }
        for (dns, claimant) in self.issued() {
            let held = work.owned(&certificate_ref(owner, dns)).map(|held| &**held);
            work.want(owner, certificate(owner, dns, claimant, held));
        }
    }

    fn shared_account(&self, work: &mut Work<'_>, owner: &Owner) {
        match work.owned(&accounts_ref(&owner.namespace)) {
            None => work.pass.apply.push(accounts(&owner.namespace)),
            Some(held) if super::work::going(held) && !self.items.is_empty() => {
                let message = format!(
                    "Secret {} is being deleted: its finalizer keeps the account by which certificates are renewed. Recreate it from a copy.",
                    names::ACCOUNTS
                );
                work.fault("ProxyGroupCreationFailed", message);
            }
            Some(_) => {}
        }
    }

    /// Whether there is a certificate for a name.
    fn certified(work: &Work<'_>, owner: &Owner, dns: &str) -> bool {
        work.owned(&certificate_ref(owner, dns)).is_some_and(|held| filled(held))
    }
}

/// Looks again when a certificate ends, or one of a user's own comes nearer to its end.
fn expiries(work: &mut Work<'_>) {
    let now = work.observed.now;
    let next = |own: &Own| if let Own::Leaf(leaf) = own { Validity::of(&leaf.certificate, now).1 } else { None };
    let ends = work.observed.of(Kind::Secret).filter_map(|(_, held)| valid_until(held)).filter(|until| *until > now);
    if let Some(next) = work.observed.publish.certificates.values().filter_map(next).chain(ends).min() {
        work.again(next.duration_since(now).unsigned_abs());
    }
}

impl Refused {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }
}

/// What is told about.
fn subject(claimant: &Claimant) -> Subject {
    claimant.into()
}

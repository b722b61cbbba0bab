//! Conflicts between objects of a group: host names, Funnel ports, and shares of its config.
//!
//! Mostly the older object wins. The younger is rejected alone, with a message.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::api::routes::{Listener, Site};
use crate::model::controller::ingress::claims::{IngressClaim, origin};
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::share::share;
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget};
use crate::model::controller::key::Publisher;
use crate::model::controller::policy::age::Age;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::pass::Pass;
use crate::model::ingress::cert_orders::Validity;

/// Resolves all conflicts. `nodes`: sites share the replicas' own addresses. `packs`: the config is compressed if it is too large.
pub(crate) fn settle(work: &Pass<'_>, plan: &mut IngressPlan<'_>, nodes: bool, packs: bool) {
    let order = by_age(plan);
    share_internet_ports(plan, &order);
    share(plan, order, packs);
    // Last: an object that is not served takes no host.
    share_hosts(work, plan, nodes);
}

/// Advertised names, oldest objects first.
pub(crate) fn by_age(plan: &IngressPlan<'_>) -> Vec<String> {
    let ages: BTreeMap<&Publisher, Age<'_>> = plan.claims.iter().map(|claim| (&claim.claimant, claim.age())).collect();
    let mut order: Vec<_> = plan.items.iter().map(|(name, item)| (ages.get(&item.claimant), &item.claimant, name)).collect();
    order.sort();
    order.into_iter().map(|(_, _, name)| name.clone()).collect()
}

/// Assigns each host name to one object, as replicas have one certificate for a name: to the one whose tailnet name it is, else to one with a
/// valid certificate for it, of these to the one that has it already, else to the oldest. Sites with addresses of their own may share a host
/// and its Secret. On shared ones a host without certificate is not taken from a wildcard with one.
fn share_hosts(work: &Pass<'_>, plan: &mut IngressPlan<'_>, nodes: bool) {
    let lacks_certificate = |host: &str, secret: &str| match work.observed.publish.certificates.get(secret) {
        Some(UserCertificate::Leaf(leaf)) => {
            let validity = Validity::of(&leaf.certificate, work.observed.now).0;
            leaf.is_for(host).is_err() || matches!(validity, Validity::Early(_) | Validity::Ended(_))
        }
        own => own != Some(&UserCertificate::Unread),
    };
    let mut requests = Vec::new();
    for (name, claim) in claimants(plan) {
        let age = claim.map_or((i64::MAX, ""), IngressClaim::age);
        let hosts = plan.site(name).into_iter().flat_map(|site| &site.hosts).filter(|(_, how)| !(how.issue && nodes));
        let is_owner = plan.before.origins.get(name).is_none_or(|of| claim.is_none_or(|claim| *of == origin(&claim.claimant)));
        let served = plan.before.routes.get(name).filter(|_| is_owner);
        requests.extend(hosts.map(|(host, how)| {
            // With another Secret it is the same object's still.
            let is_served = served.and_then(|site| site.hosts.get(host)).is_some_and(|before| before.issue == how.issue);
            let rank = (!how.issue, plan.leaving.contains(name), lacks_certificate(host, &how.secret), !is_served);
            let request = HostRequest { host: host.clone(), secret: how.secret.clone(), name: name.clone() };
            (rank, (age.0, age.1.to_owned()), claim.map(|claim| claim.claimant.clone()), request)
        }));
    }
    requests.sort();
    let (mut owners, mut certified) = (BTreeMap::new(), BTreeMap::<String, Option<Publisher>>::new());
    for ((_, _, lacks_certificate, _), _, claimant, HostRequest { host, secret, name }) in requests {
        let wildcard = host.split_once('.').map(|(_, parent)| format!("*.{parent}")).filter(|_| nodes && lacks_certificate);
        if let Some(owner) = wildcard.and_then(|wildcard| certified.get(&wildcard)).filter(|owner| **owner != claimant) {
            plan.withhold(&name, &host, owner.as_ref());
            continue;
        }
        match owners.entry(host) {
            Entry::Vacant(free) => {
                if !lacks_certificate {
                    certified.insert(free.key().clone(), claimant.clone());
                }
                free.insert((secret, claimant));
            }
            Entry::Occupied(owner) if !nodes && owner.get().0 == secret => {}
            Entry::Occupied(owner) => plan.withhold(&name, owner.key(), owner.get().1.as_ref()),
        }
    }
}

/// Every name in the config, with the object that it is or was given to.
fn claimants<'p, 'a>(plan: &'p IngressPlan<'a>) -> BTreeMap<&'p String, Option<&'p IngressClaim<'a>>> {
    let claims: BTreeMap<_, _> = plan.claims.iter().map(|claim| (&claim.claimant, claim)).collect();
    let recorded: BTreeMap<_, _> = plan.claims.iter().flat_map(|claim| claim.recorded.iter().map(move |name| (name, claim))).collect();
    let items = plan.items.iter().map(|(name, item)| (name, claims.get(&item.claimant).copied()));
    let before = plan.unchanged.iter().chain(&plan.leaving).map(|name| (name, recorded.get(name).copied()));
    before.chain(items).collect()
}

/// A host name that a site names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct HostRequest {
    host: String,
    secret: String,
    /// Name of the site.
    name: String,
}

impl IngressPlan<'_> {
    /// The site of a name in the config ([`super::config::config`]).
    fn site(&self, name: &String) -> Option<&Site> {
        match self.items.get(name) {
            None => self.before.routes.get(name),
            Some(Item { state: ServiceState::Conflict(_), .. }) => self.before.routes.get(name).filter(|_| self.advertised.contains(name)),
            Some(Item { state: ServiceState::Unknown, .. }) if !self.recorded(name) => None,
            Some(Item { spec: PublishSpec { target: PublishTarget::Site(site), .. }, .. }) => Some(site),
            Some(_) => None,
        }
    }

    /// Removes a host from the site of a name, as another object has it.
    fn withhold(&mut self, name: &String, host: &String, owner: Option<&Publisher>) {
        let item = self.items.get_mut(name);
        let remove = |site: &mut Site| {
            site.hosts.remove(host);
            site.routes.retain(|route| route.host != *host);
        };
        self.before.routes.get_mut(name).map(remove);
        let Some(Item { spec, .. }) = item else { return };
        if let PublishTarget::Site(site) = &mut spec.target {
            remove(site);
        }
        spec.flaws.remove(host);
        let owner = owner.map_or_else(|| "another object".to_owned(), Publisher::to_string);
        spec.notes.add(|| format!("host {host} is not served: {owner} has it."));
    }
}

/// Assigns each Funnel port to one object.
fn share_internet_ports(plan: &mut IngressPlan<'_>, order: &[String]) {
    let mut owners: BTreeMap<u16, Publisher> = BTreeMap::new();
    for name in order {
        let Some(item) = plan.items.get_mut(name).filter(|item| !matches!(item.state, ServiceState::Unsupported)) else { continue };
        let PublishTarget::Site(site) = &mut item.spec.target else { continue };
        if !site.funnel {
            continue;
        }
        let is_https = |(port, listener): (&u16, &Listener)| (*listener == Listener::Https).then_some(*port);
        let ports: Vec<u16> = site.listeners.iter().filter_map(is_https).collect();
        if let Some((port, owner)) = ports.iter().find_map(|port| owners.get_key_value(port)) {
            site.funnel = false;
            item.spec.notes.add(|| {
                format!(
                    "It is not reached from the internet (Funnel): {owner} has port {port} of the ProxyGroup; publish this one by another."
                )
            });
            continue;
        }
        owners.extend(ports.into_iter().map(|port| (port, item.claimant.clone())));
    }
}

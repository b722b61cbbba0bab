//! Limits of each namespace in an ingress group: names, tags, number of names, certificates per week.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::ingress::capacity::by_age;
use crate::model::controller::ingress::claims::IngressClaim;
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget};
use crate::model::controller::ingress::{IngressPlan, Item, Rejection, ServiceState, teardown};
use crate::model::controller::policy::requests::tags;
use crate::model::controller::policy::tenancy::{Tenancy, TenancyScope};
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::certificate::{certificate_ref, domain_of};
use crate::model::controller::workload::objects::ingress::Ordered;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;

/// Period for counting orders: Let's Encrypt's limits are per week.
const WEEK: Duration = Duration::from_hours(7 * 24);
/// Maximum size of the record of deleted Secrets in bytes: about a thousand orders, beside the room of the config.
const ORDERS_ROOM: usize = 64 << 10;
/// JSON bytes of an order besides its DNS name, and of a namespace besides its name.
const ORDER_SIZE: usize = 20;

/// Whether the tenancy permits the name and tags of an object, or the group serves it already.
pub(crate) fn is_permitted(tenancy: &Tenancy, claim: &IngressClaim<'_>, group: &str) -> bool {
    let (namespace, scope) = (&claim.claimant.namespace, TenancyScope::Group(group));
    let tags = tags(claim.object.metadata());
    let allowed = tenancy.allowance(namespace, scope).and_then(|allowance| allowance.allows(namespace, scope, &claim.label, &tags));
    allowed.is_ok() || !claim.recorded.is_empty()
}

/// Checks a request against the tenancy; returns whether the name may be shared with other clusters.
pub(crate) fn admit(tenancy: &Tenancy, claim: &IngressClaim<'_>, group: &str, wish: &PublishSpec) -> Result<bool, Rejection> {
    let (namespace, scope) = (&claim.claimant.namespace, TenancyScope::Group(group));
    let funnel = matches!(&wish.target, PublishTarget::Site(site) if site.funnel);
    let allowed = tenancy.allowance(namespace, scope).and_then(|allowance| {
        allowance.allows(namespace, scope, &wish.label, &wish.tags)?;
        allowance.allows_funnel(namespace, scope, funnel)?;
        Ok(allowance.shares(&wish.label))
    });
    allowed.map_err(|why| Rejection::new(reason::NOT_ALLOWED, why))
}

/// Rejects new names beyond the limits of their namespaces; the oldest objects win.
pub(crate) fn limit(work: &mut PlanPart<'_>, shape: &RenderContext<'_>, plan: &mut IngressPlan<'_>) {
    if plan.items.keys().all(|name| plan.recorded(name)) {
        return;
    }
    let now = work.observed.now;
    let secrets = work.observed.of(Kind::Secret).map(|(_, object)| &**object);
    let (mut used, mut orders) = (names_used(plan), recent(&plan.before.orders, secrets, now));
    for name in by_age(plan).iter().filter(|name| !plan.recorded(name)).collect::<Vec<_>>() {
        let item = &plan.items[name];
        let namespace = item.claimant.namespace.clone();
        let group = &shape.owner.name;
        let Ok(allowance) = plan.tenancy.allowance(&namespace, TenancyScope::Group(group)) else { continue };
        let (names, ordered) = (used.entry(namespace.clone()).or_default(), orders.entry(namespace.clone()).or_default());
        let orders_one = issues(item) && work.owned(&certificate_ref(&shape.owner, &item.dns)).is_none();
        let refused = if *names >= allowance.max_names {
            let most = allowance.max_names;
            Some((reason::TOO_MANY_NAMES, format!("has {names} of {most} names in ProxyGroup {group}"), "maxNames"))
        } else if orders_one && ordered.len() >= allowance.max_certificates {
            let next = ordered.iter().next().map_or(WEEK, |(created, _)| rest(*created, now));
            work.again(next);
            let what = format!("ordered {} certificates by ProxyGroup {group} within a week", ordered.len());
            Some(("TooManyCertificates", what, "maxCertificatesPerWeek"))
        } else {
            *names += 1;
            if orders_one {
                ordered.insert((now.as_second(), item.dns.clone()));
            }
            None
        };
        if let Some((reason, what, field)) = refused {
            let message = format!(
                "Namespace {namespace} {what}: wait, remove some, or have an administrator raise {field} in spec.tailyard.tenants."
            );
            plan.refused.insert(item.claimant.clone(), Rejection::new(reason, message));
            plan.items.remove(name);
        }
    }
}

impl IngressPlan<'_> {
    /// Record of orders whose Secrets are deleted, including deletions of this pass.
    pub(crate) fn record_orders(&self, work: &Pass<'_>, gone: &BTreeSet<String>) -> BTreeMap<String, Ordered> {
        let going = teardown::gone_certificates(work, gone).map(|(_, object)| &**object);
        let mut orders = recent(&self.before.orders, going, work.observed.now);
        for (namespace, orders) in &mut orders {
            // More than the limit change nothing.
            let allowance = self.tenancy.allowance(namespace, TenancyScope::Group(work.observed.key.group_name()));
            let most = allowance.map_or(usize::MAX, |allowance| allowance.max_certificates);
            while orders.len() > most {
                orders.pop_first();
            }
        }
        orders.retain(|_, orders| !orders.is_empty());
        forget_excess(&mut orders);
        orders
    }
}

/// Drops orders that have no room: the oldest of the namespace with most of them.
fn forget_excess(orders: &mut BTreeMap<String, Ordered>) {
    let size = |dns: &str| dns.len() + ORDER_SIZE;
    let names = orders.iter().flat_map(|(namespace, orders)| [namespace].into_iter().chain(orders.iter().map(|(_, dns)| dns)));
    let mut used: usize = names.map(|name| size(name)).sum();
    while used > ORDERS_ROOM {
        let Some((_, most)) = orders.iter_mut().max_by_key(|(_, orders)| orders.len()) else { return };
        match most.pop_first() {
            Some((_, dns)) => used -= size(&dns),
            None => return,
        }
    }
}

/// Whether the group orders a certificate for a new name, or will once the control plane responds: rejections stay in force while it is
/// unavailable.
fn issues(item: &Item) -> bool {
    matches!(item.wish.target, PublishTarget::Site(_))
        && matches!(item.standing, ServiceState::Owned(_) | ServiceState::Creating | ServiceState::Unknown)
}

/// Number of names of each namespace, including names being withdrawn.
fn names_used(plan: &IngressPlan<'_>) -> BTreeMap<String, usize> {
    let mut used = BTreeMap::new();
    for origin in plan.before.origins.values() {
        *used.entry(origin.namespace.clone()).or_default() += 1;
    }
    used
}

/// Orders within the period, from the record and these Secrets, by namespace.
fn recent<'a>(record: &BTreeMap<String, Ordered>, secrets: impl Iterator<Item = &'a Value>, now: Timestamp) -> BTreeMap<String, Ordered> {
    let recorded = record.iter().flat_map(|(namespace, orders)| orders.iter().map(move |order| (namespace.clone(), order.clone())));
    let young = recorded.chain(secrets.filter_map(order)).filter(|(_, (created, _))| rest(*created, now) > Duration::ZERO);
    young.fold(BTreeMap::new(), |mut orders, (namespace, order)| {
        orders.entry(namespace).or_insert_with(Ordered::new).insert(order);
        orders
    })
}

/// Namespace, time and DNS name of a Secret's order.
fn order(secret: &Value) -> Option<(String, (i64, String))> {
    let namespace = secret["metadata"]["labels"][names::PARENT_NAMESPACE].as_str()?.to_owned();
    let created: Timestamp = secret["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
    Some((namespace, (created.as_second(), domain_of(secret)?.to_owned())))
}

/// Time until an order no longer counts.
fn rest(created: i64, now: Timestamp) -> Duration {
    let age = u64::try_from(now.as_second().saturating_sub(created)).unwrap_or(0);
    WEEK.saturating_sub(Duration::from_secs(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_of_one_namespace_drops_no_order_of_another() {
        let ordered = |count: i64| -> Ordered { (0..count).map(|at| (at, format!("name-{at}.{}.ts.net", "x".repeat(40)))).collect() };
        let mut orders = BTreeMap::from([("a".to_owned(), ordered(50)), ("b".to_owned(), ordered(5_000))]);
        forget_excess(&mut orders);
        assert_eq!(orders["a"], ordered(50));
        assert!(serde_json::to_vec(&orders).is_ok_and(|text| text.len() <= ORDERS_ROOM), "{}", orders["b"].len());
        assert!(orders["b"].len() > 500 && orders["b"].last() == ordered(5_000).last(), "the oldest go first");
    }
}

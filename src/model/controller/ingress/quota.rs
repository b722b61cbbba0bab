//! Limits of each namespace in an ingress group: names, tags, number of names, certificates per week.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::condition::reason;
use crate::model::controller::ingress::claims::IngressClaim;
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget, service_name};
use crate::model::controller::ingress::standalone_certificate::{RecordedOwner, recorded_owner};
use crate::model::controller::ingress::teardown;
use crate::model::controller::key::Publisher;
use crate::model::controller::policy::tenancy::{Tenancy, TenancyScope, restricted_tags};
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::certificate::{certificate_ref, domain_of};
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, Ordered};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;

/// Period for counting orders: Let's Encrypt's limits are per week.
const ORDER_WINDOW: Duration = Duration::from_hours(7 * 24);
/// Maximum size of the record of deleted Secrets in bytes: about a thousand orders, beside the room of the config.
const ORDERS_ROOM: usize = 64 << 10;
/// JSON bytes of an order besides its DNS name, and of a namespace besides its name.
const ORDER_SIZE: usize = 20;

/// Checks a request against the tenancy; returns whether the name may be shared with other clusters. Every object may have the group's own
/// tags, the default ones, those that its name has already and, where there are no tenants, the permitted ones.
pub(crate) fn admit(
    plan: &IngressPlan<'_>,
    claim: &IngressClaim<'_>,
    shape: &RenderContext<'_>,
    spec: &PublishSpec,
) -> Result<bool, Rejection> {
    let (namespace, scope) = (&claim.claimant.namespace, TenancyScope::Group(&shape.owner.name));
    let own: [&[String]; 2] = [&shape.spec.tags, &shape.settings.tags];
    let mut tags = restricted_tags(spec.tags.clone(), &own, shape.spec.tenants, &shape.settings.permitted_tags);
    tags.retain(|tag| !plan.has_tag(claim, tag));
    let funnel = matches!(&spec.target, PublishTarget::Site(site) if site.funnel);
    let allowed = plan.tenancy.allowance(namespace, scope).and_then(|allowance| {
        allowance.allows(namespace, scope, &spec.label, &tags)?;
        allowance.allows_funnel(namespace, scope, funnel)?;
        Ok(allowance.shares(&spec.label))
    });
    allowed.map_err(|why| Rejection::new(reason::NOT_ALLOWED, why))
}

/// Names and recent orders of each namespace, including the new names of this pass so far.
pub(crate) struct Limits {
    names: BTreeMap<String, usize>,
    orders: BTreeMap<String, Ordered>,
}

impl Limits {
    pub(crate) fn of(work: &Pass<'_>, plan: &IngressPlan<'_>) -> Self {
        let mut names = BTreeMap::new();
        // Names being withdrawn count.
        for origin in plan.before.origins.values() {
            *names.entry(origin.namespace.clone()).or_default() += 1;
        }
        let secrets = work.observed.of(Kind::Secret).map(|(_, object)| &**object);
        Self { names, orders: recent(&plan.before, secrets, work.observed.now) }
    }

    /// Rejects a new name beyond the limits of its namespace. `certificate`: the DNS name of the certificate that it needs.
    pub(crate) fn admit(
        &self,
        work: &mut PlanPart<'_>,
        shape: &RenderContext<'_>,
        tenancy: &Tenancy,
        (claim, certificate): (&IngressClaim<'_>, Option<&str>),
    ) -> Result<(), Rejection> {
        let (namespace, group, now) = (&claim.claimant.namespace, &shape.owner.name, work.observed.now);
        let Ok(allowance) = tenancy.allowance(namespace, TenancyScope::Group(group)) else { return Ok(()) };
        let names = self.names.get(namespace).copied().unwrap_or_default();
        let ordered = self.orders.get(namespace).map(Ordered::len).unwrap_or_default();
        let orders_one = certificate.is_some_and(|dns| is_new(work, shape, dns, &claim.claimant));
        let (what, reason, field) = if names >= allowance.max_names.saturating_add(claim.recorded.len()) {
            let most = allowance.max_names;
            (format!("has {names} of {most} names in ProxyGroup {group}"), reason::TOO_MANY_NAMES, "maxNames")
        } else if orders_one && ordered >= allowance.max_certificates {
            let first = self.orders.get(namespace).and_then(|ordered| ordered.first());
            work.again(first.map_or(ORDER_WINDOW, |(created, _)| rest(*created, now)));
            let what = format!("ordered {ordered} certificates by ProxyGroup {group} within a week");
            (what, "TooManyCertificates", "maxCertificatesPerWeek")
        } else {
            return Ok(());
        };
        let place = allowance.limit_field();
        let message = format!("Namespace {namespace} {what}: wait, remove some, or have an administrator raise {field} in {place}.");
        Err(Rejection::new(reason, message))
    }

    /// Counts a new name, and the certificate that the group orders for it, or will once the control plane responds.
    pub(crate) fn count(&mut self, work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) {
        let namespace = &item.claimant.namespace;
        *self.names.entry(namespace.clone()).or_default() += 1;
        if issues(item) && is_new(work, shape, &item.dns, &item.claimant) {
            self.orders.entry(namespace.clone()).or_default().insert((work.observed.now.as_second(), item.dns.clone()));
        }
    }
}

/// Whether a certificate has no Secret yet, or that of a former owner, which is deleted.
fn is_new(work: &Pass<'_>, shape: &RenderContext<'_>, dns: &str, claimant: &Publisher) -> bool {
    let existing = work.owned(&certificate_ref(&shape.owner, dns));
    existing.is_none_or(|secret| recorded_owner(work, secret, claimant) == RecordedOwner::Former)
}

impl IngressPlan<'_> {
    /// Record of orders whose Secrets are deleted, including deletions of this pass.
    pub(crate) fn record_orders(&self, work: &Pass<'_>, gone: &BTreeSet<String>) -> BTreeMap<String, Ordered> {
        let withdrawn = teardown::gone_certificates(work, &self.before, gone).map(|(_, object)| &**object);
        let mut orders = recent(&self.before, withdrawn, work.observed.now);
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
    matches!(item.spec.target, PublishTarget::Site(_))
        && matches!(item.state, ServiceState::Owned(_) | ServiceState::Creating | ServiceState::Unknown)
}

/// Orders within the period, by namespace: from the record, and of these Secrets. A Pod may change the labels of the Secrets of its group,
/// so that the config names the namespace of each.
fn recent<'a>(before: &IngressConfigMap, secrets: impl Iterator<Item = &'a Value>, now: Timestamp) -> BTreeMap<String, Ordered> {
    let recorded = before.orders.iter().flat_map(|(namespace, orders)| orders.iter().map(move |order| (namespace.clone(), order.clone())));
    let existing = secrets.filter_map(|secret| {
        let dns = domain_of(secret)?;
        let origin = before.origins.get(&service_name(dns.split_once('.')?.0))?;
        let created: Timestamp = secret["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
        Some((origin.namespace.clone(), (created.as_second(), dns.to_owned())))
    });
    let young = recorded.chain(existing).filter(|(_, (created, _))| rest(*created, now) > Duration::ZERO);
    young.fold(BTreeMap::new(), |mut orders, (namespace, order)| {
        orders.entry(namespace).or_insert_with(Ordered::new).insert(order);
        orders
    })
}

/// Time until an order no longer counts.
fn rest(created: i64, now: Timestamp) -> Duration {
    let age = u64::try_from(now.as_second().saturating_sub(created)).unwrap_or(0);
    ORDER_WINDOW.saturating_sub(Duration::from_secs(age))
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

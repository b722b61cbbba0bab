//! Shares of namespaces in everything that a group's ingress config grows: its `ConfigMap`, the Role of its replicas and their configs.
//!
//! Each has 1 MiB at the API server. The record of orders has room of its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::routes::Site;
use crate::model::controller::ingress::config::put;
use crate::model::controller::ingress::items::IngressPlan;
use crate::model::controller::ingress::rejection::{CONFIG_FULL, Rejection};
use crate::model::controller::ingress::spec::PublishTarget;
use crate::model::controller::policy::budget::{NamespaceBudget, share_of};
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::ROOM as CONFIG_ROOM;

/// Upper bound of a route's size in bytes besides path and host, counted twice for the serve config.
const ROUTE_SIZE: usize = 1 << 10;
/// Maximum JSON bytes for one byte of text.
const ESCAPED: usize = 6;
/// JSON bytes of a list item besides its text.
const LIST_ITEM: usize = 3;
/// Two routes in a replica's config, each an address with prefix length.
const ROUTES: usize = 2 * (44 + LIST_ITEM);

/// Bytes in the `ConfigMap`, in the Role, and in each replica's config.
type Footprint = [usize; 3];

/// Rejects objects beyond the shares of their namespaces. Existing entries stay; then the oldest come first.
pub(crate) fn share(plan: &mut IngressPlan<'_>, order: Vec<String>, packs: bool) {
    if upper_bound(plan) <= share_of(CONFIG_ROOM) {
        return;
    }
    let (recorded, new): (Vec<String>, Vec<String>) = order.into_iter().partition(|name| plan.recorded(name));
    let namespace = |name: &str| plan.before.origins.get(name).map_or("", |origin| origin.namespace.as_str());
    let mut budget = NamespaceBudget::new([CONFIG_ROOM; 3]);
    let mut sizes = BTreeMap::new();
    for name in plan.unchanged.iter().chain(&plan.leaving).chain(&recorded) {
        let mut before = IngressConfigMap::default();
        before.keep(name, &plan.before);
        let size = footprint(&before, name, packs);
        budget.keep(namespace(name), size);
        sizes.insert(name.clone(), (namespace(name).to_owned(), size));
    }
    for name in recorded.iter().chain(&new) {
        let item = &plan.items[name];
        let mut wanted = IngressConfigMap::default();
        put(&mut wanted, &plan.before, name, item);
        // A new Ingress has the certificate of its own name at once.
        let to = footprint(&wanted, name, packs);
        let of = &item.claimant.namespace;
        let accepted = match sizes.get(name) {
            Some((former, from)) if former == of => budget.replace(of, *from, to),
            // Another namespace takes the name over: both count.
            _ => budget.replace(of, [0; 3], to),
        };
        if accepted {
            continue;
        }
        let message = format!(
            "Namespace {of} uses its share of the ingress config of the ProxyGroup, which is three quarters of what others leave free: use \
             another ProxyGroup, or fewer and shorter paths."
        );
        if let Some(item) = plan.items.remove(name) {
            plan.refused.insert(item.claimant, Rejection::new(CONFIG_FULL, message));
        }
        if plan.recorded(name) {
            plan.unchanged.insert(name.clone());
        }
    }
}

/// Bytes of one name in each shared object.
fn footprint(config: &IngressConfigMap, name: &str, packs: bool) -> Footprint {
    let hosts = config.routes.values().flat_map(|site| &site.hosts);
    let secrets: BTreeSet<&str> = hosts.map(|(host, how)| if how.issue { host.as_str() } else { how.secret.as_str() }).collect();
    let role = secrets.iter().map(|secret| secret.len() + LIST_ITEM).sum();
    [config.size(packs), role, name.len() + LIST_ITEM + ROUTES]
}

/// Upper bound of each footprint of all names, without building them.
fn upper_bound(plan: &IngressPlan<'_>) -> usize {
    let site = |site: &Site| {
        let hosts: usize = site.hosts.keys().map(|host| ROUTE_SIZE + 2 * host.len()).sum();
        let routes = site.routes.iter().map(|route| ROUTE_SIZE + 2 * ESCAPED * (route.path.len() + route.host.len()));
        ROUTE_SIZE + hosts + routes.sum::<usize>()
    };
    let items = plan.items.values().map(|item| match &item.spec.target {
        PublishTarget::Site(wanted) => site(wanted),
        PublishTarget::Whole(_) => 2 * ROUTE_SIZE,
    });
    let unchanged = plan.unchanged.iter().chain(&plan.leaving).map(|name| plan.before.routes.get(name).map_or(2 * ROUTE_SIZE, site));
    items.chain(unchanged).sum()
}

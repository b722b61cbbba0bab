//! Selects Services for an egress config that has no room for all.
//!
//! Existing entries stay. Then come Services with a child, then the oldest, each within the share of its namespace
//! ([`NamespaceBudget`]). The others are rejected, use no resources, and are tried again in each pass.
//!
//! [`NamespaceBudget`]: crate::model::controller::policy::budget::NamespaceBudget

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::egress::EgressService;
use crate::model::controller::egress::claims::ServiceClaim;
use crate::model::controller::egress::memo::Entries;
use crate::model::controller::egress::services::{ServiceOutcome, ServingChild};
use crate::model::controller::policy::budget::share_of;
use crate::model::controller::workload::objects::services::EgressConfigMap;
use crate::model::controller::workload::objects::services::{ROOM as CONFIG_ROOM, entries_size};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::part::PlanPart;

/// Message for Services that do not fit.
const FULL: &str = "The room of this namespace in the egress config of the ProxyGroup is full: use another ProxyGroup.";
/// The same, if our image would have room.
const FULL_STOCK: &str = "The room of this namespace in the egress config of the ProxyGroup is full: use another ProxyGroup, or Tailyard's own image, whose \
     limit is higher.";

/// Whether entries must be selected: the config has no room for all, or new ones could exceed the share of their namespace.
pub(crate) fn is_short(config: &EgressConfigMap, stock: bool, adds: impl FnOnce() -> bool) -> bool {
    !config.fits(stock) || (config.used(stock) > share_of(CONFIG_ROOM) && adds())
}

/// An entry with its namespace.
type Wanted<'a> = (&'a str, Arc<str>, Arc<EgressService>);

/// Entries that fit, or `None` if all do; `before` are the existing ones, and `config` has all.
pub(crate) fn fitting(
    claims: &[ServiceClaim<'_>],
    before: &Entries,
    (entries, config): (&Entries, &EgressConfigMap),
    shape: &RenderContext<'_>,
) -> Option<Entries> {
    let mut order: Vec<_> = claims.iter().collect();
    order.sort_by_cached_key(|claim| (!before.contains_key(&claim.name), claim.object.is_none(), claim.age(), claim.key));
    let wanted = order.into_iter().filter_map(|claim| Some((claim.key.0, entries.get_key_value(&claim.name)?)));
    let wanted: Vec<Wanted<'_>> = wanted.map(|(namespace, (name, entry))| (namespace, Arc::clone(name), Arc::clone(entry))).collect();
    let wanted = within_shares(wanted, before, shape.stock());
    if wanted.len() == entries.len() && config.fits(shape.stock()) {
        return None;
    }
    let stay = wanted.iter().take_while(|(_, name, _)| before.contains_key(name)).count();
    let fits = |count: usize| EgressConfigMap::new(&shape.owner, &first(&wanted, count), shape.spec.replicas, 0).fits(shape.stock());
    Some(first(&wanted, most(stay, wanted.len(), fits)))
}

/// Entries within the shares of their namespaces: of each namespace the existing ones, then the first that its share permits.
fn within_shares<'a>(wanted: Vec<Wanted<'a>>, before: &Entries, plain: bool) -> Vec<Wanted<'a>> {
    let mut namespaces: BTreeMap<&str, Vec<Wanted<'_>>> = BTreeMap::new();
    for entry in &wanted {
        namespaces.entry(entry.0).or_default().push(entry.clone());
    }
    let existing = |own: &[Wanted<'_>]| own.iter().take_while(|(_, name, _)| before.contains_key(name)).count();
    let size = |own: &[Wanted<'_>], count: usize| entries_size(&first(own, count), plain);
    // What the others have is zero without others. Each size of a large config costs a compression.
    let has_others = namespaces.len() > 1;
    let before_size = |own: &[Wanted<'_>]| if has_others { size(own, existing(own)) } else { 0 };
    let mut order: Vec<_> = namespaces.into_iter().map(|(namespace, own)| (before_size(&own), namespace, own)).collect();
    // The smallest first: a namespace with much is the last to get more.
    order.sort_by_key(|(size, namespace, _)| (*size, *namespace));
    let mut used: usize = order.iter().map(|(size, ..)| size).sum();
    let mut accepted = BTreeSet::new();
    for (existing_size, _, own) in &order {
        let others = used - existing_size;
        let share = share_of(CONFIG_ROOM.saturating_sub(others));
        let mut own_size = *existing_size;
        let count = most(existing(own), own.len(), |count| {
            let size = size(own, count);
            let fits = size <= share;
            own_size = if fits { size } else { own_size };
            fits
        });
        used = others + own_size;
        accepted.extend(own.iter().take(count).map(|(_, name, _)| Arc::clone(name)));
    }
    wanted.into_iter().filter(|(_, name, _)| accepted.contains(name)).collect()
}

fn first(wanted: &[Wanted<'_>], count: usize) -> Entries {
    wanted.iter().take(count).map(|(_, name, entry)| (Arc::clone(name), Arc::clone(entry))).collect()
}

/// Largest number up to `all` that fits, at least `least`: doubles the step while it fits, then halves it.
fn most(mut least: usize, all: usize, mut fits: impl FnMut(usize) -> bool) -> usize {
    let (mut step, mut over) = (1, all + 1);
    while least < all && over > all {
        let next = all.min(least + step);
        if fits(next) {
            (least, step) = (next, 2 * step);
        } else {
            over = next;
        }
    }
    while over > least + 1 {
        let middle = least.midpoint(over);
        if fits(middle) {
            least = middle;
        } else {
            over = middle;
        }
    }
    least
}

/// Rejects Services that are not among these entries, and removes their planned objects.
pub(crate) fn refuse(
    work: &mut PlanPart<'_>,
    claims: &[ServiceClaim<'_>],
    entries: &Entries,
    outcomes: &mut [ServiceOutcome],
    stock: bool,
) {
    let mut taken_back = BTreeSet::new();
    for (_, outcome) in claims.iter().zip(outcomes).filter(|(claim, _)| !entries.contains_key(&claim.name)) {
        if let ServiceOutcome::Served(ServingChild { child, .. }) = outcome {
            taken_back.insert(child.object());
        }
        if let ServiceOutcome::Known | ServiceOutcome::Later | ServiceOutcome::Served(_) = outcome {
            *outcome = ServiceOutcome::Refused(if stock { FULL_STOCK } else { FULL }.to_owned());
        }
    }
    work.plan.apply.retain(|manifest| !taken_back.contains(&manifest.object));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_items_fill_the_room_and_existing_items_stay() {
        for room in 0..20 {
            for stay in 0..20 {
                assert_eq!(most(stay, 20, |count| count <= room), stay.max(room), "{room} {stay}");
            }
        }
        assert_eq!((most(3, 3, |_| true), most(3, 9, |_| true)), (3, 9));
    }
}

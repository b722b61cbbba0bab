//! Selects Services for an egress config that has no room for all.
//!
//! Existing entries stay. Then come Services with a child, then the oldest. The others are rejected, use no resources, and are tried
//! again in each pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::controller::egress::claims::{ServiceClaim, created};
use crate::model::controller::egress::memo::Entries;
use crate::model::controller::egress::services::{ServiceOutcome, ServingChild};
use crate::model::controller::workload::builder::GroupPass;
use crate::model::controller::workload::objects::services::EgressConfigMap;
use crate::model::controller::workload::objects::shape::RenderContext;

/// Message for Services that do not fit.
const FULL: &str = "The egress config of the ProxyGroup is full: use another ProxyGroup.";
/// The same, if our image would have room.
const FULL_STOCK: &str =
    "The egress config of the ProxyGroup is full: use another ProxyGroup, or Tailyard's own image, whose limit is higher.";

/// Entries that fit; `before` are the existing ones.
pub(crate) fn fitting(claims: &[ServiceClaim<'_>], before: &Entries, entries: &Entries, shape: &RenderContext<'_>) -> Entries {
    let mut order: Vec<_> = claims.iter().collect();
    order.sort_by_cached_key(|claim| (!before.contains_key(&claim.name), claim.object.is_none(), created(claim), claim.key));
    let wanted = order.into_iter().filter_map(|claim| entries.get_key_value(&claim.name));
    let wanted: Vec<_> = wanted.map(|(name, entry)| (Arc::clone(name), Arc::clone(entry))).collect();
    let stay = wanted.iter().take_while(|(name, _)| before.contains_key(name)).count();
    let first = |count: usize| -> Entries { wanted.iter().take(count).cloned().collect() };
    let fits = |count: usize| EgressConfigMap::new(&shape.owner, &first(count), shape.replicas, 0).fits(shape.stock());
    first(most(stay, wanted.len(), fits))
}

/// Largest number that fits: binary search between `least` and `over`.
fn most(mut least: usize, mut over: usize, fits: impl Fn(usize) -> bool) -> usize {
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
    work: &mut GroupPass<'_>,
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
    work.pass.apply.retain(|manifest| !taken_back.contains(&manifest.object));
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
    }
}

//! What each namespace may have of an egress group: which may use it, and for how many ports.

use std::collections::BTreeMap;

use super::claims::{Claim, Key, Role, created};
use crate::model::controller::tenancy::Tenancy;

/// Leaves the Services as they are whose namespace may not use the group: those that are served go on as they were.
pub(super) fn deny(claims: &mut [Claim<'_>], tenancy: &Tenancy, group: &str) {
    for claim in claims.iter_mut().filter(|claim| claim.role == Role::Serve && claim.known.is_none()) {
        if let Err(why) = tenancy.allowance(claim.key.0, group) {
            claim.role = Role::Hold;
            claim.wrong = vec![why];
        }
    }
}

/// The Services that want more ports than their namespace may have, and what they are told. Those that are served come first, then the oldest.
pub(super) fn exceeding<'a>(claims: &[Claim<'a>], tenancy: &Tenancy, group: &str) -> BTreeMap<Key<'a>, String> {
    let mut exceeding = BTreeMap::new();
    if claims.iter().all(|claim| claim.known.is_some()) {
        return exceeding;
    }
    for tenant in claims.chunk_by(|one, other| one.key.0 == other.key.0) {
        let namespace = tenant[0].key.0;
        let Ok(most) = tenancy.allowance(namespace, group).map(|allowance| allowance.max_ports) else { continue };
        if tenant.iter().map(wanted).sum::<usize>() <= most {
            continue;
        }
        let mut order: Vec<_> = tenant.iter().collect();
        order.sort_by_key(|claim| (claim.object.is_none(), created(claim), claim.key));
        let mut used: usize = order.iter().map(|claim| held(claim)).sum();
        for claim in order {
            let (held, wanted) = (held(claim), wanted(claim));
            if wanted <= held || used - held + wanted <= most {
                used = used - held + wanted;
                continue;
            }
            let message = format!(
                "Namespace {namespace} may have {most} ports of ProxyGroup {group} and has {used}: remove Services, or have an \
                 administrator raise maxPorts in spec.tailyard.tenants."
            );
            exceeding.insert(claim.key, message);
        }
    }
    exceeding
}

/// The ports that a Service has.
fn held(claim: &Claim<'_>) -> usize {
    claim.known.as_ref().map_or(claim.kept.len(), |known| known.child.ports.len())
}

/// The ports that it is to have.
fn wanted(claim: &Claim<'_>) -> usize {
    let spec = claim.service.filter(|_| claim.known.is_none() && claim.role == Role::Serve).and_then(|service| service.spec.as_ref());
    spec.map_or_else(|| held(claim), |spec| spec.ports.as_ref().map_or(0, Vec::len))
}

//! Limits of each namespace in an egress group: access and number of ports.

use std::collections::BTreeMap;

use crate::model::controller::egress::claims::{ServiceClaim, ServiceKey, ServiceRole};
use crate::model::controller::policy::tenancy::{Tenancy, TenancyScope};

/// Freezes Services whose namespace may not use the group: those that are served continue unchanged.
pub(crate) fn deny(claims: &mut [ServiceClaim<'_>], tenancy: &Tenancy, group: &str) {
    for claim in claims.iter_mut().filter(|claim| claim.role == ServiceRole::Serve && claim.served.is_none()) {
        if let Err(why) = tenancy.allowance(claim.key.0, TenancyScope::Group(group)) {
            claim.role = ServiceRole::Hold;
            claim.wrong = vec![why];
        }
    }
}

/// Services beyond the port limit of their namespace, with the message. Served ones have priority, then the oldest.
pub(crate) fn exceeding<'a>(claims: &[ServiceClaim<'a>], tenancy: &Tenancy, group: &str) -> BTreeMap<ServiceKey<'a>, String> {
    let mut exceeding = BTreeMap::new();
    if claims.iter().all(|claim| claim.served.is_some()) {
        return exceeding;
    }
    for tenant in claims.chunk_by(|one, other| one.key.0 == other.key.0) {
        let namespace = tenant[0].key.0;
        let Ok(allowance) = tenancy.allowance(namespace, TenancyScope::Group(group)) else { continue };
        let (most, field) = (allowance.max_ports, allowance.limit_field());
        if tenant.iter().map(wanted).sum::<usize>() <= most {
            continue;
        }
        let mut order: Vec<_> = tenant.iter().collect();
        order.sort_by_key(|claim| (claim.object.is_none(), claim.age(), claim.key));
        let mut used: usize = order.iter().map(|claim| current_ports(claim)).sum();
        for claim in order {
            let (ports_now, wanted) = (current_ports(claim), wanted(claim));
            if wanted <= ports_now || used - ports_now + wanted <= most {
                used = used - ports_now + wanted;
                continue;
            }
            let message = format!(
                "Namespace {namespace} may have {most} ports of ProxyGroup {group} and has {used}: remove Services, or have an \
                 administrator raise maxPorts in {field}."
            );
            exceeding.insert(claim.key, message);
        }
    }
    exceeding
}

fn current_ports(claim: &ServiceClaim<'_>) -> usize {
    claim.served.as_ref().map_or(claim.reserved.len(), |served| served.child.ports.len())
}

/// Number of ports that it requests.
fn wanted(claim: &ServiceClaim<'_>) -> usize {
    let spec =
        claim.service.filter(|_| claim.served.is_none() && claim.role == ServiceRole::Serve).and_then(|service| service.spec.as_ref());
    spec.map_or_else(|| current_ports(claim), |spec| spec.ports.as_ref().map_or(0, Vec::len))
}

//! Ownership of Tailscale Services that several clusters may share.
//!
//! The control plane replaces a service as a whole, without preconditions. So each write is a read-modify-write that changes our part
//! only, is read back, and is checked again some minutes later.

use std::collections::BTreeSet;

use serde::Deserialize as _;

use crate::api::vip::{OwnerRef, Owners, OwningResource, VipService};
use crate::api::{names, vip};

/// Identity of this cluster among the owners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceOwner {
    /// Unique ID of this cluster.
    pub id: String,
    /// Previous IDs: references with these are ours and are rewritten.
    pub former: Vec<String>,
}

/// A group of this cluster as owner of a Tailscale Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwningGroup<'a> {
    pub name: &'a str,
    /// UID of a group that owns its Tailscale Service alone. It is unique among clusters: so the service is the group's also if an operator
    /// with another ID wrote it.
    pub sole_owner: Option<&'a str>,
}

impl<'a> From<&'a str> for OwningGroup<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, sole_owner: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredVipService {
    /// Name with the prefix `svc:`.
    pub name: String,
    pub group: String,
    pub tags: Vec<String>,
    pub ports: Vec<String>,
    /// May join a name of another cluster: set by administrators, not by tenants.
    pub share: bool,
    /// May adopt a Tailscale Service without owner.
    pub adopt: bool,
    /// Other groups of this cluster that have the name for other objects.
    pub taken_by: BTreeSet<String>,
    /// UID of the group, if it owns the service alone.
    pub sole_owner: Option<String>,
}

/// Decision about a write.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnershipVerdict {
    /// It is ours and as desired.
    Settled,
    /// `ours`: it was ours before, so that it is served meanwhile.
    Write { service: Box<VipService>, ours: bool },
    /// It is not ours to write.
    Refused(OwnershipRefusal),
}

/// Why a Tailscale Service is not ours to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnershipRefusal {
    /// Without a known owner: created by hand.
    Foreign,
    Alone,
    /// Owned by Ingresses or Services, where one object must own it alone.
    Shared,
    /// Owned by another cluster, and sharing is not permitted.
    Twin,
    /// Owned by another group of this cluster, which has it for another object.
    OtherGroup,
}

/// How to release a Tailscale Service.
#[derive(Debug, Clone, PartialEq)]
pub enum Release {
    Nothing,
    /// No other owner.
    Delete,
    /// Has other owners, or was adopted and is given back.
    Write(Box<VipService>),
}

impl ServiceOwner {
    fn is(&self, reference: &OwnerRef) -> bool {
        reference.operator_id == self.id || self.former.contains(&reference.operator_id)
    }

    /// The group of this cluster that a reference names.
    fn group<'a>(&self, reference: &'a OwnerRef) -> Option<&'a str> {
        reference.rest.get(vip::GROUP).filter(|_| self.is(reference))?.as_str()
    }

    /// Whether a reference is that of a group of this cluster, or of none of its groups.
    fn is_of(&self, reference: &OwnerRef, group: OwningGroup<'_>) -> bool {
        is_alone(reference, group) || (self.is(reference) && self.group(reference).is_none_or(|of| of == group.name))
    }

    /// The reference of a desired service's group. One that it owns alone names the Tailscale operator that the cluster had before, if that is
    /// known: it accepts only its own ID, and can take the group back.
    fn reference(&self, desired: &DesiredVipService) -> OwnerRef {
        let former = self.former.first().filter(|_| desired.sole_owner.is_some());
        let group = (vip::GROUP.to_owned(), desired.group.clone().into());
        let resource =
            desired.sole_owner.clone().map(|uid| OwningResource { kind: "ProxyGroup".to_owned(), name: desired.group.clone(), uid });
        let resource = resource.map(|resource| (vip::RESOURCE.to_owned(), serde_json::to_value(resource).unwrap_or_default()));
        OwnerRef { operator_id: former.unwrap_or(&self.id).clone(), rest: [group].into_iter().chain(resource).collect() }
    }
}

/// Whether a reference names a group as the only owner.
fn is_alone(reference: &OwnerRef, group: OwningGroup<'_>) -> bool {
    let resource = reference.rest.get(vip::RESOURCE).and_then(|resource| OwningResource::deserialize(resource).ok());
    group.sole_owner.is_some_and(|uid| resource.is_some_and(|resource| resource.kind == "ProxyGroup" && resource.uid == uid))
}

impl OwnershipRefusal {
    /// Message with an action.
    pub fn message(self, name: &str) -> String {
        match self {
            Self::Foreign => format!(
                "Tailscale Service {name} exists and was not made by a cluster: remove it, take another name, or have an administrator name it in the annotation {} of the ProxyGroup.",
                names::ADOPT
            ),
            Self::Alone => format!("Tailscale Service {name} belongs to one ProxyGroup of another cluster alone: take another name."),
            Self::Shared => format!(
                "Tailscale Service {name} belongs to Ingresses or Services of a cluster, and the Kubernetes API needs one of its own: take another name."
            ),
            Self::Twin => format!(
                "Another cluster has Tailscale Service {name}: take another name, or have an administrator add it to sharedNames in spec.tailyard.tenants of the ProxyGroup."
            ),
            Self::OtherGroup => format!("Another ProxyGroup of this cluster has Tailscale Service {name}: take another name."),
        }
    }
}

/// Decides by the service as read. `recorded`: this cluster has advertised it, so that it stays ours even if its owners got lost.
pub fn verify_owner(found: Option<&VipService>, desired: &DesiredVipService, owner: &ServiceOwner, recorded: bool) -> OwnershipVerdict {
    let own = owner.reference(desired);
    let Some(found) = found else {
        let fresh = VipService {
            name: desired.name.clone(),
            comment: vip::COMMENT.to_owned(),
            ports: desired.ports.clone(),
            tags: desired.tags.clone(),
            ..VipService::default()
        };
        return OwnershipVerdict::Write { service: Box::new(owned(fresh, &[own])), ours: false };
    };
    let (refs, unreadable) = match references(found) {
        Some(refs) => (refs, false),
        None => (Vec::new(), found.annotations.contains_key(vip::OWNERS)),
    };
    let ours = refs.iter().any(|reference| owner.is(reference));
    let others: Vec<OwnerRef> = refs.iter().filter(|reference| !owner.is(reference)).cloned().collect();
    if refs.is_empty() && (unreadable || !(desired.adopt || recorded)) {
        return OwnershipVerdict::Refused(OwnershipRefusal::Foreign);
    }
    if let Some(uid) = &desired.sole_owner {
        let group = OwningGroup { name: &desired.group, sole_owner: Some(uid) };
        return verify_only_owner(found, desired, owner, (&refs, group, recorded));
    }
    if refs.first().is_some_and(|first| first.rest.contains_key(vip::RESOURCE)) {
        return OwnershipVerdict::Refused(OwnershipRefusal::Alone);
    }
    if refs.iter().filter_map(|reference| owner.group(reference)).any(|group| desired.taken_by.contains(group)) {
        return OwnershipVerdict::Refused(OwnershipRefusal::OtherGroup);
    }
    if !ours && !others.is_empty() && !desired.share {
        return OwnershipVerdict::Refused(OwnershipRefusal::Twin);
    }
    let mut wanted = found.clone();
    let shared = !others.is_empty();
    wanted.ports = ports(&found.ports, &desired.ports, shared);
    // The first of several clusters sets the tags: otherwise two would overwrite each other forever.
    if !shared || found.tags.is_empty() {
        wanted.tags = merged(&found.tags, &desired.tags);
    }
    if refs.is_empty() && !recorded {
        wanted.annotations.insert(names::ADOPTED.to_owned(), "true".to_owned());
    }
    let named = refs.contains(&own);
    let old = refs.iter().any(|reference| owner.former.contains(&reference.operator_id) && reference.operator_id != owner.id);
    if !named || old {
        wanted = owned(wanted, &[others.as_slice(), &[own]].concat());
    }
    if wanted == *found { OwnershipVerdict::Settled } else { OwnershipVerdict::Write { service: Box::new(wanted), ours } }
}

/// Decides about a service that one group must own alone. A reference with the group's UID stays as it is if another operator wrote it: so
/// that operator can take the group back.
fn verify_only_owner(
    found: &VipService,
    desired: &DesiredVipService,
    owner: &ServiceOwner,
    (refs, group, recorded): (&[OwnerRef], OwningGroup<'_>, bool),
) -> OwnershipVerdict {
    let is_again = |reference: &OwnerRef| reference.rest.contains_key(vip::RESOURCE) && owner.group(reference) == Some(group.name);
    let is_named = match refs {
        [] => false,
        [one] if is_alone(one, group) => one.operator_id != owner.id || owner.former.is_empty(),
        // A group that was created again, as by a restore.
        [one] if is_again(one) => false,
        [one, ..] if one.rest.contains_key(vip::RESOURCE) => return OwnershipVerdict::Refused(OwnershipRefusal::Alone),
        _ => return OwnershipVerdict::Refused(OwnershipRefusal::Shared),
    };
    let mut wanted = found.clone();
    wanted.ports = merged(&found.ports, &desired.ports);
    wanted.tags = merged(&found.tags, &desired.tags);
    if refs.is_empty() && !recorded {
        wanted.annotations.insert(names::ADOPTED.to_owned(), "true".to_owned());
    }
    if !is_named {
        wanted = owned(wanted, &[owner.reference(desired)]);
    }
    if wanted == *found { OwnershipVerdict::Settled } else { OwnershipVerdict::Write { service: Box::new(wanted), ours: !refs.is_empty() } }
}

/// Releases a group's part of a service, also one that names no group.
pub fn release<'a>(found: Option<&VipService>, owner: &ServiceOwner, group: impl Into<OwningGroup<'a>>) -> Release {
    let Some((found, refs)) = found.and_then(|found| Some((found, references(found)?))) else { return Release::Nothing };
    let group = group.into();
    let (ours, others): (Vec<_>, Vec<_>) = refs.into_iter().partition(|reference| owner.is_of(reference, group));
    match (ours.is_empty(), others.is_empty()) {
        (true, _) => Release::Nothing,
        (false, true) if found.annotations.contains_key(names::ADOPTED) => {
            let mut given_back = found.clone();
            given_back.annotations.remove(names::ADOPTED);
            given_back.annotations.remove(vip::OWNERS);
            Release::Write(Box::new(given_back))
        }
        (false, true) => Release::Delete,
        (false, false) => Release::Write(Box::new(owned(found.clone(), &others))),
    }
}

/// Services of a group of this cluster, by the owners that the control plane has stored.
pub fn of_group<'a, 'g>(
    services: impl IntoIterator<Item = &'a VipService>,
    owner: &ServiceOwner,
    group: impl Into<OwningGroup<'g>>,
) -> impl Iterator<Item = &'a str> {
    let group = group.into();
    let mine = move |reference: &OwnerRef| owner.group(reference) == Some(group.name) || is_alone(reference, group);
    let published = services.into_iter().filter(move |service| references(service).into_iter().flatten().any(|existing| mine(&existing)));
    published.map(|service| &*service.name)
}

/// Whether another group of this cluster owns a service.
pub fn is_of_another_group(found: &VipService, owner: &ServiceOwner, group: &str) -> bool {
    references(found).into_iter().flatten().any(|reference| owner.group(&reference).is_some_and(|of| of != group))
}

/// Number of other clusters that own a service.
pub fn others(found: &VipService, owner: &ServiceOwner) -> usize {
    references(found).into_iter().flatten().filter(|reference| !owner.is(reference)).count()
}

/// Owners of a service; `None` if unreadable.
fn references(found: &VipService) -> Option<Vec<OwnerRef>> {
    let text = found.annotations.get(vip::OWNERS)?;
    serde_json::from_str::<Owners>(text).ok().map(|owners| owners.owner_refs)
}

fn owned(mut service: VipService, refs: &[OwnerRef]) -> VipService {
    let text = serde_json::to_string(&Owners { owner_refs: refs.to_vec() }).unwrap_or_default();
    service.annotations.insert(vip::OWNERS.to_owned(), text);
    service
}

/// `wanted`, unless `found` has the same elements: then `found`, in its order.
fn merged(found: &[String], wanted: &[String]) -> Vec<String> {
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    if set(found) == set(wanted) { found.to_vec() } else { wanted.to_vec() }
}

/// Ports of a shared service are never removed: another cluster may serve them.
fn ports(found: &[String], wanted: &[String], shared: bool) -> Vec<String> {
    if !shared {
        return merged(found, wanted);
    }
    let more = wanted.iter().filter(|port| !found.contains(port)).cloned();
    found.iter().cloned().chain(more).collect()
}

#[cfg(test)]
mod tests;

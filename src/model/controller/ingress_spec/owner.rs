//! Whose a Tailscale Service is, where several clusters may share one: what is written so that nobody's part is lost.
//!
//! The control plane replaces a service whole and knows no precondition. So each write is of what was just read, with our part
//! changed and nothing else of the others'; it is read again afterwards, and looked at again some minutes later.

use std::collections::BTreeSet;

use crate::api::names;
use crate::api::vip::{self, OwnerRef, Owners, VipService};

/// Who we are among the owners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceOwner {
    /// What tells this cluster from every other.
    pub id: String,
    /// What it was called before: references by these names are ours, and are written anew.
    pub former: Vec<String>,
}

/// What a Tailscale Service is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredVipService {
    /// Its name, with `svc:`.
    pub name: String,
    pub group: String,
    pub tags: Vec<String>,
    pub ports: Vec<String>,
    /// It may join a name that another cluster has: an administrator's word, not a tenant's.
    pub share: bool,
    /// It takes over one that nobody owns.
    pub adopt: bool,
}

/// What follows for it.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnershipVerdict {
    Settled,
    /// It is to be written so. `ours` tells whether it was ours before.
    Write {
        service: Box<VipService>,
        /// It was ours already, and is served meanwhile.
        ours: bool,
    },
    /// It is not ours to write.
    Refused(OwnershipRefusal),
}

/// Why a Tailscale Service is not ours to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnershipRefusal {
    /// It has no owner that we know of: somebody made it by hand.
    Foreign,
    Alone,
    /// Another cluster has it, and its namespace may not share names.
    Twin,
}

/// What is to be done to let one go.
#[derive(Debug, Clone, PartialEq)]
pub enum Release {
    Nothing,
    /// Nobody else owns it.
    Delete,
    /// Others own it too, or it was taken over and is given back.
    Write(Box<VipService>),
}

impl ServiceOwner {
    fn is(&self, reference: &OwnerRef) -> bool {
        reference.operator_id == self.id || self.former.contains(&reference.operator_id)
    }
}

impl OwnershipRefusal {
    /// A sentence that says what to do.
    #[must_use]
    pub fn message(self, name: &str) -> String {
        match self {
            Self::Foreign => format!(
                "Tailscale Service {name} exists and was not made by a cluster: remove it, take another name, or have an administrator name it in the annotation {} of the ProxyGroup.",
                names::ADOPT
            ),
            Self::Alone => format!("Tailscale Service {name} belongs to one ProxyGroup of another cluster alone: take another name."),
            Self::Twin => format!(
                "Another cluster has Tailscale Service {name}: take another name, or have an administrator add it to sharedNames in spec.tailyard.tenants of the ProxyGroup."
            ),
        }
    }
}

/// Judges a service as it was found. `recorded` tells that this cluster has published it: one that lost its owners is ours still.
#[must_use]
pub fn verify_owner(found: Option<&VipService>, desired: &DesiredVipService, owner: &ServiceOwner, recorded: bool) -> OwnershipVerdict {
    let own =
        OwnerRef { operator_id: owner.id.clone(), rest: [(vip::GROUP.to_owned(), desired.group.clone().into())].into_iter().collect() };
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
    if refs.first().is_some_and(|first| first.rest.contains_key("resource")) {
        return OwnershipVerdict::Refused(OwnershipRefusal::Alone);
    }
    if !ours && !others.is_empty() && !desired.share {
        return OwnershipVerdict::Refused(OwnershipRefusal::Twin);
    }
    let mut wanted = found.clone();
    let shared = !others.is_empty();
    wanted.ports = ports(&found.ports, &desired.ports, shared);
    // Of several clusters the first one says which policies hold: two that write in turn would never end.
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

/// What is to be done to let a service go.
#[must_use]
pub fn release(found: Option<&VipService>, owner: &ServiceOwner) -> Release {
    let Some((found, refs)) = found.and_then(|found| Some((found, references(found)?))) else { return Release::Nothing };
    let (ours, others): (Vec<_>, Vec<_>) = refs.into_iter().partition(|reference| owner.is(reference));
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

/// The services that a group of this cluster publishes, by what the control plane has on record.
pub fn of_group<'a>(
    services: impl IntoIterator<Item = &'a VipService>,
    owner: &ServiceOwner,
    group: &str,
) -> impl Iterator<Item = &'a str> {
    let mine = move |reference: &OwnerRef| owner.is(reference) && reference.rest.get(vip::GROUP).is_some_and(|value| value == group);
    let published = services.into_iter().filter(move |service| references(service).into_iter().flatten().any(|existing| mine(&existing)));
    published.map(|service| &*service.name)
}

/// The clusters that own a service beside this one.
#[must_use]
pub fn others(found: &VipService, owner: &ServiceOwner) -> usize {
    references(found).into_iter().flatten().filter(|reference| !owner.is(reference)).count()
}

/// The owners of a service; none if that cannot be read.
fn references(found: &VipService) -> Option<Vec<OwnerRef>> {
    let text = found.annotations.get(vip::OWNERS)?;
    serde_json::from_str::<Owners>(text).ok().map(|owners| owners.owner_refs)
}

fn owned(mut service: VipService, refs: &[OwnerRef]) -> VipService {
    let text = serde_json::to_string(&Owners { owner_refs: refs.to_vec() }).unwrap_or_default();
    service.annotations.insert(vip::OWNERS.to_owned(), text);
    service
}

/// The wanted list, unless it names the same as the one that there is.
fn merged(found: &[String], wanted: &[String]) -> Vec<String> {
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    if set(found) == set(wanted) { found.to_vec() } else { wanted.to_vec() }
}

/// The ports of one that is shared are never fewer: another cluster may serve those that we do not.
fn ports(found: &[String], wanted: &[String], shared: bool) -> Vec<String> {
    if !shared {
        return merged(found, wanted);
    }
    let more = wanted.iter().filter(|port| !found.contains(port)).cloned();
    found.iter().cloned().chain(more).collect()
}

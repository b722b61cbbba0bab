//! Index of the claimants of each name in the tailnet, by age: the first one is found without a comparison of all.

use std::collections::{BTreeMap, BTreeSet};

use super::maps::put;
use crate::model::controller::key::WorkloadKey;

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClaimState {
    /// The object's own proxy has the name.
    Recorded,
    Requested,
    /// Its workload refused the object, for another reason than its name.
    Refused,
    /// The object is in deletion.
    Terminating,
}

impl ClaimState {
    pub(super) const ALL: [Self; 4] = [Self::Recorded, Self::Requested, Self::Refused, Self::Terminating];
}

/// A claim of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NameClaim {
    pub(super) label: String,
    /// The group that has or gets the object; `None` for a proxy of its own.
    pub(super) group: Option<String>,
    pub(super) state: ClaimState,
    /// Creation time of the object in seconds, and UID.
    pub(super) age: (i64, String),
}

/// Objects by group and state of their claims of one label, the oldest first.
type Claimants = BTreeMap<(Option<String>, ClaimState), BTreeSet<((i64, String), WorkloadKey)>>;

#[derive(Debug, Default, PartialEq)]
pub(super) struct NameIndex {
    claims: BTreeMap<WorkloadKey, BTreeSet<NameClaim>>,
    claimants: BTreeMap<String, Claimants>,
}

impl NameIndex {
    /// Replaces the claims of an object.
    pub(super) fn set(&mut self, object: &WorkloadKey, claims: BTreeSet<NameClaim>) {
        let old = if claims.is_empty() { self.claims.remove(object) } else { self.claims.insert(object.clone(), claims.clone()) };
        if old.as_ref() == Some(&claims) {
            return;
        }
        for (claims, came) in [(old.unwrap_or_default(), false), (claims, true)] {
            for NameClaim { label, group, state, age } in claims {
                let claimants = self.claimants.entry(label.clone()).or_default();
                put(claimants, (group, state), (age, object.clone()), came);
                if claimants.is_empty() {
                    self.claimants.remove(&label);
                }
            }
        }
    }

    /// Claims of an object of a label.
    pub(super) fn claims<'a>(&'a self, object: &WorkloadKey, label: &'a str) -> impl Iterator<Item = &'a NameClaim> {
        self.claims.get(object).into_iter().flatten().filter(move |claim| claim.label == label)
    }

    /// Groups of which objects claim a label.
    pub(super) fn groups(&self, label: &str) -> BTreeSet<&String> {
        self.claimants.get(label).into_iter().flat_map(BTreeMap::keys).filter_map(|(group, _)| group.as_ref()).collect()
    }

    /// Objects of a group, or with proxies of their own, that claim a label in a state, the oldest first.
    pub(super) fn oldest(&self, label: &str, group: Option<&str>, state: ClaimState) -> impl Iterator<Item = &WorkloadKey> {
        let claimants = self.claimants.get(label).and_then(|claimants| claimants.get(&(group.map(str::to_owned), state)));
        claimants.into_iter().flatten().map(|(_, object)| object)
    }
}

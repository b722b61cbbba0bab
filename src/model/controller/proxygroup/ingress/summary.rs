//! What became of everything that a group is asked to publish, summed up: for two conditions of the group, and for metrics.
//!
//! Every name and every certificate is counted once. Nothing here is decided again, and nothing told that changes by itself.

use std::collections::BTreeMap;

use super::{IngressPlan, Item, Rejection, ServiceState};
use crate::api::condition::{CERTIFIED, PUBLISHED};
use crate::api::issuance::OrderNote;
use crate::api::names;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::ingress_spec::{CertificateIssue, PublishTarget, Publisher};
use crate::model::controller::objects::{Owner, certificate_ref, digest, filled, valid_until};
use crate::model::controller::proxygroup::work::GroupPass;

/// How many of those in trouble are named.
const NAMED: usize = 5;

/// How a name stands that somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublishState {
    /// A replica that gets traffic serves it.
    Whole,
    /// The same, but for a part that cannot be served.
    Partly,
    /// Nothing is in its way, and no replica serves it yet.
    Waiting,
    /// It cannot be published as it is asked for.
    Refused,
}

/// How a certificate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Certified {
    Issued,
    /// It is being ordered, or will be.
    Waiting,
    /// The newest order of it failed.
    Failing,
    /// It is the user's own, and cannot be shown.
    Lacking,
    /// It is the user's own, and is not valid now.
    Invalid,
    /// It is the user's own, and ends soon.
    Ending,
}

/// How many there are of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IngressSummary {
    pub published: BTreeMap<PublishState, usize>,
    pub certified: BTreeMap<Certified, usize>,
}

impl PublishState {
    pub const ALL: [Self; 4] = [Self::Whole, Self::Partly, Self::Waiting, Self::Refused];

    /// In a word, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "advertised",
            Self::Partly => "partial",
            Self::Waiting => "pending",
            Self::Refused => "rejected",
        }
    }
}

impl Certified {
    pub const ALL: [Self; 6] = [Self::Issued, Self::Waiting, Self::Failing, Self::Lacking, Self::Invalid, Self::Ending];

    /// In a word, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Waiting => "pending",
            Self::Failing => "failing",
            Self::Lacking => "missing",
            Self::Invalid => "invalid",
            Self::Ending => "expiring",
        }
    }
}

/// How much of what is asked for is not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    Part,
    Nothing,
}

/// The account while it is made.
#[derive(Debug, Default)]
pub(super) struct SummaryBuilder {
    names: BTreeMap<Publisher, (PublishState, &'static str)>,
    certificates: BTreeMap<String, (Certified, String)>,
    /// What is wrong, as it is told.
    faults: BTreeMap<String, String>,
    /// Of somebody it is not known yet how it stands, so that what was said of all before holds.
    unknown: bool,
}

impl SummaryBuilder {
    /// How one that asks fares: what it is told and what of it that concerns, and whether a replica serves it.
    pub(super) fn name(&mut self, claimant: &Publisher, rejection: Option<(Extent, &Rejection)>, served: bool) {
        let state = match rejection {
            Some((Extent::Whole, _)) => PublishState::Refused,
            _ if !served => PublishState::Waiting,
            Some((Extent::Part, _)) => PublishState::Partly,
            Some((Extent::Nothing, _)) | None => PublishState::Whole,
        };
        self.names.insert(claimant.clone(), (state, rejection.map_or("NoReplica", |(_, reported)| reported.reason)));
        self.faults.extend(rejection.map(|(_, outcome)| (claimant.to_string(), fingerprint(&outcome.message))));
    }

    /// One of which nobody can say yet how it fares. What was said before holds.
    pub(super) fn unknown(&mut self) {
        self.unknown = true;
    }

    /// What was told of one before still holds.
    pub(super) fn still(&mut self, claimant: &Publisher, plan: &IngressPlan<'_>) {
        let key = claimant.to_string();
        self.faults.extend(plan.before.reported_events.get(&key).cloned().map(|event| (key, event)));
    }

    /// The certificates of a site.
    pub(super) fn certificates(&mut self, work: &GroupPass<'_>, owner: &Owner, item: &Item) {
        let PublishTarget::Site(site) = &item.wish.target else { return };
        let theirs = matches!(item.standing, ServiceState::Unsupported | ServiceState::Conflict(_));
        for (host, how) in site.hosts.iter().filter(|(_, how)| !(how.issue && theirs)) {
            let state = if how.issue { issued(work, owner, host) } else { (Certified::Issued, String::new()) };
            self.certificates.insert(host.clone(), state);
        }
        for (host, flaw) in &item.wish.flaws {
            let state = match flaw {
                CertificateIssue::Lacking => Certified::Lacking,
                CertificateIssue::Invalid => Certified::Invalid,
                CertificateIssue::Ending => Certified::Ending,
            };
            self.certificates.insert(host.clone(), (state, item.claimant.to_string()));
        }
    }

    /// What is wrong and was told: fingerprints of the words, by whom they were told to.
    pub(super) fn faults(&self) -> &BTreeMap<String, String> {
        &self.faults
    }

    /// Gives the account: what the group is to say of itself, and the figures.
    pub(super) fn give(self, work: &mut GroupPass<'_>) {
        let mut summary = IngressSummary::default();
        for (state, _) in self.names.values() {
            *summary.published.entry(*state).or_default() += 1;
        }
        for (state, _) in self.certificates.values() {
            *summary.certified.entry(*state).or_default() += 1;
        }
        work.memory.summary = Some(summary);
        work.keeps_conditions = self.unknown;
        work.conditions = vec![self.published(), self.certified()];
    }

    fn published(&self) -> DesiredCondition<'static> {
        let of = |states: &[PublishState]| -> Vec<String> {
            let those = self.names.iter().filter(|(_, (state, _))| states.contains(state));
            those.map(|(claimant, (_, reason))| format!("{claimant} ({reason})")).collect()
        };
        let all = self.names.len();
        let (refused, waiting) = (of(&[PublishState::Refused, PublishState::Partly]), of(&[PublishState::Waiting]));
        let (status, reason, message) = if !refused.is_empty() {
            let why = "Their Events say why, and the conditions of Services.";
            let message = format!("{} of {all} are not published as they ask: {}. {why}", refused.len(), list(&refused));
            (ConditionStatus::False, "ServicesRejected", message)
        } else if !waiting.is_empty() {
            let message = format!("{} of {all} are not served by any replica yet: {}.", waiting.len(), list(&waiting));
            (ConditionStatus::False, "ServicesPending", message)
        } else {
            (ConditionStatus::True, "ServicesAdvertised", format!("{all} of {all} are published."))
        };
        DesiredCondition { kind: PUBLISHED, status, reason, message, generation: 0 }
    }

    fn certified(&self) -> DesiredCondition<'static> {
        let of = |wanted: Certified| -> Vec<String> {
            let those = self.certificates.iter().filter(|(_, (state, _))| *state == wanted);
            those.map(|(name, (_, why))| if why.is_empty() { name.clone() } else { format!("{name} ({why})") }).collect()
        };
        let all = self.certificates.len();
        let order = [
            (Certified::Failing, "CertificatesFailing", "cannot be ordered"),
            (Certified::Lacking, "CertificatesMissing", "are users' own and cannot be shown"),
            (Certified::Invalid, "CertificatesInvalid", "are not valid now"),
            (Certified::Waiting, "CertificatesPending", "are not there yet"),
            (Certified::Ending, "CertificatesExpiring", "are users' own and end soon"),
        ];
        let mut bad =
            order.into_iter().map(|(state, reason, what)| (state, reason, what, of(state))).filter(|(.., those)| !those.is_empty());
        let (status, reason, message) = match bad.next() {
            Some((state, reason, what, those)) => {
                let status = if state == Certified::Ending { ConditionStatus::True } else { ConditionStatus::False };
                (status, reason, format!("{} of {all} certificates {what}: {}.", those.len(), list(&those)))
            }
            None => (ConditionStatus::True, "CertificatesIssued", format!("{all} of {all} certificates are there.")),
        };
        DesiredCondition { kind: CERTIFIED, status, reason, message, generation: 0 }
    }
}

/// How a certificate stands that the group orders, and the kind of the failure if it failed last.
fn issued(work: &GroupPass<'_>, owner: &Owner, dns: &str) -> (Certified, String) {
    let Some(secret) = work.owned(&certificate_ref(owner, dns)) else { return (Certified::Waiting, String::new()) };
    let note = secret["metadata"]["annotations"][names::ISSUANCE].as_str().and_then(|text| serde_json::from_str::<OrderNote>(text).ok());
    match note.filter(|note| note.failures > 0) {
        Some(note) => (Certified::Failing, note.reason),
        None if valid_until(secret).is_some_and(|until| until <= work.observed.now) => (Certified::Invalid, "Ended".to_owned()),
        None if filled(secret) => (Certified::Issued, String::new()),
        None if work.observed.replicas.values().any(|replica| replica.state.as_ref().is_some_and(|state| state.no_https)) => {
            (Certified::Failing, "HTTPSDisabled".to_owned())
        }
        None => (Certified::Waiting, String::new()),
    }
}

/// The first of them, and how many more there are.
fn list(all: &[String]) -> String {
    let first = all[..all.len().min(NAMED)].join(", ");
    if all.len() > NAMED { format!("{first} and {} more", all.len() - NAMED) } else { first }
}

/// What stands for words that were told.
fn fingerprint(text: &str) -> String {
    digest(text.as_bytes())[..12].to_owned()
}

//! Summary of a group's names and certificates, for two conditions of the group and for metrics.
//!
//! Counts each name and certificate once. Messages contain nothing that changes with time alone.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::condition::{CERTIFIED, PUBLISHED};
use crate::api::issuance::OrderNote;
use crate::api::names;
use crate::model::base::bounded::clean;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::ingress::items::{Item, ServiceState};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::spec::{CertificateIssue, PublishTarget};
use crate::model::controller::key::Publisher;
use crate::model::controller::workload::ingress_summary::{Certified, IngressSummary, PublishState};
use crate::model::controller::workload::objects::Owner;
use crate::model::controller::workload::objects::certificate::certificate_ref;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::tailnet_setting::HTTPS_DISABLED;

/// Maximum names in a message.
const NAMED: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    Part,
    Nothing,
}

#[derive(Debug, Default)]
pub(crate) struct SummaryBuilder {
    names: BTreeMap<Publisher, (PublishState, &'static str)>,
    certificates: BTreeMap<String, (Certified, String)>,
    /// The state of an object is not known yet: the previous conditions stay.
    unknown: bool,
}

impl SummaryBuilder {
    /// Counts an object: its rejection with extent, and whether a replica serves it.
    pub(crate) fn name(&mut self, claimant: &Publisher, rejection: Option<(Extent, &Rejection)>, served: bool) {
        let state = match rejection {
            Some((Extent::Whole, _)) => PublishState::Refused,
            _ if !served => PublishState::Waiting,
            Some((Extent::Part, _)) => PublishState::Partly,
            Some((Extent::Nothing, _)) | None => PublishState::Whole,
        };
        self.names.insert(claimant.clone(), (state, rejection.map_or("NoReplica", |(_, reported)| reported.reason)));
    }

    /// Counts an object of unknown state: the previous conditions stay.
    pub(crate) fn unknown(&mut self) {
        self.unknown = true;
    }

    pub(crate) fn certificates(&mut self, work: &Pass<'_>, owner: &Owner, item: &Item) {
        let PublishTarget::Site(site) = &item.spec.target else { return };
        let theirs = matches!(item.state, ServiceState::Unsupported | ServiceState::Conflict(_));
        for (host, how) in site.hosts.iter().filter(|(_, how)| !(how.issue && theirs)) {
            let state = if how.issue { issued(work, owner, host) } else { (Certified::Issued, String::new()) };
            self.certificates.insert(host.clone(), state);
        }
        for (host, flaw) in &item.spec.flaws {
            let state = match flaw {
                CertificateIssue::Lacking => Certified::Lacking,
                CertificateIssue::Invalid => Certified::Invalid,
                CertificateIssue::Ending => Certified::Ending,
            };
            self.certificates.insert(host.clone(), (state, item.claimant.to_string()));
        }
    }

    /// Writes the group's conditions and the figures.
    pub(crate) fn write(self, work: &mut PlanPart<'_>) {
        let mut summary = IngressSummary::default();
        for (state, _) in self.names.values() {
            *summary.published.entry(*state).or_default() += 1;
        }
        for (state, _) in self.certificates.values() {
            *summary.certified.entry(*state).or_default() += 1;
        }
        work.plan.summary = Some(summary);
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
            let message = format!("{} of {all} are not published as requested: {}. {why}", refused.len(), list(&refused));
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
            (Certified::Lacking, "CertificatesMissing", "are users' own and cannot be served"),
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

/// State of an ordered certificate, with the reason of the last failure.
pub(crate) fn issued(work: &Pass<'_>, owner: &Owner, dns: &str) -> (Certified, String) {
    let Some(secret) = work.owned(&certificate_ref(owner, dns)) else { return (Certified::Waiting, String::new()) };
    let note = order_note(secret);
    let until = work.observed.certificates.get(dns).and_then(|content| content.valid_until);
    match note.filter(|note| note.failures > 0) {
        Some(note) => (Certified::Failing, note.reason),
        None if until.is_some_and(|until| until <= work.observed.now) => (Certified::Invalid, "Ended".to_owned()),
        None if work.observed.is_certified(dns) => (Certified::Issued, String::new()),
        None if work.observed.replicas.values().any(|replica| replica.state.as_ref().is_some_and(|state| state.no_https)) => {
            (Certified::Failing, HTTPS_DISABLED.to_owned())
        }
        None => (Certified::Waiting, String::new()),
    }
}

/// Note of a certificate's Secret about its order. Pods write it.
fn order_note(secret: &Value) -> Option<OrderNote> {
    let text = secret["metadata"]["annotations"][names::ISSUANCE].as_str()?;
    let OrderNote { by, failures, not_before, reason, message } = serde_json::from_str(text).ok()?;
    Some(OrderNote { by: clean(by), failures, not_before, reason: clean(reason), message: clean(message) })
}

/// The first entries and the number of others.
pub(crate) fn list(all: &[String]) -> String {
    let first = all[..all.len().min(NAMED)].join(", ");
    if all.len() > NAMED { format!("{first} and {} more", all.len() - NAMED) } else { first }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::base::bounded::is_clean;

    #[test]
    fn every_text_of_an_order_note_is_bounded() {
        let long = format!("\u{1b}[2J{}", "x".repeat(100_000));
        let note = json!({"by": long, "failures": 3, "reason": long, "message": long}).to_string();
        let mut secret = json!({"metadata": {"annotations": {}}});
        secret["metadata"]["annotations"][names::ISSUANCE] = json!(note);
        let read = order_note(&secret).expect("a note");
        let texts: Vec<_> = json!(read).as_object().expect("fields").values().filter_map(Value::as_str).map(str::to_owned).collect();
        assert_eq!((texts.len(), read.failures), (3, 3));
        assert!(texts.iter().all(|text| is_clean(text) && text.starts_with(" [2Jx")), "{texts:?}");
    }
}

//! Which answers are right at which moment.
//!
//! While a change is under way both sides of it are right; once its new side was seen in force, only that one is, for
//! everything begun from then on. No tolerance is needed, except for what the reader of a verdict grants on purpose.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Lane, TargetIdentity};

/// What the ledger says of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerVerdict {
    /// The right target at that moment.
    Right,
    /// The lane's target of before, though the change was already in force when the attempt began.
    Stale {
        /// How long it had been in force.
        by: Duration,
    },
    /// A target that this lane never had.
    Wrong,
}

/// What a lane leads to from some moment on.
#[derive(Debug, Clone, Copy)]
struct ExpectedSpan {
    /// Who is to answer; nobody if the service is removed.
    target: Option<TargetIdentity>,
    /// When the change was asked for.
    written: Duration,
    /// When it was first seen in force.
    settled: Option<Duration>,
}

/// The history of every lane.
#[derive(Debug, Clone, Default)]
pub struct Expectations {
    lanes: BTreeMap<Lane, Vec<ExpectedSpan>>,
}

impl Expectations {
    /// A change was asked for: from now on this target may answer, and the one before still may.
    pub fn write(&mut self, lane: Lane, target: Option<TargetIdentity>, at: Duration) {
        self.lanes.entry(lane).or_default().push(ExpectedSpan { target, written: at, settled: None });
    }

    /// The lane's last change was seen in force: what begins from now on may only be answered by its target.
    pub fn settle(&mut self, lane: Lane, at: Duration) {
        for era in self.lanes.get_mut(&lane).into_iter().flatten() {
            era.settled.get_or_insert(at);
        }
    }

    /// The lane's changes that were asked for up to `written` are in force: what begins from `at` on is judged by that.
    pub fn settle_until(&mut self, lane: Lane, written: Duration, at: Duration) {
        for era in self.lanes.get_mut(&lane).into_iter().flatten().filter(|era| era.written <= written) {
            era.settled.get_or_insert(at);
        }
    }

    /// Who the lane's last change leads to.
    pub fn target(&self, lane: Lane) -> Option<TargetIdentity> {
        self.lanes.get(&lane)?.last()?.target
    }

    /// Whether the lane's last change was seen in force.
    pub fn is_settled(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).and_then(|eras| eras.last()).is_none_or(|era| era.settled.is_some())
    }

    /// Whether the lane was ever seen to lead anywhere: what was added lately may not have reached its replica yet.
    pub fn has_served(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).into_iter().flatten().any(|era| era.target.is_some() && era.settled.is_some())
    }

    /// Judges an answer to something begun and ended at these moments.
    pub fn judge(&self, lane: Lane, began: Duration, ended: Duration, answer: TargetIdentity) -> AnswerVerdict {
        let eras = self.lanes.get(&lane).map_or(&[][..], Vec::as_slice);
        let mut verdict = AnswerVerdict::Wrong;
        // When an era was superseded in force; the latest era never is.
        let ends = eras.iter().skip(1).map(|next| next.settled).chain([None]);
        for (era, end) in eras.iter().zip(ends).filter(|(era, _)| era.target == Some(answer) && era.written <= ended) {
            match end {
                Some(end) if began >= end => verdict = AnswerVerdict::Stale { by: began.saturating_sub(end) },
                _ => return AnswerVerdict::Right,
            }
            debug_assert!(era.target.is_some(), "only a target can answer");
        }
        verdict
    }
}

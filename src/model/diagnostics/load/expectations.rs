//! Ledger of expected answers at each moment.
//!
//! During a change both the old and the new target are valid; once the new one was observed in force, only that one is valid for attempts
//! begun from then on. No tolerance is needed, except where the reader of a verdict grants one deliberately.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Lane, TargetIdentity};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerVerdict {
    /// From a valid target.
    Right,
    /// From the lane's previous target, although the change had been in force for this time when the attempt began.
    Stale { by: Duration },
    /// From a target that this lane never had.
    Wrong,
}

/// A lane's target from some moment on.
#[derive(Debug, Clone, Copy)]
struct ExpectedSpan {
    /// Expected target; `None` if the service is removed.
    target: Option<TargetIdentity>,
    /// Time of the change request.
    written: Duration,
    /// Time when it was first observed in force.
    settled: Option<Duration>,
}

/// History of every lane.
#[derive(Debug, Clone, Default)]
pub struct Expectations {
    lanes: BTreeMap<Lane, Vec<ExpectedSpan>>,
}

impl Expectations {
    /// Records a change request: from now on both this target and the previous one are valid.
    pub fn write(&mut self, lane: Lane, target: Option<TargetIdentity>, at: Duration) {
        self.lanes.entry(lane).or_default().push(ExpectedSpan { target, written: at, settled: None });
    }

    /// Records that the lane's last change is in force: attempts that begin from now on may only be answered by its target.
    pub fn settle(&mut self, lane: Lane, at: Duration) {
        for era in self.lanes.get_mut(&lane).into_iter().flatten() {
            era.settled.get_or_insert(at);
        }
    }

    /// Records that the lane's changes requested up to `written` are in force for attempts that begin from `at` on.
    pub fn settle_until(&mut self, lane: Lane, written: Duration, at: Duration) {
        for era in self.lanes.get_mut(&lane).into_iter().flatten().filter(|era| era.written <= written) {
            era.settled.get_or_insert(at);
        }
    }

    /// Target after the lane's last change.
    pub fn target(&self, lane: Lane) -> Option<TargetIdentity> {
        self.lanes.get(&lane)?.last()?.target
    }

    /// Whether the lane's last change was observed in force.
    pub fn is_settled(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).and_then(|eras| eras.last()).is_none_or(|era| era.settled.is_some())
    }

    /// Whether the lane was ever observed in force with a target: a recent addition may not have reached its replica yet.
    pub fn has_served(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).into_iter().flatten().any(|era| era.target.is_some() && era.settled.is_some())
    }

    /// Verdict on an answer to an attempt with these start and end times.
    pub fn check(&self, lane: Lane, began: Duration, ended: Duration, answer: TargetIdentity) -> AnswerVerdict {
        let eras = self.lanes.get(&lane).map_or(&[][..], Vec::as_slice);
        let mut verdict = AnswerVerdict::Wrong;
        // Time at which an era's successor was in force; the latest era has none.
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

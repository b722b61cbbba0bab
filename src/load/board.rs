//! State of a load, and the report lines derived from it. Pure: sends nothing and reads no clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::report::{Flows, Line, LoadEvent, LoadSummary, Second};
use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{AttemptFailure, AttemptReport, Tally, Windows};

#[derive(Debug, Clone)]
pub struct FlowEvent {
    pub at: Duration,
    pub flow: u16,
    /// Whether the flow sends no requests before the end of the load.
    pub idle: bool,
    pub to: SocketAddr,
    /// The event; `None` if only a request was answered.
    pub what: Option<LoadEvent>,
}

#[derive(Debug, Default)]
pub struct Board {
    tally: Tally,
    /// Attempts of the current second.
    second: Tally,
    windows: Windows,
    in_flight: u64,
    flows: Flows,
}

impl Board {
    pub fn begun(&mut self) {
        self.in_flight += 1;
    }

    /// Records an ended attempt. Returns a line at once if it failed.
    pub fn record(&mut self, report: &AttemptReport) -> Option<Line> {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.tally.record(report, false);
        self.second.record(report, false);
        let failure = report.outcome.err()?;
        self.windows.note(report.due);
        let [at, began, ended] = [report.due, report.began, report.ended].map(|time| time.as_secs_f64());
        Some(Line::Fault { at, began, ended, proto: report.attempt.proto, to: report.attempt.to, failure })
    }

    pub fn flow(&mut self, event: FlowEvent) -> Option<Line> {
        let FlowEvent { at, flow, idle, to, what } = event;
        let flows = &mut self.flows;
        let Some(what) = what else {
            flows.answered += 1;
            return None;
        };
        match &what {
            LoadEvent::Open { .. } => flows.open += 1,
            LoadEvent::NotOpened(_) => flows.not_opened += 1,
            LoadEvent::Ended(failure) => {
                flows.open = flows.open.saturating_sub(1);
                match failure {
                    AttemptFailure::Reset => flows.reset += 1,
                    AttemptFailure::Timeout => flows.hung += 1,
                    _ => flows.ended += 1,
                }
            }
            LoadEvent::Kept => flows.open = flows.open.saturating_sub(1),
        }
        Some(Line::Flow { at: at.as_secs_f64(), flow, idle, to, what })
    }

    pub fn tick(&mut self, now: Duration) -> Line {
        let second = std::mem::take(&mut self.second);
        Line::Second(Second {
            at: now.as_secs_f64(),
            answered: self.tally.answered(),
            failed: self.failed(),
            in_flight: self.in_flight,
            answer: second.answer(),
            flows: self.flows,
        })
    }

    pub fn summary(&self, lasted: Duration) -> LoadSummary {
        let answered: BTreeMap<Proto, u64> = Proto::ALL.map(|proto| (proto, self.tally.answered_over(proto))).into();
        let flows = self.flows;
        LoadSummary {
            ok: self.failed() == 0 && flows.not_opened + flows.reset + flows.ended + flows.hung == 0,
            seconds: lasted.as_secs_f64(),
            offered: self.tally.answered() + self.failed(),
            answered,
            failed: self.tally.failed().clone(),
            windows: self.windows.all(),
            resent: self.tally.resent(),
            connect: self.tally.connect(),
            answer: self.tally.answer(),
            flows,
        }
    }

    fn failed(&self) -> u64 {
        self.tally.failed().values().sum()
    }
}

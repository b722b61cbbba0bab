//! Changes of a group under one load of new connections, in sequence, and the load's outcome for each.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kit::cluster::load::{Load, LoadReport};
use kit::operators::{PORT, Stage};
use kit::scenario::scenario;

/// New connections per second.
const RATE: &str = "50";
/// Timeout of a connection, in seconds: longer than WireGuard's retry of a handshake, which is after 5 s.
const PATIENCE: &str = "10s";

/// A load, and the changes so far.
pub(crate) struct Acts<'a> {
    stage: &'a Stage,
    load: Load<'a>,
    past: Vec<Act>,
}

/// A change under load.
struct Act {
    what: &'static str,
    may: May,
    begun: SystemTime,
    took: Duration,
}

/// Permitted failures of connections.
#[derive(Clone, Copy)]
pub(crate) enum May {
    /// None.
    LoseNothing,
    /// Failed connections may begin in at most this many seconds.
    Fail(usize),
}

impl<'a> Acts<'a> {
    /// Starts the load in a Pod of this name.
    pub(crate) fn begin(stage: &'a Stage, name: &str) -> Self {
        let to = format!("db.default.svc.cluster.local:{PORT}");
        let args = [&to[..], "--expect", "db ", "--rate", RATE, "--timeout", PATIENCE];
        Self { stage, load: Load::begin(&stage.cluster, name, None, &args), past: Vec::new() }
    }

    /// Makes a change that replaces the proxies, and waits until all is ready; returns the time that the Pods took.
    pub(crate) fn replace(&mut self, what: &'static str, may: May, change: impl FnOnce()) -> Duration {
        let begun = SystemTime::now();
        let took = scenario(what, || {
            self.stage.replaced(change);
            let took = begun.elapsed().expect("the clock goes on");
            self.stage.ready();
            took
        });
        self.past.push(Act { what, may, begun, took });
        took
    }

    /// Ends the load; panics on failures that are not permitted.
    pub(crate) fn end(self) {
        let report = self.load.end();
        println!("all of it: {report}");
        let ends = self.past.iter().skip(1).map(|act| act.begun).chain([SystemTime::now()]);
        let spans: Vec<(&Act, LoadOutcome)> =
            self.past.iter().zip(ends).map(|(act, end)| (act, LoadOutcome::within(&report, act.begun, end))).collect();
        for (act, met) in &spans {
            println!("{}: {:?}, {} answered, {} failed by second {:?}", act.what, act.took, met.answered, met.failed(), met.seconds);
        }
        report.measured("the load");
        assert_eq!(LoadOutcome::within(&report, SystemTime::UNIX_EPOCH, self.past[0].begun).failed(), 0, "before anything happened");
        for (act, met) in spans {
            let most = match act.may {
                May::LoseNothing => 0,
                May::Fail(seconds) => seconds,
            };
            assert!(met.answered > 0 && met.seconds.len() <= most, "{}: failed by second {:?}", act.what, met.seconds);
        }
    }
}

/// Outcome of a load in a period.
struct LoadOutcome {
    answered: u64,
    /// Number of failures by the second of the load in which they were due.
    seconds: BTreeMap<u64, usize>,
}

impl LoadOutcome {
    fn within(report: &LoadReport, from: SystemTime, to: SystemTime) -> Self {
        let mut seconds = BTreeMap::new();
        for due in report.failures().into_iter().filter(|due| (from..to).contains(due)) {
            *seconds.entry(report.since_begun(due).as_secs()).or_default() += 1;
        }
        Self { answered: report.answered_by(to) - report.answered_by(from), seconds }
    }

    fn failed(&self) -> usize {
        self.seconds.values().sum()
    }
}

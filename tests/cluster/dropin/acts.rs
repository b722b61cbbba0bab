//! What happens to a group under one load of new connections, one thing after the other, and what the load met meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kit::cluster::load::{Load, LoadReport};
use kit::operators::{PORT, Stage};

/// New connections each second.
const RATE: &str = "50";
/// After how many seconds a connection has failed: longer than WireGuard takes to ask a second time for a handshake, which is 5 s.
const PATIENCE: &str = "10s";

/// A load, and what happened so far.
pub(crate) struct Acts<'a> {
    stage: &'a Stage,
    load: Load<'a>,
    past: Vec<Act>,
}

/// Something that happened.
struct Act {
    what: &'static str,
    may: May,
    begun: SystemTime,
    took: Duration,
}

/// What connections may meet.
#[derive(Clone, Copy)]
pub(crate) enum May {
    /// All are answered.
    LoseNothing,
    /// In at most so many seconds some may begin that are not.
    Fail(usize),
}

impl<'a> Acts<'a> {
    /// Begins the load in a Pod of this name.
    pub(crate) fn begin(stage: &'a Stage, name: &str) -> Self {
        let to = format!("db.default.svc.cluster.local:{PORT}");
        let args = [&to[..], "--expect", "db ", "--rate", RATE, "--timeout", PATIENCE];
        Self { stage, load: Load::begin(&stage.cluster, name, None, &args), past: Vec::new() }
    }

    /// Lets the proxies be replaced, and waits until all is ready again; how long the Pods took.
    pub(crate) fn replace(&mut self, what: &'static str, may: May, change: impl FnOnce()) -> Duration {
        let begun = SystemTime::now();
        self.stage.replaced(change);
        let took = begun.elapsed().expect("the clock goes on");
        println!("{what}: {took:?}");
        self.stage.ready();
        self.past.push(Act { what, may, begun, took });
        took
    }

    /// Ends the load. Fails if it met what may not be.
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

/// What a load met from one moment to another.
struct LoadOutcome {
    answered: u64,
    /// How many failed of those that were due in a second of the load.
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

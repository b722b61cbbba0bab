//! Changes in sequence under loads of new connections, one for each path, and the outcome of each load for each change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, thread};

use kit::cluster::DEADLINE;
use kit::cluster::load::{Load, LoadReport};
use kit::operators::{PORT, Stage};
use kit::scenario::scenario;
use kit::tailnet_client::{LoadRun, TailnetClient};
use kit::wait::until;

use crate::dropin::limits::{Step, limit};

/// Timeout of a connection: longer than WireGuard's retry of a handshake, which is after 5 s.
const PATIENCE: &str = "10s";

/// A path for new connections.
pub(crate) struct Path<'a> {
    /// Its row in the table of docs/migrate.md.
    pub(crate) kind: &'static str,
    pub(crate) client: Client<'a>,
    /// Name of the Service, or in the tailnet.
    pub(crate) target: &'static str,
    /// Connections per second.
    pub(crate) rate: &'static str,
}

#[derive(Clone, Copy)]
pub(crate) enum Client<'a> {
    /// A Pod, which connects to a Service that the tailnet node `db` answers.
    Pod(&'a Stage),
    /// The same. The target has one address, of IPv4, and the name of the Service has one of each family.
    PodByIpv4(&'a Stage),
    /// A tailnet client, which connects to a port of a Service or Ingress and expects an answer.
    Tailnet(&'a TailnetClient, u16, &'static str),
}

/// A load of a path.
enum PathLoad<'a> {
    Pod(Load<'a>),
    PodByIpv4(Load<'a>),
    Tailnet(LoadRun),
}

/// Loads, and the changes so far.
pub(crate) struct Acts<'a> {
    loads: Vec<(&'static str, PathLoad<'a>)>,
    begun: SystemTime,
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
    /// As the table of docs/migrate.md has it: in at most this many seconds, and no longer than that without an answer. Where it permits
    /// none, answers may be late.
    AsDocumented(Step),
}

impl May {
    /// Whether it permits an outcome of a load of this path.
    fn permits(self, path: &str, met: &LoadOutcome) -> bool {
        let failed = met.seconds.len();
        met.answered > 0
            && match self {
                Self::LoseNothing => failed == 0,
                Self::Fail(most) => failed <= most,
                Self::AsDocumented(step) => match limit(path, step) {
                    0 => failed == 0,
                    most => failed.max(met.silence) <= most,
                },
            }
    }
}

impl<'a> Path<'a> {
    fn begin(&self) -> PathLoad<'a> {
        let in_pod = |stage: &'a Stage| {
            let (name, to) = (format!("load-{}", self.target), format!("{}.default.svc.cluster.local:{PORT}", self.target));
            let args = [&to[..], "--expect", "db ", "--rate", self.rate, "--timeout", PATIENCE];
            Load::begin(&stage.cluster, &name, None, &args)
        };
        match self.client {
            Client::Pod(stage) => PathLoad::Pod(in_pod(stage)),
            Client::PodByIpv4(stage) => PathLoad::PodByIpv4(in_pod(stage)),
            Client::Tailnet(client, port, answer) => PathLoad::Tailnet(client.begin((self.target, port), answer, self.rate, PATIENCE)),
        }
    }
}

impl PathLoad<'_> {
    fn so_far(&self) -> LoadReport {
        match self {
            Self::Pod(load) | Self::PodByIpv4(load) => load.so_far(),
            Self::Tailnet(load) => load.so_far(),
        }
    }

    fn end(self) -> LoadReport {
        match self {
            Self::Pod(load) => load.end(),
            Self::PodByIpv4(load) => load.end().by_ipv4(),
            Self::Tailnet(load) => load.end(),
        }
    }
}

impl<'a> Acts<'a> {
    /// Starts a load of each path, and waits until each is answered.
    pub(crate) fn begin(paths: &[Path<'a>]) -> Self {
        let loads = thread::scope(|scope| {
            let begun: Vec<_> = paths.iter().map(|path| (path.kind, scope.spawn(move || path.begin()))).collect();
            begun.into_iter().map(|(kind, load)| (kind, load.join().expect("a load"))).collect()
        });
        let acts = Self { loads, begun: SystemTime::now(), past: Vec::new() };
        acts.answered("at first");
        Self { begun: SystemTime::now(), ..acts }
    }

    /// Makes a change, and waits until each path is answered again; returns the time of the change.
    pub(crate) fn change(&mut self, what: &'static str, may: May, change: impl FnOnce()) -> Duration {
        let begun = SystemTime::now();
        let took = scenario(what, || {
            let timer = Instant::now();
            change();
            let took = timer.elapsed();
            self.answered(what);
            took
        });
        self.past.push(Act { what, may, begun, took });
        took
    }

    /// As [`Self::change`], with one that replaces the replicas of the egress group: waits until all is ready.
    pub(crate) fn replace(&mut self, stage: &Stage, what: &'static str, may: May, change: impl FnOnce()) -> Duration {
        let mut took = Duration::ZERO;
        self.change(what, may, || {
            let timer = Instant::now();
            stage.replaced("eg", change);
            took = timer.elapsed();
            stage.ready();
        });
        took
    }

    /// Waits until each path is answered from now on.
    fn answered(&self, what: &str) {
        let before: Vec<u64> = self.loads.iter().map(|(_, load)| load.so_far().answered_so_far()).collect();
        for ((kind, load), before) in self.loads.iter().zip(before) {
            until(&format!("{what}: an answer by: {kind}"), DEADLINE, || load.so_far().answered_so_far() > before);
        }
    }

    /// Ends the loads; panics on failures that are not permitted.
    pub(crate) fn end(self) {
        let Self { loads, begun, past } = self;
        let ends: Vec<SystemTime> = past.iter().skip(1).map(|act| act.begun).chain([SystemTime::now()]).collect();
        let reports: Vec<_> = loads.into_iter().map(|(kind, load)| (kind, load.end())).collect();
        let mut faults = Vec::new();
        for (kind, report) in &reports {
            println!("{kind}, all of it: {report}");
            report.measured(kind);
            if LoadOutcome::within(report, begun, past[0].begun).failed() > 0 {
                faults.push(format!("{kind}: failed before anything happened"));
            }
            for (act, end) in past.iter().zip(&ends) {
                let met = LoadOutcome::within(report, act.begun, *end);
                let line = format!("{}, {kind}: {:?}, {met}", act.what, act.took);
                println!("{line}");
                if !act.may.permits(kind, &met) {
                    faults.push(line);
                }
            }
        }
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

/// Outcome of a load in a period.
struct LoadOutcome {
    answered: u64,
    /// Number of failures by the second of the load in which they were due.
    seconds: BTreeMap<u64, usize>,
    /// Longest time without an answer, in seconds.
    silence: usize,
}

impl LoadOutcome {
    fn within(report: &LoadReport, from: SystemTime, to: SystemTime) -> Self {
        let mut seconds = BTreeMap::new();
        for due in report.failures().into_iter().filter(|due| (from..to).contains(due)) {
            *seconds.entry(report.since_begun(due).as_secs()).or_default() += 1;
        }
        let answered = report.answered_by(to) - report.answered_by(from);
        Self { answered, seconds, silence: report.longest_silence(from, to) }
    }

    fn failed(&self) -> usize {
        self.seconds.values().sum()
    }
}

impl fmt::Display for LoadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, seconds, silence } = self;
        write!(f, "{answered} answered, {} failed by second {seconds:?}, none answered for {silence} s", self.failed())
    }
}

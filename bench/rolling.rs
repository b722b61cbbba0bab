//! How do clients of a group experience a rolling restart, a killed replica and a lost or hung node, compared with the Tailscale operator?
//!
//! Both on the same cluster of two nodes, in the same run, alternating: ours, theirs, theirs, ours, and so on. Each creates a new group of
//! two replicas with its own proxies; the other one has no Pods meanwhile. New connections start at a fixed rate on the node that is not
//! lost, to the Service's cluster IP. The control plane of both is the stand-in of the tests; all else is real. Needs root and the output
//! of `tests/servers/build`.

pub(crate) mod event;
mod group;
pub(crate) mod offer;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;

use anyhow::{Context, Result};
use kit::cluster::chart::NAMESPACE;
use kit::operators::PORT;
use kit::report::Benchmark;
use kit::servers::tailscale_release;

use crate::players::{OURS, OperatorPair, THEIRS};
use crate::support::{Args, Point, Sheet, in_turn, ms, ratios, store};
use crate::traffic::outcome::LoadOutcome;

use event::{CALM, Event, Proxies};
use group::Group;
use offer::LoadRoute;

/// All of them in order: the slowest recoveries are last.
const ALL: [Event; 7] = [Event::Restart, Event::Killed, Event::Deleted, Event::PodsCut, Event::Lost, Event::CutInward, Event::Hung];
/// Events of every round, for ratios. The others happen in every second one.
pub(crate) const ALWAYS: [Event; 2] = [Event::Restart, Event::Killed];

/// Samples of an operator's proxies.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// How long rolling restarts took, in seconds.
    restarts: Vec<f64>,
    pub(crate) met: BTreeMap<Event, Vec<LoadOutcome>>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    play(
        args,
        &Question {
            benchmark: Benchmark::Rolling,
            text: "A group under new connections on a real cluster, whatever happens to it",
            services: 1,
        },
    )
}

/// The same with many Services, and the events of every round.
pub(crate) fn many(args: &Args) -> Result<Sheet> {
    let services = args.services.unwrap_or(100);
    play(
        args,
        &Question { benchmark: Benchmark::RollingMany, text: "A group of many Services under new connections to one of them", services },
    )
}

/// What is measured of a group.
struct Question {
    benchmark: Benchmark,
    text: &'static str,
    /// Services of the group.
    services: usize,
}

impl Question {
    fn events(&self) -> &'static [Event] {
        if self.services > 1 { &ALWAYS } else { &ALL }
    }
}

fn play(args: &Args, question: &Question) -> Result<Sheet> {
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let mut game = OperatorPair::begin();
    for round in 0..args.rounds.unwrap_or_else(|| args.repetitions(5)) {
        let both = [(&OURS, &mut ours), (&THEIRS, &mut theirs)];
        let playing = if args.quick { 1 } else { both.len() };
        let events: &[Event] = if args.quick || round % 2 == 1 { &ALWAYS } else { question.events() };
        // The second operator of a round is first in the next: a change takes longer than the measurement.
        for (party, taken) in in_turn(both, round).into_iter().take(playing) {
            game.hand_to(party);
            let group = Group(&game);
            group.settle();
            group.fill(question.services)?;
            taken.turn(party.name, &group, &way(&game)?, (events, round))?;
        }
        store(question.benchmark, args, &sheet(question, &ours, &theirs))?;
    }
    Ok(sheet(question, &ours, &theirs))
}

/// The figures of the rounds so far.
fn sheet(question: &Question, ours: &Samples, theirs: &Samples) -> Sheet {
    let mut sheet = Sheet::new(&format!("{}: the Tailscale operator's and Tailyard's", question.text));
    sheet.version("Tailscale operator", tailscale_release());
    for event in question.events().iter().copied() {
        for (party, taken) in [(&OURS, ours), (&THEIRS, theirs)] {
            let goal = (event == Event::Restart && *party == OURS).then_some("most ≤ 0");
            taken.add_to(&mut sheet, event, party.name, [goal, None]);
        }
    }
    compare(&mut sheet, ours, theirs);
    sheet
}

impl Samples {
    /// Runs the events of a round on proxies, one after the other.
    pub(crate) fn turn(&mut self, system: &str, proxies: &dyn Proxies, way: &LoadRoute, (events, round): (&[Event], usize)) -> Result<()> {
        for event in events {
            event.prepare(proxies);
            let (took, met) = way.loaded(event.rate(), || {
                sleep(CALM);
                event.happen(proxies, round)
            })?;
            eprintln!("{system}, {}: {took:?}, {met:?}", event.name());
            self.restarts.extend(took.map(|took| took.as_secs_f64()));
            self.met.entry(*event).or_default().push(met);
            event.repair(proxies.stage());
            way.forget()?;
            proxies.settle();
        }
        Ok(())
    }

    /// Figures of each time that an event happened.
    pub(crate) fn each(&self, event: Event, figure: fn(&LoadOutcome) -> f64) -> Vec<f64> {
        self.met.get(&event).into_iter().flatten().map(figure).collect()
    }

    /// Adds the outcomes of an event, with goals of the failed connects and of the longest time without an answer.
    pub(crate) fn add_to(&self, sheet: &mut Sheet, event: Event, system: &str, [failed, gap]: [Option<&str>; 2]) {
        let point = |of: &str| Point::of(&format!("{}: {of}", event.name()), system, 1_u64);
        if event == Event::Restart {
            sheet.plot(point("until all Pods are new and ready"), "s", self.restarts.clone(), None);
        }
        sheet.plot(point("failed connects"), "", self.each(event, |met| number(met.failed)), failed);
        sheet.plot(point("longest time without an answer"), "s", self.each(event, |met| met.gap.as_secs_f64()), gap);
        if event.is_of_a_node() {
            let after = |met: &LoadOutcome| met.last.saturating_sub(CALM).as_secs_f64();
            sheet.plot(point("until the last connect that failed"), "s", self.each(event, after), None);
        }
        let mut add = |what: &str, unit: &str, figure: fn(&LoadOutcome) -> f64| {
            sheet.add(format!("{}: {what}: {system}", event.name()), unit, self.each(event, figure), None);
        };
        add("refused at once, of those that failed", "", |met| number(met.refused));
        add("not answered within a second", "", |met| number(met.late));
        add("of so many connects", "", |met| number(met.sent));
        if event == Event::Restart {
            add("p99 of a connect", "ms", |met| ms(met.connect));
        }
    }
}

/// From the first node to the Service's address in the cluster.
fn way(game: &OperatorPair) -> Result<LoadRoute> {
    let cluster = &game.stage.cluster;
    let from = cluster.nodes.first().context("a node")?.machine.node.ns.clone();
    let child = cluster.kubectl(&["get", "service", "db", "-o", "jsonpath={.spec.externalName}"]);
    let child = child.split('.').next().context("a child")?;
    let address: IpAddr = cluster.kubectl(&["get", "service", "-n", NAMESPACE, child, "-o", "jsonpath={.spec.clusterIP}"]).parse()?;
    Ok(LoadRoute { from, to: SocketAddr::new(address, PORT), greeting: "db " })
}

/// Ours to theirs, turn by turn.
fn compare(sheet: &mut Sheet, ours: &Samples, theirs: &Samples) {
    sheet.add("rolling restart: time, ours to theirs", "ratio", ratios(&ours.restarts, &theirs.restarts), Some("≤ 0.4"));
    let both = |figure: fn(&LoadOutcome) -> f64| ratios(&ours.each(Event::Killed, figure), &theirs.each(Event::Killed, figure));
    let failed = both(|met| number(met.failed));
    sheet.add("replica killed: failed connects, ours to theirs, where theirs lost some", "ratio", failed, Some("≤ 0.05"));
    sheet.add("replica killed: not answered within a second, ours to theirs", "ratio", both(|met| number(met.late)), Some("≤ 0.5"));
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
pub(crate) fn number(count: usize) -> f64 {
    count as f64
}

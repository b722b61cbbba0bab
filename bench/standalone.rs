//! How do tailnet clients of a standalone Service experience a restart, a killed or deleted Pod and a lost node, compared with the
//! Tailscale operator?
//!
//! Both operators on the same cluster of two nodes, in turn, ours also with standby. Each creates the proxy of one Service of type
//! `LoadBalancer`. New connections start at a fixed rate on a tailnet node, to the address in the Service's status: it stays the same in
//! all events, so one client measures all systems. An egress Service would need a DNS query for each connection, as its name resolves to
//! the address of the Pod, and would measure the cluster's DNS too. The control plane of both is the stand-in of the tests; all else is
//! real. The target and the cluster's DNS servers are on the node that is not lost. Needs root and the output of `tests/servers/build`.

pub(crate) mod many;
mod proxy;

use anyhow::Result;
use kit::report::Benchmark;
use kit::servers::tailscale_release;

use crate::players::{OURS, Operator, OperatorPair, THEIRS};
use crate::rolling::event::{Event, Proxies};
use crate::rolling::{ALWAYS, Samples, number};
use crate::support::{Args, Sheet, in_turn, ratios, store};
use crate::traffic::outcome::LoadOutcome;

use proxy::{Proxy, prepare};

/// Events of the first and every second round; those of [`ALWAYS`] happen in all rounds.
const ALL: [Event; 5] = [Event::Restart, Event::Killed, Event::Deleted, Event::Lost, Event::PodsCut];
/// Class of the proxies.
const CLASS: &str = "lab";

/// A measured system.
struct Party {
    name: &'static str,
    operator: &'static Operator,
    standby: bool,
}

const PARTIES: [Party; 3] = [
    Party { name: OURS.name, operator: &OURS, standby: false },
    Party { name: "Tailyard with standby", operator: &OURS, standby: true },
    Party { name: THEIRS.name, operator: &THEIRS, standby: false },
];

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut all = [(); 3].map(|()| Samples::default());
    let mut game = OperatorPair::install();
    prepare(&game);
    let (client, _tailscaled) = game.stage.cluster.tailnet.node("guest");
    for round in 0..args.rounds.unwrap_or_else(|| args.repetitions(3)) {
        let events: &[Event] = if round % 2 == 1 { &ALWAYS } else { &ALL };
        for (party, taken) in in_turn(PARTIES.iter().zip(&mut all), round) {
            game.clear_for(party.operator);
            let proxy = Proxy::create(&game.stage, &client, party.standby)?;
            proxy.settle();
            taken.turn(party.name, &proxy, &proxy.route(), (events, round))?;
        }
        store(Benchmark::Standalone, args, &sheet(&all))?;
    }
    Ok(sheet(&all))
}

/// The figures of the rounds so far.
fn sheet(all: &[Samples; 3]) -> Sheet {
    let mut sheet = Sheet::new("The proxy of one Service under new connections on a real cluster: the Tailscale operator's and Tailyard's");
    sheet.version("Tailscale operator", tailscale_release());
    for event in ALL {
        for (party, taken) in PARTIES.iter().zip(all) {
            taken.add_to(&mut sheet, event, party.name, goals(event, party));
        }
    }
    let [ours, standby, theirs] = all;
    compare(&mut sheet, "ours to theirs", Some("≤ 0.5"), ours, theirs);
    compare(&mut sheet, "ours with standby to theirs", None, standby, theirs);
    sheet
}

/// Goals of failed connects and of the longest time without an answer.
fn goals(event: Event, party: &Party) -> [Option<&'static str>; 2] {
    match event {
        _ if !party.standby => [None, None],
        Event::Restart => [Some("most ≤ 0"), None],
        Event::Killed => [None, Some("most ≤ 3")],
        // A reconciler on the other node passes the claim of the lost Pod; the peer sends to that for 6.5 s.
        Event::Lost => [None, Some("most ≤ 8")],
        _ => [None, None],
    }
}

/// Ratios of the events after which the proxies of all parties return.
fn compare(sheet: &mut Sheet, which: &str, goal: Option<&str>, ours: &Samples, theirs: &Samples) {
    for event in [Event::Restart, Event::Killed, Event::Deleted] {
        let both = |figure: fn(&LoadOutcome) -> f64| ratios(&ours.each(event, figure), &theirs.each(event, figure));
        let failed = both(|met| number(met.failed));
        sheet.add(format!("{}: failed connects, {which}, where theirs lost some", event.name()), "ratio", failed, goal);
        let gap = both(|met| met.gap.as_secs_f64());
        sheet.add(format!("{}: longest time without an answer, {which}", event.name()), "ratio", gap, goal);
    }
}

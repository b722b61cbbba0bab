//! Figures of the ways to the API server: ours, the stock proxy's, and the direct one.

use super::Side;
use super::group::Usage;
use super::load::Experience;
use super::samples::{Requests, Samples};
use crate::support::{Point, Sheet, ms, ratios};

/// A figure of a usage.
type Part = fn(&Usage<f64>) -> f64;

/// A plot of what a way uses, with its unit and its samples.
type UsagePlot = (&'static str, &'static str, fn(&Samples) -> Vec<Usage<f64>>);

/// What is used by a proxy, and the goal of our ratio to the stock proxy's.
const USAGES: [(UsagePlot, Option<&str>); 5] = [
    (("processor time for each listed MB", "ms", |samples| samples.list.iter().map(|list| list.processor).collect()), None),
    (("processor time for each MB of a session", "ms", |samples| samples.stream.iter().map(|stream| stream.processor).collect()), None),
    (("resident with 500 watches", "MB", |samples| samples.watches.iter().map(|watches| watches.resident).collect()), Some("≤ 0.5")),
    (("processor at 500 watches without events", "%", |samples| samples.watches.iter().map(|watches| watches.idle).collect()), None),
    (("processor time for each event of a watch", "µs", |samples| samples.watches.iter().map(|watches| watches.event).collect()), None),
];

pub(crate) fn add(sheet: &mut Sheet, sides: &[Side; 3]) {
    let [ours, theirs, _] = sides;
    for side in sides {
        add_requests(sheet, side);
        add_transfers(sheet, side);
    }
    for side in [ours, theirs] {
        add_usages(sheet, side);
        add_events(sheet, side, if std::ptr::eq(side, ours) { Some("most ≤ 0") } else { None });
    }
    compare(sheet, &ours.samples, &theirs.samples);
}

/// Usage by a proxy, and by ours with its tailscaled, which the stock proxy includes.
fn parts(side: &Side) -> Vec<(String, Part)> {
    let own: (String, Part) = (side.name.to_owned(), |usage| usage.proxy);
    let whole: (String, Part) = (format!("{} and tailscaled", side.name), |usage| usage.with_tailscaled);
    if side.includes_tailscaled() { vec![own] } else { vec![own, whole] }
}

fn add_requests(sheet: &mut Sheet, side: &Side) {
    for (clients, runs) in &side.samples.requests {
        let of = |plot: &str| Point::of(plot, side.name, *clients);
        let each = |field: fn(&Requests) -> f64| runs.iter().map(field).collect::<Vec<_>>();
        sheet.plot(of("requests a second"), "1/s", each(|run| run.rate), None);
        sheet.plot(of("request: median latency"), "ms", each(|run| run.median), None);
        sheet.plot(of("request: 99th percentile of latency"), "ms", each(|run| run.p99), None);
        for (name, part) in side.group.iter().flat_map(|_| parts(side)) {
            let used = runs.iter().map(|run| part(&run.processor)).collect();
            sheet.plot(Point::of("processor time for each request", &name, *clients), "ms", used, None);
        }
    }
}

fn add_transfers(sheet: &mut Sheet, side: &Side) {
    let samples = &side.samples;
    let mut row = |plot: &str, unit: &str, values| sheet.plot(Point::limit(plot, side.name), unit, values, None);
    row("all Pods listed", "MB/s", samples.list.iter().map(|list| list.rate).collect());
    row("exec: connection until first byte", "ms", samples.exec.clone());
    row("exec: one long session", "MB/s", samples.stream.iter().map(|stream| stream.rate).collect());
}

fn add_usages(sheet: &mut Sheet, side: &Side) {
    for ((plot, unit, samples), _) in USAGES {
        for (name, part) in parts(side) {
            sheet.plot(Point::limit(plot, &name), unit, samples(&side.samples).iter().map(part).collect(), None);
        }
    }
}

fn add_events(sheet: &mut Sheet, side: &Side, goal: Option<&str>) {
    for (event, experiences, goal) in [("rolling restart", &side.samples.restart, goal), ("replica killed", &side.samples.kill, None)] {
        let each = |field: fn(&Experience) -> f64| experiences.iter().map(field).collect::<Vec<_>>();
        let mut add = |what: &str, unit: &str, values, goal| sheet.add(format!("{event}: {what}, {}", side.name), unit, values, goal);
        add("failed requests", "", each(|met| number(met.failed)), goal);
        add("requests repeated on another connection", "", each(|met| number(met.repeated)), None);
        add("longest time without a response", "s", each(|met| ms(met.gap) / 1e3), None);
        add("duration", "s", each(|met| ms(met.took) / 1e3), None);
    }
}

/// Ours to theirs, in each round.
fn compare(sheet: &mut Sheet, ours: &Samples, theirs: &Samples) {
    for ((clients, ours), theirs) in ours.requests.iter().zip(theirs.requests.values()) {
        let mut add = |what: &str, field: fn(&Requests) -> f64, goal| {
            let each = |runs: &[Requests]| runs.iter().map(field).collect::<Vec<_>>();
            let size = kit::sheet::counted(*clients, "client");
            sheet.add(format!("{what}, {size}: ours to theirs"), "ratio", ratios(&each(ours), &each(theirs)), goal);
        };
        add("requests a second", |run| run.rate, None);
        add("99th percentile of latency", |run| run.p99, Some("≤ 1"));
        add("processor time for each request", |run| run.processor.proxy, Some("≤ 0.5"));
        add("processor time for each request, tailscaled included", |run| run.processor.with_tailscaled, None);
    }
    for ((plot, _, samples), goal) in USAGES {
        let all: [(&str, Part, Option<&str>); 2] =
            [("", |usage| usage.proxy, goal), (", tailscaled included", |usage| usage.with_tailscaled, None)];
        for (suffix, part, goal) in all {
            let each = |of: &Samples| samples(of).iter().map(part).collect::<Vec<_>>();
            sheet.add(format!("{plot}{suffix}: ours to theirs"), "ratio", ratios(&each(ours), &each(theirs)), goal);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn number(count: usize) -> f64 {
    count as f64
}

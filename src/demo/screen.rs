//! Live view: a redrawn frame on a terminal, else one line per second.
//!
//! Fits 80 columns and 24 lines. Computed from the board alone.

use std::io::{self, Write};
use std::time::Duration;

use super::DemoOptions;
use super::scoreboard::{ReplicaPhase, ReplicaRow, Scoreboard, ServiceRow};
use super::services::target_letter;
use super::summary::failures_in_words;
use crate::load::frame::{BOLD, DIM, Frame, GREEN, PLAIN, RED, YELLOW, count};
use crate::model::diagnostics::load::Percentiles;

/// Number of listed services: the first ones, and of the others the newest.
const FIRST: usize = 6;
const NEWEST: usize = 2;
/// Number of listed events.
const SHOWN_EVENTS: usize = 3;

#[derive(Debug)]
pub struct Screen<W> {
    out: W,
    terminal: bool,
    frame: Frame,
}

impl<W: Write> Screen<W> {
    /// A screen on this handle. `terminal`: redrawn frames instead of lines.
    pub fn new(out: W, terminal: bool) -> Self {
        Self { out, terminal, frame: Frame::default() }
    }

    /// Interval of redraws.
    pub fn every(&self) -> Duration {
        if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(1) }
    }

    pub fn draw(&mut self, board: &Scoreboard, options: &DemoOptions) -> io::Result<()> {
        if !self.terminal {
            writeln!(self.out, "{}", line(board))?;
            return self.out.flush();
        }
        let frame = frame(board, options);
        self.frame.draw(&mut self.out, &frame)
    }

    /// Returns the handle.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// One line for logs and pipes.
fn line(board: &Scoreboard) -> String {
    let failed: u64 = board.tally.failed().values().sum();
    let swaps = swaps(board);
    let happened = board.events.iter().rev().map(|(at, event)| (*at + Duration::from_secs(1) > board.now()).then_some(event.as_str()));
    let event = happened.flatten().next().unwrap_or(&board.latest);
    format!(
        "{:5.1} s  answered {}  failed {failed}  flows {} open {} broken  swaps {} p50 {:.1} ms max {:.1} ms  {event}",
        board.now().as_secs_f64(),
        board.tally.answered(),
        board.flows.open,
        board.flows.broken,
        swaps.count,
        swaps.p50_ms,
        swaps.max_ms,
    )
}

fn frame(board: &Scoreboard, options: &DemoOptions) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{BOLD}tailyard demo{PLAIN}   {}, {} new connections a second   {BOLD}{:.1}{PLAIN} of {:.0} s",
            options.launch.backend,
            options.rate,
            board.now().min(options.lasts).as_secs_f64(),
            options.lasts.as_secs_f64()
        ),
        String::new(),
        format!(
            "{DIM}  {:<14} {:>10}  {:<6} {:>10} {:>10}   {:<12}{PLAIN}",
            "service", "match port", "target", "answered", "last swap", ""
        ),
    ];
    lines.extend(services(board));
    lines.push(String::new());
    let replicas: Vec<String> = board.members.iter().enumerate().map(|(number, member)| replica(number, member)).collect();
    lines.push(format!("  {}", replicas.join("     ")));
    lines.extend(counts(board));
    lines.push(format!("  latest change     {}", board.latest));
    lines.push(String::new());
    for (at, event) in board.events.iter().skip(board.events.len().saturating_sub(SHOWN_EVENTS)) {
        lines.push(format!("{DIM}{:>7.1} s{PLAIN}  {event}", at.as_secs_f64()));
    }
    lines
}

fn services(board: &Scoreboard) -> Vec<String> {
    let rows: Vec<String> = board.rows.values().map(service).collect();
    let left_out = rows.len().saturating_sub(FIRST + NEWEST);
    if left_out == 0 {
        return rows;
    }
    let (first, rest) = rows.split_at(FIRST);
    let more = format!("{DIM}  and {left_out} more{PLAIN}");
    first.iter().cloned().chain([more]).chain(rest.iter().skip(left_out).cloned()).collect()
}

fn service(row: &ServiceRow) -> String {
    const HUES: [&str; 3] = ["\x1b[36m", "\x1b[35m", "\x1b[34m"];
    let hue = HUES[usize::from(row.service.target) % HUES.len()];
    let swap = row.last_swap.map_or_else(String::new, |after| format!("{:.1} ms", after.as_secs_f64() * 1e3));
    let state = if row.active { "" } else { "not in use" };
    format!(
        "  {:<14} {:>10}  {hue}{:<6}{PLAIN} {:>10} {swap:>10}   {DIM}{state:<12}{PLAIN}",
        row.service.name(),
        row.service.match_port(),
        target_letter(row.service.target),
        row.answered
    )
}

fn replica(number: usize, member: &ReplicaRow) -> String {
    let (hue, text) = match (member.ready, member.life) {
        (true, ReplicaPhase::Running) => (GREEN, "ready"),
        (true, _) => (YELLOW, "not yet seen"),
        (false, ReplicaPhase::Killed) => (RED, "killed"),
        (false, ReplicaPhase::Leaving) => (YELLOW, "leaving"),
        (false, _) => (YELLOW, "starting"),
    };
    format!("replica {number} {hue}{text:<12}{PLAIN}")
}

fn counts(board: &Scoreboard) -> [String; 4] {
    let (tally, flows) = (&board.tally, board.flows);
    let failed = tally.failed().values().sum();
    let kinds = if failed == 0 { String::new() } else { format!("  ({})", failures_in_words(tally.failed())) };
    let excused: u64 = tally.excused().values().sum();
    let window = if excused == 0 { String::new() } else { format!("  {YELLOW}{excused} lost around SIGKILL{PLAIN}") };
    let (swaps, connect) = (swaps(board), tally.connect());
    let points = |p: Percentiles| format!("p50 {:>6.2} ms   p99 {:>6.2} ms   max {:>6.2} ms", p.p50_ms, p.p99_ms, p.max_ms);
    [
        format!("  new connections   {:>8} answered   {}{kinds}{window}", tally.answered(), count(failed, "failed")),
        format!(
            "  long-lived flows  {:>8} open       {}   {}   {} handed over",
            flows.open,
            count(flows.broken, "broken"),
            count(flows.wrong_target, "to a wrong target"),
            flows.handed_over
        ),
        format!("  config to kernel  {}   of {}", points(swaps), swaps.count),
        format!("  connect           {}", points(connect)),
    ]
}

fn swaps(board: &Scoreboard) -> Percentiles {
    Percentiles::of_all(board.swaps.iter().map(|(_, after)| *after))
}

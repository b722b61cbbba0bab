//! Terminal view of a load, computed from its report lines alone.

use std::io::{self, Write};

use super::frame::{BOLD, DIM, Frame, PLAIN, count};
use super::report::{Flows, Line, LoadEvent, LoadSummary, Second};
use crate::model::diagnostics::load::{AttemptFailure, Percentiles};

const SHOWN_EVENTS: usize = 6;

#[derive(Debug, Default)]
pub struct LoadView {
    frame: Frame,
    title: String,
    seconds: f64,
    lines: Vec<String>,
}

impl LoadView {
    /// Processes a line and draws the change.
    pub fn show(&mut self, out: &mut impl Write, line: &Line) -> io::Result<()> {
        match line {
            Line::Start { to, rate, seconds, .. } => {
                self.title = format!("{BOLD}tailyard load{PLAIN}   {}   {rate} new connections a second", to.join(", "));
                self.seconds = *seconds;
                Ok(())
            }
            Line::Fault { at, proto, to, failure, .. } => {
                self.note(*at, &format!("{proto} to {to}: {failure}"));
                Ok(())
            }
            Line::Flow { at, flow, idle, what, .. } => {
                let kind = if *idle { "idle" } else { "active" };
                self.note(*at, &format!("connection {flow} ({kind}) {}", happened(what)));
                Ok(())
            }
            Line::Second(second) => self.frame.draw(out, &self.lines(second)),
            Line::Summary(summary) => {
                self.frame.draw(out, &[])?;
                write!(out, "{}", balance(&self.title, summary))
            }
        }
    }

    fn note(&mut self, at: f64, text: &str) {
        if self.lines.len() == SHOWN_EVENTS {
            self.lines.remove(0);
        }
        self.lines.push(format!("{DIM}{at:>9.3} s{PLAIN}  {text}"));
    }

    fn lines(&self, second: &Second) -> Vec<String> {
        let Second { at, answered, failed, in_flight, answer, flows } = second;
        let mut lines = vec![
            format!("{}   {BOLD}{at:.0}{PLAIN} of {:.0} s", self.title, self.seconds),
            format!("  new connections  {answered:>9} answered   {}   {in_flight} under way", count(*failed, "failed")),
            format!("  this second      {}", points(*answer)),
        ];
        lines.extend(open_flows(*flows));
        lines.extend(self.lines.iter().cloned());
        lines
    }
}

fn happened(what: &LoadEvent) -> String {
    match what {
        LoadEvent::Open { greeting } if greeting.is_empty() => "established".to_owned(),
        LoadEvent::Open { greeting } => format!("established: {greeting}"),
        LoadEvent::NotOpened(failure) => format!("was not opened: {failure}"),
        LoadEvent::Ended(AttemptFailure::Timeout) => "hangs".to_owned(),
        LoadEvent::Ended(failure) => format!("ended: {failure}"),
        LoadEvent::Kept => "lasted".to_owned(),
    }
}

fn points(p: Percentiles) -> String {
    format!("p50 {:.1} ms   p99 {:.1} ms   max {:.1} ms", p.p50_ms, p.p99_ms, p.max_ms)
}

/// One line for the long-lived connections, if any were requested.
fn open_flows(flows: Flows) -> Option<String> {
    let Flows { open, not_opened, reset, ended, hung, .. } = flows;
    let [reset, ended] = [(reset, "reset"), (ended, "closed")].map(|(n, text)| count(n, text));
    let [hung, not_opened] = [(hung, "hung"), (not_opened, "not opened")].map(|(n, text)| count(n, text));
    (flows != Flows::default()).then(|| format!("  held open        {open:>9} stand      {reset}   {ended}   {hung}   {not_opened}"))
}

fn balance(title: &str, summary: &LoadSummary) -> String {
    let failed: u64 = summary.failed.values().sum();
    let answered: u64 = summary.answered.values().sum();
    let mut text = format!("{title}   {:.1} s\n", summary.seconds);
    let mut line = |line: &str| text.extend([line, "\n"]);
    line(&format!("  new connections  {answered:>9} answered   {}", count(failed, "failed")));
    for (failure, count) in &summary.failed {
        line(&format!("                   {count:>9} {failure}"));
    }
    for window in &summary.windows {
        line(&format!("  from {:.3} s to {:.3} s: {} failed", window.from, window.to, window.failed));
    }
    line(&format!("  connect          {}", points(summary.connect)));
    line(&format!("  answer           {}", points(summary.answer)));
    if let Some(open_flows) = open_flows(summary.flows) {
        line(&open_flows);
    }
    text
}

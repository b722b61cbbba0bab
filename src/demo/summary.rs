//! Result of a demo: the figures, and whether anything was lost.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::scoreboard::{FlowCounts, Scoreboard, ScoreboardChange};
use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{AttemptFailure, FailedAttempt, Percentiles};

/// The result, as printed by `--json`.
#[derive(Debug, Clone, Serialize)]
pub struct DemoSummary {
    /// Whether nothing was lost, nothing reached a wrong target, and no other fault occurred.
    pub ok: bool,
    /// Value of `--firewall-mode`.
    pub backend: String,
    /// Number of services at the start.
    pub services: u16,
    pub seconds: f64,
    /// New connections and UDP flows offered each second.
    pub rate: u32,
    /// New connections and UDP flows.
    pub connections: Connections,
    /// Long-lived connections and UDP flows.
    pub flows: FlowCounts,
    /// Time from the config's swap to the last family's first right answer, for each replica.
    pub swaps: BTreeMap<ScoreboardChange, Percentiles>,
    /// All changes together.
    pub all_swaps: Percentiles,
    /// Time for which UDP flows still used the previous target after a change was in force, where observed.
    pub udp_flows_behind: Percentiles,
    /// Faults without a counter.
    pub faults: Vec<String>,
    pub failures: Vec<FailedAttempt>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Connections {
    pub offered: u64,
    /// TCP connections answered by the right target.
    pub tcp: u64,
    /// UDP flows answered by the right target.
    pub udp: u64,
    pub resent: u64,
    /// Failures outside every documented window, by kind.
    pub failed: BTreeMap<AttemptFailure, u64>,
    /// Lost between a SIGKILL and its detection by the cluster, by kind.
    pub lost_in_documented_window: BTreeMap<AttemptFailure, u64>,
    /// Time from a connection's due time until it was established.
    pub connect: Percentiles,
    /// Time from an attempt's due time until its answer.
    pub answer: Percentiles,
}

impl DemoSummary {
    /// Summary of a board.
    pub fn of(board: &Scoreboard, backend: &str, services: u16, rate: u32, lasted: Duration) -> Self {
        let tally = &board.tally;
        let failed: u64 = tally.failed().values().sum();
        let excused: u64 = tally.excused().values().sum();
        let flows = board.flows;
        let swaps = |change| board.swaps.iter().filter(move |(kind, _)| *kind == change).map(|(_, after)| *after);
        Self {
            // An answer of a wrong target is never excused, not even in a window.
            ok: failed == 0
                && flows.broken == 0
                && flows.wrong_target == 0
                && board.faults.is_empty()
                && !tally.excused().contains_key(&AttemptFailure::WrongTarget),
            backend: backend.to_owned(),
            services,
            seconds: lasted.as_secs_f64(),
            rate,
            connections: Connections {
                offered: tally.answered() + failed + excused,
                tcp: tally.answered_over(Proto::Tcp),
                udp: tally.answered_over(Proto::Udp),
                resent: tally.resent(),
                failed: tally.failed().clone(),
                lost_in_documented_window: tally.excused().clone(),
                connect: tally.connect(),
                answer: tally.answer(),
            },
            flows,
            swaps: [ScoreboardChange::Retarget, ScoreboardChange::Add, ScoreboardChange::Remove]
                .into_iter()
                .map(|change| (change, Percentiles::of_all(swaps(change))))
                .collect(),
            all_swaps: Percentiles::of_all(board.swaps.iter().map(|(_, after)| *after)),
            udp_flows_behind: Percentiles::of_all(board.followed.iter().copied()),
            faults: board.faults.clone(),
            failures: tally.faults().to_vec(),
        }
    }
}

/// Failures by kind in a few words; `none` if there are none.
pub fn failures_in_words(failures: &BTreeMap<AttemptFailure, u64>) -> String {
    let words: Vec<String> = failures.iter().map(|(failure, count)| format!("{count} {failure}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

impl fmt::Display for DemoSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connections { offered, tcp, udp, resent, failed, lost_in_documented_window: lost, connect, .. } = &self.connections;
        writeln!(
            f,
            "{} services, {} backend, {:.0} s at {} new connections a second",
            self.services, self.backend, self.seconds, self.rate
        )?;
        writeln!(f)?;
        writeln!(f, "  new connections   {offered} offered: {tcp} TCP and {udp} UDP answered by the right target")?;
        writeln!(f, "  failed            {}", failures_in_words(failed))?;
        writeln!(f, "  around SIGKILL    {} (until the cluster saw it)", failures_in_words(lost))?;
        writeln!(f, "  connect           p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", connect.p50_ms, connect.p99_ms, connect.max_ms)?;
        let FlowCounts { answered, datagrams_lost, handed_over, broken, wrong_target, .. } = self.flows;
        writeln!(f, "  long-lived flows  {answered} questions answered, {broken} broken, {wrong_target} to a wrong target;")?;
        writeln!(
            f,
            "                    {handed_over} ended by their leaving replica and reopened, {} datagrams sent again",
            datagrams_lost + resent
        )?;
        for (change, p) in &self.swaps {
            let name = format!("{change:?}").to_lowercase();
            writeln!(f, "  {name:<16}  p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms of {}", p.p50_ms, p.p99_ms, p.max_ms, p.count)?;
        }
        let behind = self.udp_flows_behind;
        if behind.count > 0 {
            writeln!(f, "  UDP flows         {} times caught at the target of before, at most {:.0} ms long", behind.count, behind.max_ms)?;
        }
        for fault in &self.faults {
            writeln!(f, "  FAULT             {fault}")?;
        }
        writeln!(f)?;
        f.write_str(if self.ok { "Nothing was lost." } else { "Something went wrong." })
    }
}

//! Output of a run on the terminal and in `target/tiers.json`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use serde::Serialize;

use super::events::{Ended, EndedScenario, TestResult};
use super::table::{Table, Tier};
use super::verdict::Outcome;

const SLOWEST: usize = 10;

/// The figures of a run: all outcomes of a tier are added up.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    passed: bool,
    rounds: u32,
    rounds_passed: u32,
    wall_seconds: f64,
    tiers: Vec<Line>,
    slowest: Vec<Slow>,
    /// Parts of tests, by tier.
    scenarios: BTreeMap<&'static str, Vec<EndedScenario>>,
    failures: Vec<Failure>,
    /// Start times of servers in seconds, by server.
    boots: BTreeMap<String, Vec<f64>>,
}

#[derive(Debug, Serialize)]
struct Line {
    tier: &'static str,
    tests: usize,
    failed: usize,
    ignored: usize,
    wait_seconds: f64,
    run_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Slow {
    test: String,
    tier: &'static str,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Failure {
    round: u32,
    tier: &'static str,
    test: Option<String>,
    reason: String,
}

/// Prints a line. A closed standard output is no reason to stop.
pub(super) fn say(text: &str) {
    let _closed = writeln!(io::stdout(), "{text}");
}

/// The tiers as a table.
pub(super) fn list(table: &Table) -> String {
    let mut text = format!("{:<10} {:<9} {:>7} {:>5} {:>8} {:>6}  needs\n", "tier", "program", "threads", "slots", "expected", "limit");
    for tier in table.tiers {
        let needs: Vec<&str> = tier.resource.into_iter().chain(tier.servers.iter().copied().flatten().copied()).collect();
        let (program, slots) = (tier.program.target, tier.slots);
        let Tier { name, threads, expected, limit, .. } = tier;
        let _infallible = writeln!(text, "{name:<10} {program:<9} {threads:>7} {slots:>5} {expected:>8} {limit:>6}  {}", needs.join(" "));
    }
    text
}

/// The end of a tier: one line, then each fault with its output and the command that repeats the test.
pub(super) fn ended(outcome: &Outcome, tier: &Tier) -> String {
    let [passed, failed, ignored] =
        [TestResult::Passed, TestResult::Failed, TestResult::Ignored].map(|result| outcome.output.count(result));
    let verdict = if outcome.faults.is_empty() { "ok" } else { "FAILED" };
    let (name, failed) = (tier.name, failed + outcome.output.running.len());
    let mut text = format!("tier {name}: {verdict}: {passed} passed, {failed} failed, {ignored} ignored, {:.1} s", outcome.seconds);
    for EndedScenario { scenario, passed, seconds, .. } in &outcome.output.scenarios {
        let result = if *passed { "ok" } else { "FAILED" };
        let _infallible = write!(text, "\n  {scenario} ... {result} <{seconds:.1}s>");
    }
    for fault in &outcome.faults {
        let subject = fault.test.as_ref().map_or_else(|| format!("tier {name}"), |test| format!("{name}: {test}"));
        let _infallible = write!(text, "\n\n---- {subject}: {}", fault.reason);
        if !fault.output.is_empty() {
            let _infallible = write!(text, "\n{}", fault.output.trim_end());
        }
        if let Some(test) = &fault.test {
            let _infallible = write!(text, "\nrepeat: {}", tier.program.repeat(test));
        }
    }
    if !outcome.faults.is_empty() {
        text.push('\n');
    }
    text
}

impl Report {
    pub(super) fn new(tiers: &[&'static Tier], outcomes: &[Outcome], rounds: u32, wall_seconds: f64) -> Self {
        let of = |tier: &Tier| outcomes.iter().filter(|outcome| outcome.tier == tier.name).collect::<Vec<_>>();
        // A round that was stopped lacks outcomes.
        let good = |round: u32| outcomes.iter().filter(|outcome| outcome.round == round && outcome.faults.is_empty()).count();
        let passed = |round: u32| good(round) == tiers.len();
        let rounds_passed = (1..=rounds).filter(|&round| passed(round)).count();
        let slow = |tier: &'static str, test: &Ended| Slow { test: test.name.clone(), tier, seconds: test.seconds };
        let ran = |outcome: &'_ Outcome| {
            let ran = outcome.output.ended.iter().filter(|test| test.result != TestResult::Ignored);
            ran.map(|test| slow(outcome.tier, test)).collect::<Vec<_>>()
        };
        let mut slowest: Vec<Slow> = outcomes.iter().flat_map(ran).collect();
        slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        slowest.truncate(SLOWEST);
        let mut boots = BTreeMap::<String, Vec<f64>>::new();
        for (server, mut seconds) in outcomes.iter().flat_map(|outcome| outcome.output.boots()) {
            boots.entry(server).or_default().append(&mut seconds);
        }
        let mut scenarios = BTreeMap::<_, Vec<_>>::new();
        for outcome in outcomes.iter().filter(|outcome| !outcome.output.scenarios.is_empty()) {
            scenarios.entry(outcome.tier).or_default().extend(outcome.output.scenarios.iter().cloned());
        }
        Self {
            scenarios,
            passed: rounds_passed == rounds as usize,
            rounds,
            rounds_passed: u32::try_from(rounds_passed).unwrap_or(rounds),
            wall_seconds,
            tiers: tiers.iter().map(|tier| Line::new(tier.name, &of(tier))).collect(),
            slowest,
            failures: outcomes.iter().flat_map(failures).collect(),
            boots,
        }
    }

    pub(super) const fn passed(&self) -> bool {
        self.passed
    }

    /// The report's last part: a table, the slowest tests, the failures once more.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\n{:<12} {:>6} {:>7} {:>8} {:>8}\n", "tier", "tests", "failed", "wait s", "run s");
        for Line { tier, tests, failed, wait_seconds, run_seconds, .. } in &self.tiers {
            let _infallible = writeln!(text, "{tier:<12} {tests:>6} {failed:>7} {wait_seconds:>8.1} {run_seconds:>8.1}");
        }
        let _infallible = writeln!(text, "\nslowest tests:");
        for Slow { test, tier, seconds } in &self.slowest {
            let _infallible = writeln!(text, "{seconds:>8.2} s  {tier}: {test}");
        }
        for (server, seconds) in &self.boots {
            let most = seconds.iter().copied().fold(0.0, f64::max);
            let _infallible = writeln!(
                text,
                "boot of {server}: {} times, {:.2} s in all, at most {most:.2} s",
                seconds.len(),
                seconds.iter().sum::<f64>()
            );
        }
        for Failure { round, tier, test, reason } in &self.failures {
            let round = if self.rounds > 1 { format!(" in round {round}") } else { String::new() };
            let _infallible = writeln!(text, "FAILED{round}: {tier}: {} {reason}", test.as_deref().unwrap_or("-"));
        }
        let rounds = if self.rounds > 1 { format!("{} of {} rounds passed, ", self.rounds_passed, self.rounds) } else { String::new() };
        let verdict = if self.passed { "ok" } else { "FAILED" };
        let _infallible = write!(text, "\n{verdict}: {rounds}{:.1} s", self.wall_seconds);
        text
    }
}

impl Line {
    fn new(tier: &'static str, outcomes: &[&Outcome]) -> Self {
        let count = |result| outcomes.iter().map(|outcome| outcome.output.count(result)).sum::<usize>();
        let unfinished: usize = outcomes.iter().map(|outcome| outcome.output.running.len()).sum();
        let failed = count(TestResult::Failed) + unfinished;
        Self {
            tier,
            tests: count(TestResult::Passed) + failed,
            failed,
            ignored: count(TestResult::Ignored),
            wait_seconds: outcomes.iter().map(|outcome| outcome.wait).fold(0.0, f64::max),
            run_seconds: outcomes.iter().map(|outcome| outcome.seconds).sum(),
        }
    }
}

fn failures(outcome: &Outcome) -> impl Iterator<Item = Failure> {
    outcome.faults.iter().map(|fault| Failure {
        round: outcome.round,
        tier: outcome.tier,
        test: fault.test.clone(),
        reason: fault.reason.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::events::parse;
    use crate::tiers::table::TAILYARD;
    use crate::tiers::verdict::Fault;

    fn outcome(round: u32, faults: Vec<Fault>) -> Outcome {
        let line = |name: &str, event: &str, seconds: f64| {
            format!(
                r#"{{ "type": "test", "name": "kernel::{name}", "event": "{event}", "exec_time": {seconds}, "stdout": "boot: etcd {seconds} s\ntest a part of {name} ... ok <0.500s>" }}"#
            )
        };
        let output = parse(&[line("a", "ok", 1.5), line("b", if faults.is_empty() { "ok" } else { "failed" }, 3.5)].join("\n"));
        Outcome { tier: "kernel", round, output, faults, wait: 2.0, seconds: 5.0 }
    }

    fn kernel() -> &'static Tier {
        TAILYARD.tiers.iter().find(|tier| tier.name == "kernel").expect("a tier")
    }

    fn fault() -> Fault {
        Fault { test: Some("kernel::b".to_owned()), reason: "failed".to_owned(), output: "left: 1\n".to_owned() }
    }

    #[test]
    fn a_failure_is_printed_with_its_output_and_its_command() {
        let expected = "tier kernel: FAILED: 1 passed, 1 failed, 0 ignored, 5.0 s\n  a part of a ... ok <0.5s>\n  a part of b ... ok <0.5s>\n\n---- kernel: kernel::b: failed\nleft: 1\n\
                        repeat: cargo test --locked --test machine kernel::b -- --exact --nocapture\n";
        assert_eq!(ended(&outcome(1, vec![fault()]), kernel()), expected);
    }

    #[test]
    fn rounds_are_added_up_and_failures_name_theirs() {
        let report = Report::new(&[kernel()], &[outcome(1, Vec::new()), outcome(2, vec![fault()])], 2, 11.0);
        let text = report.text();
        assert!(!report.passed() && text.ends_with("FAILED: 1 of 2 rounds passed, 11.0 s"), "{text}");
        assert!(text.contains("kernel            4       1      2.0     10.0\n"), "{text}");
        assert!(text.contains("slowest tests:\n    3.50 s  kernel: kernel::b\n"), "{text}");
        assert!(text.contains("FAILED in round 2: kernel: kernel::b failed\n"), "{text}");
        assert!(text.contains("boot of etcd: 4 times, 10.00 s in all, at most 3.50 s\n"), "{text}");
        assert_eq!(report.scenarios["kernel"].len(), 4);
        assert!(Report::new(&[kernel()], &[outcome(1, Vec::new())], 1, 5.0).passed());
        assert_eq!(Report::new(&[kernel()], &[outcome(1, Vec::new())], 3, 5.0).rounds_passed, 1, "two rounds did not run");
    }
}

//! The verdict on a finished test process: which tests failed, and whether the process itself did.

use std::iter;

use super::events::{Output, TestResult};
use super::process::End;

/// The outcome of a tier in one round.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) tier: &'static str,
    /// From 1.
    pub(super) round: u32,
    pub(super) output: Output,
    pub(super) faults: Vec<Fault>,
    /// Seconds from the start of the schedule until its servers were built.
    pub(super) wait: f64,
    /// Seconds from the start of its process to the end.
    pub(super) seconds: f64,
}

/// A failed test, or a failure of the process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) test: Option<String>,
    pub(super) reason: String,
    pub(super) output: String,
}

impl Fault {
    pub(super) fn of_tier(reason: impl Into<String>, output: String) -> Self {
        Self { test: None, reason: reason.into(), output }
    }
}

/// Maximum length of a failed test's reason, in characters.
const REASON_LENGTH: usize = 1_000;

/// Lines of standard error that a report repeats.
const SHOWN_LINES: usize = 200;

/// The faults of a test process that wrote `errors` on standard error. The failure of the process itself comes first.
pub(super) fn faults(output: &Output, end: End, errors: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !finished(output, end) {
        let not_started = output.planned.saturating_sub(output.ended.len() + output.running.len());
        let reason = format!("the process {end}; {} tests were running, {not_started} did not start", output.running.len());
        faults.push(Fault::of_tier(reason, tail(&format!("{}{errors}", output.other))));
    } else if output.count(TestResult::Passed) + output.count(TestResult::Failed) == 0 {
        faults.push(Fault::of_tier("no test ran", String::new()));
    }
    let fault = |name: &str, reason: &str, output: &str| Fault {
        test: Some(name.to_owned()),
        reason: reason.to_owned(),
        output: output.to_owned(),
    };
    faults.extend(output.running.iter().map(|name| fault(name, "did not end", "")));
    let failed = output.ended.iter().filter(|test| test.result == TestResult::Failed);
    faults.extend(failed.map(|test| fault(&test.name, &reason(&test.output), &test.output)));
    faults
}

/// Why a test failed, on one line: the first panic of its output, as others follow from it. The end of a log is all that some of its readers
/// have.
fn reason(output: &str) -> String {
    let panic = output.split_once(" panicked at ").map(|(_, panic)| {
        let end = ["\nstack backtrace:", "\nnote: "].iter().filter_map(|end| panic.find(end)).min();
        &panic[..end.unwrap_or(panic.len())]
    });
    let words = panic.into_iter().flat_map(str::split_whitespace);
    let text = iter::once("failed").chain(words).collect::<Vec<_>>().join(" ");
    text.chars().take(REASON_LENGTH).collect()
}

/// Whether the process reported all results. libtest exits with 101 if tests failed.
fn finished(output: &Output, end: End) -> bool {
    matches!(end, End::Exited(status) if output.complete && matches!(status.code(), Some(0 | 101)))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(SHOWN_LINES);
    let head = if skipped > 0 { format!("({skipped} lines before)\n") } else { String::new() };
    head + &lines[skipped..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::*;
    use crate::tiers::events::parse;

    const STARTED: &str = concat!(
        r#"{ "type": "suite", "event": "started", "test_count": 4 }"#,
        "\n",
        r#"{ "type": "test", "event": "started", "name": "a::x" }"#,
        "\n",
        r#"{ "type": "test", "name": "a::x", "event": "ok", "exec_time": 1.0 }"#,
        "\n",
        r#"{ "type": "test", "event": "started", "name": "a::y" }"#,
        "\n",
    );

    fn exit(code: i32) -> End {
        End::Exited(ExitStatus::from_raw(code << 8))
    }

    fn reasons(text: &str, end: End) -> Vec<(Option<String>, String)> {
        faults(&parse(text), end, "text\n").into_iter().map(|fault| (fault.test, fault.reason)).collect()
    }

    #[test]
    fn tests_that_ran_in_a_killed_process_are_failures() {
        let running = (Some("a::y".to_owned()), "did not end".to_owned());
        let of_process = |reason: &str| (None, format!("the process {reason}; 1 tests were running, 2 did not start"));
        let aborted = reasons(STARTED, End::Exited(ExitStatus::from_raw(6)));
        assert_eq!(aborted, [of_process("ended with signal: 6 (SIGABRT)"), running.clone()]);
        let hanging = reasons(STARTED, End::Limit(Duration::from_mins(1)));
        assert_eq!(hanging, [of_process("was killed after its limit of 60 s"), running.clone()]);
        assert_eq!(reasons(STARTED, exit(0)), [of_process("ended with exit status: 0"), running], "a test called exit(0)");
    }

    #[test]
    fn failed_tests_are_the_only_faults_of_a_complete_process() {
        let failed = r#"{ "type": "test", "name": "a::y", "event": "failed", "exec_time": 1.0, "stdout": "left" }"#;
        let text = format!("{STARTED}{failed}\n{{ \"type\": \"suite\", \"event\": \"failed\" }}");
        let expected = Fault { test: Some("a::y".to_owned()), reason: "failed".to_owned(), output: "left".to_owned() };
        assert_eq!(faults(&parse(&text), exit(101), "noise"), [expected]);
    }

    #[test]
    fn reason_of_a_failed_test_is_its_first_panic_on_one_line() {
        let output = "a line\nthread 'a' panicked at a.rs:1:2:\nleft: 1\n  right: 2\nstack backtrace:\n   0: b\nnote: run\n\nthread 'b' panicked at b.rs:3:4:\nno answer";
        assert_eq!(reason(output), "failed a.rs:1:2: left: 1 right: 2");
        assert_eq!(reason("thread 'a' panicked at a.rs:1:2:\nno answer\nnote: run"), "failed a.rs:1:2: no answer");
        assert_eq!(reason("Error: no file"), "failed");
        assert_eq!(reason(&format!(" panicked at {}", "x".repeat(5_000))).len(), REASON_LENGTH);
    }

    #[test]
    fn a_process_without_tests_is_a_failure() {
        assert_eq!(reasons(r#"{ "type": "suite", "event": "ok" }"#, exit(0)), [(None, "no test ran".to_owned())]);
    }

    #[test]
    fn standard_error_is_cut_to_its_last_lines() {
        let text: String = (0..SHOWN_LINES + 5).flat_map(|line| [line.to_string(), "\n".to_owned()]).collect();
        assert!(tail(&text).starts_with("(5 lines before)\n5\n6\n"));
        assert_eq!(tail("a\nb\n"), "a\nb");
    }
}

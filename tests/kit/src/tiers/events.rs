//! libtest's JSON output: one event per line, mixed with output of child processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::scenario;

/// The events of a test process that a report needs.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Output {
    /// Tests that the process intended to run, ignored ones among them.
    pub(super) planned: usize,
    /// In the order of their ends.
    pub(super) ended: Vec<Ended>,
    /// Scenarios of these tests.
    pub(super) scenarios: Vec<EndedScenario>,
    /// Tests that started and did not end.
    pub(super) running: Vec<String>,
    /// The process reported the result of all tests.
    pub(super) complete: bool,
    /// Lines that are no events.
    pub(super) other: String,
}

/// A finished test.
#[derive(Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) result: TestResult,
    pub(super) seconds: f64,
    /// Captured output, followed by libtest's own message.
    pub(super) output: String,
}

/// A finished part of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct EndedScenario {
    pub(super) test: String,
    pub(super) scenario: String,
    pub(super) passed: bool,
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestResult {
    Passed,
    Failed,
    Ignored,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    subject: String,
    #[serde(rename = "event")]
    what: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    test_count: usize,
    #[serde(default)]
    exec_time: f64,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    message: String,
}

/// Parses the standard output of a test process, complete or cut off.
pub(super) fn parse(text: &str) -> Output {
    let mut output = Output::default();
    for line in text.lines() {
        // A child of a test may have written a part of a line before.
        let (before, event) = line.find(r#"{ "type": "#).map_or((line, ""), |at| line.split_at(at));
        let Ok(event) = serde_json::from_str::<Event>(event) else {
            output.other.extend([line, "\n"]);
            continue;
        };
        if !before.is_empty() {
            output.other.extend([before, "\n"]);
        }
        output.add(event);
    }
    output
}

impl Output {
    fn add(&mut self, event: Event) {
        match (event.subject.as_str(), event.what.as_str()) {
            ("suite", "started") => self.planned = event.test_count,
            ("suite", _) => self.complete = true,
            ("test", "started") => self.running.push(event.name),
            ("test", "ok") => self.end(event, TestResult::Passed),
            ("test", "failed") => self.end(event, TestResult::Failed),
            ("test", "ignored") => self.end(event, TestResult::Ignored),
            _ => {}
        }
    }

    fn end(&mut self, event: Event, result: TestResult) {
        self.running.retain(|name| *name != event.name);
        let mut output = event.stdout;
        let scenarios = output.lines().filter_map(scenario::parse).map(|(scenario, passed, seconds)| EndedScenario {
            test: event.name.clone(),
            scenario: scenario.to_owned(),
            passed,
            seconds,
        });
        self.scenarios.extend(scenarios);
        if !event.message.is_empty() {
            output.extend([event.message.as_str(), "\n"]);
        }
        self.ended.push(Ended { name: event.name, result, seconds: event.exec_time, output });
    }

    pub(super) fn count(&self, result: TestResult) -> usize {
        self.ended.iter().filter(|test| test.result == result).count()
    }

    /// Start times of servers, which tests print as `boot: NAME SECONDS s`.
    pub(super) fn boots(&self) -> BTreeMap<String, Vec<f64>> {
        let mut boots = BTreeMap::<String, Vec<f64>>::new();
        for line in self.ended.iter().flat_map(|test| test.output.lines()) {
            let parts = line.strip_prefix("boot: ").and_then(|line| line.strip_suffix(" s")?.rsplit_once(' '));
            if let Some((name, Ok(seconds))) = parts.map(|(name, seconds)| (name, seconds.parse())) {
                boots.entry(name.to_owned()).or_default().push(seconds);
            }
        }
        boots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{ "type": "suite", "event": "started", "test_count": 4 }
{ "type": "test", "event": "started", "name": "a::x" }
a line of a child
{ "type": "test", "event": "started", "name": "a::y" }
{ "type": "test", "event": "started", "name": "a::z" }
{ "type": "test", "name": "a::z", "event": "ignored" }
half a line{ "type": "test", "name": "a::x", "event": "ok", "exec_time": 0.25, "stdout": "boot: etcd 1.5 s\nboot: none s\ntest a part ... ok <0.125s>\n" }
{ "type": "test", "event": "started", "name": "a::w" }
{ "type": "test", "event": "timeout", "name": "a::w" }
{ "type": "test", "name": "a::y", "event": "failed", "exec_time": 2.0, "stdout": "left\n", "message": "why" }
{ "type": "tes"#;

    #[test]
    fn events_are_parsed_among_other_lines() {
        let output = parse(TEXT);
        let ended: Vec<_> = output.ended.iter().map(|test| (test.name.as_str(), test.result, test.seconds)).collect();
        let expected = [("a::z", TestResult::Ignored, 0.0), ("a::x", TestResult::Passed, 0.25), ("a::y", TestResult::Failed, 2.0)];
        assert_eq!(ended, expected);
        assert_eq!(output.ended[2].output, "left\nwhy\n");
        assert_eq!((output.planned, output.complete, output.running.as_slice()), (4, false, &["a::w".to_owned()][..]));
        assert_eq!(output.other, "a line of a child\nhalf a line\n{ \"type\": \"tes\n");
        let part = EndedScenario { test: "a::x".to_owned(), scenario: "a part".to_owned(), passed: true, seconds: 0.125 };
        assert_eq!(output.scenarios, [part]);
        assert_eq!(output.boots(), BTreeMap::from([("etcd".to_owned(), vec![1.5])]));
    }

    #[test]
    fn a_final_suite_event_completes_the_output() {
        assert!(parse(r#"{ "type": "suite", "event": "ok", "passed": 0, "exec_time": 0.0 }"#).complete);
    }
}

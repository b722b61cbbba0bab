//! Goals of measured lines: how many are reached, and a table of the missed ones.

use super::number::{SPREAD, spread};
use crate::sheet::Line;

/// The goal of a figure.
#[derive(Debug, PartialEq)]
struct Goal {
    of: Of,
    bound: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    Median,
    P99,
    Most,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// `≥ 0.95`, `p99 ≤ 25`, `most ≤ 0`.
    fn read(text: &str) -> Result<Self, String> {
        let bad = || format!("no goal: {text}");
        let (of, rest) = match text.split_once(' ') {
            Some(("p99", rest)) => (Of::P99, rest),
            Some(("most", rest)) => (Of::Most, rest),
            _ => (Of::Median, text),
        };
        let (sign, number) = rest.split_once(' ').ok_or_else(bad)?;
        let number = number.replace(',', "").parse().map_err(|_| bad())?;
        match sign {
            "≤" => Ok(Self { of, bound: Bound::AtMost(number) }),
            "≥" => Ok(Self { of, bound: Bound::AtLeast(number) }),
            _ => Err(bad()),
        }
    }

    fn is_reached(&self, line: &Line) -> bool {
        let reached = match self.of {
            Of::Median => line.median,
            Of::P99 => line.p99,
            Of::Most => line.range[1],
        };
        match self.bound {
            Bound::AtMost(bound) => reached <= bound,
            Bound::AtLeast(bound) => reached >= bound,
        }
    }
}

/// The figure that a goal names, to be drawn.
pub(crate) fn bound(line: &Line) -> Option<f64> {
    match Goal::read(line.goal.as_deref()?).ok()?.bound {
        Bound::AtMost(bound) | Bound::AtLeast(bound) => Some(bound),
    }
}

/// A goal and its result.
pub(crate) struct Row {
    is_reached: bool,
    text: String,
}

impl Row {
    /// That of a measured line, if it has a goal.
    pub(crate) fn of(heading: &str, line: &Line) -> Result<Option<Self>, String> {
        let Some(text) = &line.goal else { return Ok(None) };
        let goal = Goal::read(text)?;
        let (what, to, figures) = (&line.what, anchor(heading), spread(line, goal.of == Of::P99));
        let text = format!("| [{heading}](#{to}) | {what} | {text} | {figures} |\n");
        Ok(Some(Self { is_reached: goal.is_reached(line), text }))
    }
}

/// How many goals are reached, and a table of the others.
pub(crate) fn summary(rows: &[Row]) -> String {
    let missed: Vec<&str> = rows.iter().filter(|row| !row.is_reached).map(|row| row.text.as_str()).collect();
    let reached = format!("{} of {} goals are reached.", rows.len() - missed.len(), rows.len());
    if missed.is_empty() {
        return reached + "\n";
    }
    format!("{reached} Missed:\n\n| question | figure | goal | {SPREAD} |\n|---|---|---:|---:|\n{}", missed.concat())
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let slug = heading.to_lowercase().replace(' ', "-");
    slug.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
}

#[test]
fn goals_are_parsed_and_compared() {
    let line =
        Line { what: String::new(), unit: String::new(), count: 3, median: 2.0, range: [1.0, 9.0], p99: 8.0, goal: None, point: None };
    let outcome_of = |text: &str| Goal::read(text).map(|goal| goal.is_reached(&line));
    assert_eq!(
        ["≤ 2", "≥ 2.5", "p99 ≤ 7", "p99 ≤ 8", "most ≤ 1,000", "most ≤ 8"].map(outcome_of),
        [true, false, false, true, true, false].map(Ok)
    );
    for bad in ["", "about 0", "≤ 25 ms", "p50 ≤ 1", "= 1"] {
        Goal::read(bad).unwrap_err();
    }
    assert_eq!(summary(&[]), "0 of 0 goals are reached.\n");
    assert_eq!(anchor("Config file written → in force"), "config-file-written--in-force");
}

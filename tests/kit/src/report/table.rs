//! The figures of a sheet as tables: those of plots folded away under them.

use std::fmt::Write;

use super::number::figure;
use crate::sheet::{Line, Sheet};

/// All figures.
pub(crate) fn of(sheet: &Sheet) -> String {
    let (points, lines): (Vec<_>, Vec<_>) = sheet.lines.iter().partition(|line| line.point.is_some());
    let mut text = rows(&lines);
    if !points.is_empty() {
        let _ = write!(text, "<details><summary>All figures of the plots</summary>\n\n{}</details>\n\n", rows(&points));
    }
    text
}

fn rows(lines: &[&Line]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = "| | unit | median | least | most | p99 | n | goal |\n|---|---|---:|---:|---:|---:|---:|---|\n".to_owned();
    for Line { what, unit, count, median, range, p99, goal, .. } in lines {
        let [median, least, most, p99] = [*median, range[0], range[1], *p99].map(figure);
        let goal = goal.as_deref().unwrap_or_default();
        let _ = writeln!(text, "| {what} | {unit} | {median} | {least} | {most} | {p99} | {count} | {goal} |");
    }
    text + "\n"
}

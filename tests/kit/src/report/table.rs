//! The figures of a sheet that no plot shows, as a table.

use std::fmt::Write;

use super::number::figure;
use crate::sheet::{Line, Sheet};

/// One row for each figure that no plot shows; empty if there is none.
pub(crate) fn of(sheet: &Sheet) -> String {
    let mut text = String::new();
    for line in sheet.lines.iter().filter(|line| line.point.is_none()) {
        if text.is_empty() {
            text += "| | unit | median | least | most | p99 | n | goal |\n|---|---|---:|---:|---:|---:|---:|---|\n";
        }
        let Line { what, unit, count, median, range, p99, goal, .. } = line;
        let [median, least, most, p99] = [*median, range[0], range[1], *p99].map(figure);
        let goal = goal.as_deref().unwrap_or_default();
        let _ = writeln!(text, "| {what} | {unit} | {median} | {least} | {most} | {p99} | {count} | {goal} |");
    }
    if text.is_empty() { text } else { text + "\n" }
}

//! The figures of a sheet that no plot shows, as a table.

use std::fmt::Write;

use super::number::{SPREAD, spread};
use super::plot::is_drawn;
use crate::sheet::{Line, Sheet};

/// One row for each figure that has a goal and is not drawn. Of the others, ratios if the sheet has a plot, else all that are not
/// zero. The rest is in the sheet alone.
pub(crate) fn of(sheet: &Sheet) -> String {
    let has_plot = sheet.lines.iter().any(|line| is_drawn(sheet, line));
    let is_listed = |line: &&Line| match line.goal {
        Some(_) => true,
        None if has_plot => line.unit == "ratio",
        None => line.range[1] > 0.0,
    };
    let lines: Vec<&Line> = sheet.lines.iter().filter(|line| !is_drawn(sheet, line)).filter(is_listed).collect();
    if lines.is_empty() {
        return String::new();
    }
    let has_goals = lines.iter().any(|line| line.goal.is_some());
    let (title, rule) = if has_goals { (" goal |", "---:|") } else { ("", "") };
    let mut text = format!("| | {SPREAD} |{title}\n|---|---:|{rule}\n");
    for line in lines {
        let goal = if has_goals { format!(" {} |", line.goal.as_deref().unwrap_or("–")) } else { String::new() };
        let _ = writeln!(text, "| {} | {} |{goal}", line.what, spread(line, false));
    }
    text + "\n"
}

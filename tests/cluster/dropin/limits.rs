//! Table of docs/migrate.md: limits of the interruption of each kind of path, in seconds, by step.

use std::fs;

use kit::guide::MIGRATE;

/// Steps of a migration, in the order of the table's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Tailyard's reconciler replaces the Tailscale operator, with its proxy image.
    TakeOver,
    /// Tailyard's proxy image.
    Image,
    /// The Tailscale operator replaces Tailyard's reconciler.
    Back,
    /// From the creation by the Tailscale operator of what was deleted before until it is served.
    Created,
}

/// The number in the row of a path and the column of a step; no row or number panics.
pub(crate) fn limit(path: &str, step: Step) -> usize {
    let text = fs::read_to_string(kit::root().join(MIGRATE)).expect("a document");
    let begin = format!("| {path} |");
    let row = text.lines().find_map(|line| line.strip_prefix(&begin));
    let cell = row.and_then(|row| row.split('|').nth(step as usize));
    let number = cell.and_then(|cell| cell.trim().parse().ok());
    number.unwrap_or_else(|| panic!("{MIGRATE}: no limit of {path:?} in {step:?}"))
}

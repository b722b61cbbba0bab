//! Logs of the programs that took part in a test, shown once if it fails.

use std::fs;
use std::path::Path;

/// How many of the last lines of each log are shown.
const LINES: usize = 30;

/// Prints the end of every log of a directory (`*.log`), by name.
pub fn print_ends(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut logs: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    logs.sort();
    for path in logs {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        println!("--- {name}, the last of {} lines:\n{}", lines.len(), lines[lines.len().saturating_sub(LINES)..].join("\n"));
    }
}

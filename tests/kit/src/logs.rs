//! Logs of the programs that took part in a test, shown once if it fails.

use std::fs;
use std::path::Path;

/// How many of the last lines of each log are shown.
const LINES: usize = 30;

/// Prints the last shown lines of every log of a directory whose name ends so, by name.
pub fn print_ends(directory: &Path, ending: &str, is_shown: fn(&str) -> bool) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut logs: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    logs.sort();
    for path in logs {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        print_last(&name, &String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()), LINES, is_shown);
    }
}

/// Prints at most this many of the last shown lines of a log.
pub fn print_last(name: &str, text: &str, most: usize, is_shown: impl Fn(&str) -> bool) {
    let lines: Vec<&str> = text.lines().filter(|line| is_shown(line)).collect();
    println!("--- {name}, the last of {} lines:\n{}", lines.len(), lines[lines.len().saturating_sub(most)..].join("\n"));
}

/// Whether a line of tailscaled's log is about its paths to peers.
pub fn shows_path(line: &str) -> bool {
    ["disco key changed", "now using", "TSMP disco key", "does not know about peer"].iter().any(|part| line.contains(part))
}

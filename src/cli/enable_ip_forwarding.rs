//! `tailyard sysctl`: switches forwarding on, for an init container that may what the proxy's own container may not.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

use crate::edge::sysctl::{Forwarding, forward};
use crate::model::base::net::Family;

/// Enables forwarding in this network namespace and prints the result for each family; fails if it cannot.
pub(super) fn run(out: &mut dyn Write) -> Result<ExitCode> {
    for (family, done) in Family::ALL.into_iter().zip(forward(&Family::ALL)?) {
        let words = match done {
            Forwarding::On => "was on",
            Forwarding::SwitchedOn => "was off and is on now",
            Forwarding::Absent => "is not in this kernel",
        };
        writeln!(out, "{family} forwarding {words}")?;
    }
    Ok(ExitCode::SUCCESS)
}

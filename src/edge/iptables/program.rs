//! Runs of the iptables programs: text in, exit status or dump out.

use std::fs;
use std::io;
use std::process::{ExitStatus, Output};
use std::time::Duration;

use crate::model::base::net::Family;
use crate::model::firewall::iptables::Jump;
use crate::runtime::command::{self, CommandError, error_output};

/// Timeout of a run, including the wait for the xtables lock of iptables-legacy.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum wait for that lock, in seconds.
const LOCK_SECONDS: &str = "20";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Writes nftables.
    Nft,
    /// Writes `ip_tables`.
    Legacy,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum IptablesError {
    #[error("cannot run {program}: {source}; install iptables in the image, or choose another backend")]
    Missing { program: String, source: io::Error },
    #[error("{program} did not end within {TIMEOUT:?} and was killed")]
    Timeout { program: String },
    #[error("{program} refused to {what} ({status}): {stderr}; CAP_NET_ADMIN and the kernel's support of this iptables are needed")]
    Refused { program: String, what: &'static str, status: ExitStatus, stderr: String },
}

impl IptablesError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Programs {
    pub(super) variant: Variant,
    pub(super) family: Family,
}

impl Programs {
    /// Whether there are tables to save; iptables-save would create missing tables of `ip_tables`.
    pub(super) fn has_tables(self) -> bool {
        let names = match (self.variant, self.family) {
            (Variant::Nft, _) => return true,
            (Variant::Legacy, Family::V4) => "/proc/thread-self/net/ip_tables_names",
            (Variant::Legacy, Family::V6) => "/proc/thread-self/net/ip6_tables_names",
        };
        fs::read(names).is_ok_and(|names| !names.is_empty())
    }

    /// Runs iptables-restore on a text; chains that it does not name are unchanged.
    pub(super) async fn restore(self, what: &'static str, text: String) -> Result<(), IptablesError> {
        let program = self.name("-restore");
        let output = run(&program, &["--noflush", "--wait", LOCK_SECONDS], text).await?;
        succeeded(program, what, &output).map(drop)
    }

    /// Returns the iptables-save output for all tables.
    pub(super) async fn save(self, counters: bool) -> Result<String, IptablesError> {
        let program = self.name("-save");
        let output = run(&program, if counters { &["--counters"] } else { &[] }, String::new()).await?;
        succeeded(program, "save the chains", &output)
    }

    /// Whether a jump exists.
    pub(super) async fn check(self, jump: Jump) -> Result<bool, IptablesError> {
        let rule = jump.rule();
        let mut arguments = vec!["--wait", LOCK_SECONDS, "--table", jump.table.name(), "--check"];
        arguments.extend(rule.split(' '));
        Ok(run(&self.name(""), &arguments, String::new()).await?.status.success())
    }

    fn name(self, tool: &str) -> String {
        let family = if self.family == Family::V4 { "iptables" } else { "ip6tables" };
        let variant = if self.variant == Variant::Nft { "nft" } else { "legacy" };
        format!("{family}-{variant}{tool}")
    }
}

async fn run(program: &str, arguments: &[&str], input: String) -> Result<Output, IptablesError> {
    let program = || program.to_owned();
    command::run(program(), arguments, &input, TIMEOUT).await.map_err(|error| match error {
        CommandError::Run(source) => IptablesError::Missing { program: program(), source },
        CommandError::Timeout(_) => IptablesError::Timeout { program: program() },
    })
}

fn succeeded(program: String, what: &'static str, output: &Output) -> Result<String, IptablesError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(IptablesError::Refused { program, what, status: output.status, stderr: error_output(output) })
}

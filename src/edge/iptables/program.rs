//! One run of one of iptables' programs: text in, an exit status or a dump out.

use std::fs;
use std::io;
use std::process::{ExitStatus, Output};
use std::time::Duration;

use crate::model::base::net::Family;
use crate::model::firewall::iptables::Jump;
use crate::runtime::command::{self, CommandError, complaint};

/// How long one run may take, the wait for the lock that all of iptables-legacy shares included.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How many seconds of it may be spent on that lock.
const LOCK_SECONDS: &str = "20";

/// Which make of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The one that writes nftables.
    Nft,
    /// The one that writes `ip_tables`.
    Legacy,
}

/// Why iptables did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program cannot be started.
    #[error("cannot run {program}: {source}; install iptables in the image, or choose another backend")]
    Missing { program: String, source: io::Error },
    /// The program did not end in time.
    #[error("{program} did not end within {TIMEOUT:?} and was killed")]
    Timeout { program: String },
    #[error("{program} refused to {what} ({status}): {stderr}; CAP_NET_ADMIN and the kernel's support of this iptables are needed")]
    Refused {
        program: String,
        /// What was to be done.
        what: &'static str,
        status: ExitStatus,
        stderr: String,
    },
}

impl IptablesError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "Missing",
            Self::Timeout { .. } => "Timeout",
            Self::Refused { .. } => "Refused",
        }
    }
}

/// The programs of one make and family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Programs {
    variant: Variant,
    family: Family,
}

impl Programs {
    pub(super) fn new(variant: Variant, family: Family) -> Self {
        Self { variant, family }
    }

    pub(super) fn family(self) -> Family {
        self.family
    }

    /// Whether there is anything to save: to look at tables of `ip_tables` that are not there would make them.
    pub(super) fn has_tables(self) -> bool {
        let names = match (self.variant, self.family) {
            (Variant::Nft, _) => return true,
            (Variant::Legacy, Family::V4) => "/proc/thread-self/net/ip_tables_names",
            (Variant::Legacy, Family::V6) => "/proc/thread-self/net/ip6_tables_names",
        };
        fs::read(names).is_ok_and(|names| !names.is_empty())
    }

    /// Feeds a text to iptables-restore, chains that it does not name untouched.
    pub(super) async fn restore(self, what: &'static str, text: String) -> Result<(), IptablesError> {
        let program = self.name("-restore");
        let output = run(&program, &["--noflush", "--wait", LOCK_SECONDS], text).await?;
        succeeded(program, what, &output).map(drop)
    }

    /// What iptables-save writes of all tables.
    pub(super) async fn save(self, counters: bool) -> Result<String, IptablesError> {
        let program = self.name("-save");
        let output = run(&program, if counters { &["--counters"] } else { &[] }, String::new()).await?;
        succeeded(program, "save the chains", &output)
    }

    /// Whether a jump stands.
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
    Err(IptablesError::Refused { program, what, status: output.status, stderr: complaint(output) })
}

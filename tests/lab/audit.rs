//! What the operators of a cluster ask of its API server, by its audit log.

use std::path::Path;

use super::control::ControlPlane;

#[path = "../support/audit.rs"]
mod log;

/// Where the API server keeps it, on its machine.
pub(crate) const LOG: &str = "/run/audit.log";
/// Whose requests are kept: our reconciler's and the Tailscale operator's, each in the namespace of both.
const ACCOUNTS: [&str; 2] = ["tailyard-reconciler", "operator"];

/// What somebody has asked for: all but watches and Leases.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// All of it.
    pub(crate) requests: usize,
    /// Of it what was to change something.
    pub(crate) writes: usize,
}

impl Asked {
    /// What came after an earlier look.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { requests: self.requests - before.requests, writes: self.writes - before.writes }
    }
}

/// What is kept.
pub(crate) fn policy() -> String {
    let users = ACCOUNTS.map(user);
    log::policy(&users.each_ref().map(String::as_str))
}

/// What a service account of them has asked for so far.
pub(crate) fn asked(plane: &ControlPlane, account: &str) -> Asked {
    let told = plane.machine.command(Path::new("cat")).arg(LOG).output().expect("nsenter").stdout;
    let user = user(account);
    let mut asked = Asked::default();
    for entry in log::requests(&String::from_utf8_lossy(&told)) {
        let verb = entry["verb"].as_str().unwrap_or_default();
        if entry["user"]["username"] != *user || verb == "watch" || entry["objectRef"]["resource"] == "leases" {
            continue;
        }
        asked.requests += 1;
        asked.writes += usize::from(!matches!(verb, "get" | "list"));
    }
    asked
}

fn user(account: &str) -> String {
    format!("system:serviceaccount:tailscale:{account}")
}

//! What is wrong with a cluster or a machine, and how to mend it: facts go in, findings come out, each with a fix.
//!
//! A fact that could not be read is a finding of its own, and never counts as well. What each check means is docs/doctor.md, by
//! its name. Nothing is fetched or tried here.

use serde::Serialize;
use serde_json::Value;

use crate::model::base::text_table::table;
use crate::model::diagnostics::overview::Gap;

pub mod cluster;
mod control;
mod facts;
mod network;
pub mod node;
pub mod rights;

/// How one thing is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at: the name of its section in docs/doctor.md.
    pub name: &'static str,
    pub finding: Finding,
    pub what: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    Ok,
    /// It may do harm, or could not be looked at.
    Warn,
    /// It keeps something from working.
    Bad,
}

/// What was read, or why it could not be.
pub type ReadResult<T> = Result<T, Gap>;

impl Finding {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "BAD",
        }
    }
}

impl Check {
    /// All is well.
    pub fn ok(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, finding: Finding::Ok, what: what.into(), fix: String::new() }
    }

    /// It may do harm.
    pub fn warn(name: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, finding: Finding::Warn, what: what.into(), fix: fix.into() }
    }

    /// It does harm.
    pub fn bad(name: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, finding: Finding::Bad, what: what.into(), fix: fix.into() }
    }

    /// It could not be looked at. `needs` is the right that looking takes.
    pub fn unread(name: &'static str, what: &str, gap: &Gap, needs: &str) -> Self {
        match gap {
            Gap::Forbidden => Self::warn(name, format!("{what} cannot be read: not allowed"), format!("ask for the right to {needs}")),
            Gap::Unknown => Self::warn(name, format!("{what} cannot be read: the cluster has no such kind"), String::new()),
            Gap::Failed(why) => Self::warn(name, format!("{what} cannot be read: {why}"), String::new()),
        }
    }
}

/// Where a page of this version's documentation is.
fn page(name: &str) -> String {
    located(env!("CARGO_PKG_REPOSITORY"), name)
}

/// A URL, if the package names its repository.
fn located(repository: &str, page: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if repository.is_empty() { format!("docs/{page} of Tailyard {version}") } else { format!("{repository}/blob/v{version}/docs/{page}") }
}

pub fn worst(checks: &[Check]) -> Finding {
    checks.iter().map(|check| check.finding).max().unwrap_or(Finding::Ok)
}

/// The checks as a table, in their order, and below it what to do.
pub fn text(checks: &[Check]) -> String {
    let row = |check: &Check| vec![check.finding.name().to_owned(), check.name.to_owned(), check.what.clone()];
    let text = table(&["", "CHECK", "FOUND"], &checks.iter().map(row).collect::<Vec<_>>());
    let mut fixes = Vec::new();
    for check in checks.iter().filter(|check| !check.fix.is_empty()) {
        let fix = format!("{} {}: {}\n", check.finding.name(), check.name, check.fix);
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    if fixes.is_empty() { text } else { format!("{text}\nWhat to do (more in {}):\n{}", page("doctor.md"), fixes.concat()) }
}

pub fn is_reconciler(deployment: &Value) -> bool {
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let labelled = labels["app.kubernetes.io/name"] == "tailyard" && labels["app.kubernetes.io/component"] == "reconciler";
    labelled || deployment["metadata"]["name"] == "tailyard-reconciler"
}

#[cfg(test)]
mod tests;

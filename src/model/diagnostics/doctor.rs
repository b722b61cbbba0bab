//! Checks of a cluster or machine: facts in, findings with remedies out.
//!
//! A fact that could not be read is a finding of its own and never counts as a success. docs/doctor.md explains each check under its name.
//! Pure: no I/O.

use serde::Serialize;
use serde_json::Value;

use crate::model::base::text_table::table;
use crate::model::controller::workload::objects::shape::image_path;
use crate::model::diagnostics::overview::Gap;
use crate::model::settings::reconciler::Reconciler as Settings;

pub mod admission;
pub mod cluster;
mod control;
mod facts;
mod network;
pub mod node;
pub(super) mod objects;
pub(super) mod operators;
mod pods;
mod rejects;
pub mod rights;
mod tailnet;

/// Check of the API server's version, which needs no permission.
pub const API_SERVER: &str = "api-server";
/// Documentation page of the checks.
pub const PAGE: &str = "doctor.md";
/// Maximum number of objects in a result.
const MAX_LISTED: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check: its section in docs/doctor.md.
    pub name: &'static str,
    pub finding: Finding,
    pub what: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// Whether its facts could not be read.
    #[serde(skip)]
    unread: bool,
}

/// Severity of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    Ok,
    /// Possible fault, or the check could not be made.
    Warn,
    /// Fault that prevents something from working.
    Bad,
}

/// A fact, or the reason why it could not be read.
pub type ReadResult<T> = Result<T, Gap>;

impl Finding {
    /// Text for display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "BAD",
        }
    }
}

impl Check {
    /// A passed check.
    pub fn ok(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, finding: Finding::Ok, what: what.into(), fix: String::new(), unread: false }
    }

    /// A possible fault.
    pub fn warn(name: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, finding: Finding::Warn, what: what.into(), fix: fix.into(), unread: false }
    }

    /// A fault.
    pub fn bad(name: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, finding: Finding::Bad, what: what.into(), fix: fix.into(), unread: false }
    }

    /// A check whose facts could not be read. `needs` is the permission that reading requires.
    pub fn unread(name: &'static str, what: &str, gap: &Gap, needs: &str) -> Self {
        let check = match gap {
            Gap::Forbidden => Self::warn(name, format!("{what} cannot be read: not allowed"), format!("ask for the right to {needs}")),
            Gap::Unknown => Self::warn(name, format!("{what} cannot be read: the cluster has no such kind"), String::new()),
            Gap::Failed(why) => Self::warn(name, format!("{what} cannot be read: {why}"), String::new()),
        };
        Self { unread: true, ..check }
    }

    pub fn is_unread(&self) -> bool {
        self.unread
    }
}

/// Location of a documentation page of this version.
pub(super) fn page(name: &str) -> String {
    located(env!("CARGO_PKG_REPOSITORY"), name)
}

/// URL of a page, or its path if the package has no repository.
fn located(repository: &str, page: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if repository.is_empty() { format!("docs/{page} of Tailyard {version}") } else { format!("{repository}/blob/v{version}/docs/{page}") }
}

/// Exit code: 1 for a fault, 2 if nothing but the version of the API server could be read.
pub fn exit_code(checks: &[Check]) -> u8 {
    let is_read = |check: &Check| !check.unread && check.name != API_SERVER;
    match checks {
        _ if checks.iter().any(|check| check.finding == Finding::Bad) => 1,
        _ if !checks.iter().any(is_read) => 2,
        _ => 0,
    }
}

/// The checks as a table, in order, followed by the remedies; `page_name` documents them.
pub fn text(checks: &[Check], page_name: &str) -> String {
    let row = |check: &Check| vec![check.finding.name().to_owned(), check.name.to_owned(), check.what.clone()];
    let text = table(&["", "CHECK", "FOUND"], &checks.iter().map(row).collect::<Vec<_>>());
    let mut fixes = Vec::new();
    for check in checks.iter().filter(|check| !check.fix.is_empty()) {
        let fix = format!("{} {}: {}\n", check.finding.name(), check.name, check.fix);
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    if fixes.is_empty() { text } else { format!("{text}\nWhat to do (more in {}):\n{}", page(page_name), fixes.concat()) }
}

/// At most [`MAX_LISTED`] of these, and the number of the others.
pub(super) fn listed(mut all: Vec<String>, separator: &str) -> String {
    let more = all.len().saturating_sub(MAX_LISTED);
    all.truncate(MAX_LISTED);
    let text = all.join(separator);
    if more == 0 { text } else { format!("{text}, and {more} more") }
}

/// Condition of this type.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Namespace and name.
pub(super) fn named(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    match text("namespace") {
        "" => text("name").to_owned(),
        namespace => format!("{namespace}/{}", text("name")),
    }
}

pub fn is_reconciler(deployment: &Value) -> bool {
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let labelled = labels["app.kubernetes.io/name"] == "tailyard" && labels["app.kubernetes.io/component"] == "reconciler";
    labelled || deployment["metadata"]["name"] == "tailyard-reconciler"
}

/// Whether a `ProxyGroup` advertises Tailscale Services.
fn advertises(group: &Value) -> bool {
    group["spec"]["type"] == "ingress" || is_api_server(group)
}

/// Whether a `ProxyGroup` is an API server proxy.
fn is_api_server(group: &Value) -> bool {
    group["spec"]["type"] == "kube-apiserver"
}

/// Value of an environment variable of a Deployment's first container.
pub fn variable<'a>(deployment: &'a Value, name: &str) -> Option<&'a str> {
    let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array()?;
    env.iter().find(|variable| variable["name"] == name)?["value"].as_str()
}

/// Settings of a reconciler's Deployment; the defaults without one.
pub(super) fn settings(deployment: Option<&Value>) -> Settings {
    let env = deployment.and_then(|deployment| deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array());
    let set = |variable: &Value| Some((variable["name"].as_str()?.to_owned(), variable["value"].as_str()?.to_owned()));
    Settings::of_environment(&env.into_iter().flatten().filter_map(set).collect())
}

/// Whether a Deployment is the Tailscale operator, by its image or its variable: the chart sets the Deployment's name, a registry mirror may
/// change that of the image.
pub(super) fn is_operator(deployment: &Value) -> bool {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
    let mut images = containers.into_iter().flatten().filter_map(|container| container["image"].as_str());
    let has_image = images.any(|image| image_path(image).rsplit('/').next() == Some("k8s-operator"));
    has_image || (variable(deployment, "OPERATOR_SECRET").is_some() && !is_reconciler(deployment))
}

#[cfg(test)]
mod tests;

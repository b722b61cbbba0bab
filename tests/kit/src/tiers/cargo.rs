//! Test programs: built by cargo, listed by libtest, divided among tiers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::process::{self, End};
use super::table::{Kind, Program, Table, Tier};

const BUILD_LIMIT: Duration = Duration::from_hours(1);

/// A built test program.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Built {
    target: String,
    kind: String,
    pub(super) path: PathBuf,
    /// The package's: tests run in it.
    pub(super) directory: PathBuf,
}

/// A tier, its program and its tests.
#[derive(Debug, Clone)]
pub(super) struct Members {
    pub(super) tier: &'static Tier,
    pub(super) program: Built,
    pub(super) tests: Vec<String>,
}

impl Program {
    fn built_as(self, built: &Built) -> bool {
        let kind = match self.kind {
            Kind::Lib => "lib",
            Kind::Test => "test",
        };
        built.target == self.target && built.kind == kind
    }

    /// Options of cargo that select this program within its package.
    fn selection(self) -> Vec<&'static str> {
        match self.kind {
            Kind::Lib => vec!["--lib"],
            Kind::Test => vec!["--test", self.target],
        }
    }

    /// The command that runs one test.
    pub(super) fn repeat(self, test: &str) -> String {
        let package = if self.package == "tailyard" { String::new() } else { format!("-p {} ", self.package) };
        format!("cargo test --locked {package}{} {test} -- --exact --nocapture", self.selection().join(" "))
    }
}

pub(super) fn target_directory() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Builds the programs of these tiers, and those that the tests start.
pub(super) fn build(table: &Table, tiers: &[&Tier]) -> Result<Vec<Built>, String> {
    if let Some(package) = table.tools {
        cargo(&["build", "--locked", "-p", package, "--bins"])?;
    }
    let programs = distinct(tiers.iter().map(|tier| tier.program));
    let mut packages: Vec<&str> =
        distinct(programs.iter().map(|program| program.package)).into_iter().flat_map(|name| ["-p", name]).collect();
    // One `--lib` selects the libraries of all packages; cargo accepts no second one.
    let mut selection: Vec<&str> = distinct(programs.iter().map(|program| program.selection())).concat();
    if Table::count_automatic(tiers.iter().copied()) == Table::count_automatic(table.tiers) {
        selection.clear();
    }
    let mut arguments = vec!["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"];
    arguments.append(&mut packages);
    arguments.append(&mut selection);
    let built = artifacts(&cargo(&arguments)?);
    let text = serde_json::to_string_pretty(&built).map_err(|error| error.to_string())?;
    fs::write(record(), text).map_err(|error| format!("{}: {error}", record().display()))?;
    Ok(built)
}

/// Each item once, in order.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut found, item| {
        if !found.contains(&item) {
            found.push(item);
        }
        found
    })
}

/// The programs of the last [`build`].
pub(super) fn last_build() -> Result<Vec<Built>, String> {
    let text = fs::read_to_string(record()).map_err(|error| format!("{}: {error}; run without --no-build", record().display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", record().display()))
}

fn record() -> PathBuf {
    target_directory().join("tiers/programs.json")
}

/// Runs cargo and returns its output.
fn cargo(arguments: &[&str]) -> Result<String, String> {
    let path = target_directory().join("tiers/cargo.out");
    let mut command = process::command("cargo");
    command.args(arguments).stdout(process::create(&path)?);
    match process::run(crate::remove_package_variables(&mut command), BUILD_LIMIT) {
        Ok(End::Exited(status)) if status.success() => fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display())),
        Ok(end) => Err(format!("cargo {}: the process {end}", arguments.join(" "))),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

/// The test programs among the messages of cargo.
fn artifacts(messages: &str) -> Vec<Built> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let artifact = |message: Value| {
        message["profile"]["test"].as_bool().filter(|test| *test)?;
        Some(Built {
            target: message["target"]["name"].as_str()?.to_owned(),
            kind: message["target"]["kind"][0].as_str()?.to_owned(),
            path: PathBuf::from(message["executable"].as_str()?),
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    messages.filter_map(artifact).collect()
}

/// The names of a program's tests, ignored ones among them.
fn list(program: &Built) -> Result<Vec<String>, String> {
    let failed = |reason: String| format!("{} --list: {reason}", program.path.display());
    let mut command = Command::new(&program.path);
    let output = command.args(["--list", "--format", "terse"]).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// The tests of the chosen tiers. Fails for a test without a tier and for a tier without tests, in any program that is built.
pub(super) fn members(table: &'static Table, chosen: &[&'static Tier], programs: &[Built]) -> Result<Vec<Members>, String> {
    let mut members = Vec::new();
    let mut faults = Vec::new();
    for program in programs {
        let tiers: Vec<&'static Tier> = table.tiers.iter().filter(|tier| tier.program.built_as(program)).collect();
        match divide(&tiers, &list(program)?) {
            Ok(tests) => members.extend(tiers.iter().zip(tests).map(|(tier, tests)| Members { tier, program: program.clone(), tests })),
            Err(fault) => faults.push(format!("{} {}: {fault}", program.kind, program.target)),
        }
    }
    members.retain(|members| chosen.iter().any(|tier| tier.name == members.tier.name));
    members.sort_by_key(|members| table.tiers.iter().position(|tier| tier.name == members.tier.name));
    let found = |tier: &Tier| members.iter().any(|members| members.tier.name == tier.name);
    if faults.is_empty() {
        faults.extend(chosen.iter().filter(|tier| !found(tier)).map(|tier| format!("the program of tier {} is not built", tier.name)));
    }
    if faults.is_empty() { Ok(members) } else { Err(faults.join("\n")) }
}

/// Divides the tests of a program among its tiers.
fn divide(tiers: &[&Tier], tests: &[String]) -> Result<Vec<Vec<String>>, String> {
    let of = |tier: &Tier| tests.iter().filter(|test| tier.has(test)).cloned().collect::<Vec<_>>();
    let divided: Vec<Vec<String>> = tiers.iter().map(|tier| of(tier)).collect();
    let tiers_of = |test: &String| tiers.iter().filter(|tier| tier.has(test)).count();
    if let Some(test) = tests.iter().find(|test| tiers_of(test) != 1) {
        return Err(format!("test {test} belongs to {} tiers; add its module to the table of tiers", tiers_of(test)));
    }
    match tiers.iter().zip(&divided).find(|(_, tests)| tests.is_empty()) {
        Some((tier, _)) => Err(format!("tier {} has no tests", tier.name)),
        None => Ok(divided),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::table::TAILYARD;

    #[test]
    fn test_programs_are_found_among_messages() {
        let message = |test: bool, kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/Cargo.toml","target":{{"kind":["{kind}"],"name":"machine"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            message(false, "lib", "null"),
            message(true, "test", "\"/t/machine-1\""),
            "not JSON".to_owned(),
            message(false, "bin", "\"/t/x\""),
        ];
        let machine = Built {
            target: "machine".to_owned(),
            kind: "test".to_owned(),
            path: PathBuf::from("/t/machine-1"),
            directory: PathBuf::from("/w"),
        };
        assert_eq!(artifacts(&messages.join("\n")), [machine]);
    }

    #[test]
    fn every_test_belongs_to_one_tier_and_every_tier_has_tests() {
        let tiers: Vec<&Tier> = TAILYARD.tiers.iter().filter(|tier| ["kernel", "proxy"].contains(&tier.name)).collect();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let divided = divide(&tiers, &names(&["kernel::a", "proxy::forwarding::backend::b", "kernel::c"])).expect("complete");
        assert_eq!(divided, [names(&["kernel::a", "kernel::c"]), names(&["proxy::forwarding::backend::b"])]);
        assert!(divide(&tiers, &names(&["kernel::a", "proxy::b", "kernels::c"])).is_err_and(|fault| fault.contains("kernels::c")));
        assert!(divide(&tiers, &names(&["kernel::a"])).is_err_and(|fault| fault == "tier proxy has no tests"));
        assert_eq!(divide(&[], &[]), Ok(vec![]), "a program without tests needs no tier");
    }

    #[test]
    fn a_failure_names_the_command_that_repeats_it() {
        let command = |tier: &str| {
            TAILYARD.tiers.iter().find(|candidate| candidate.name == tier).map(|tier| tier.program.repeat("a::b")).expect("a tier")
        };
        assert_eq!(command("kernel"), "cargo test --locked --test machine a::b -- --exact --nocapture");
        assert_eq!(command("lib"), "cargo test --locked --lib a::b -- --exact --nocapture");
        assert_eq!(command("kit"), "cargo test --locked -p tailyard-kit --lib a::b -- --exact --nocapture");
    }
}

//! The test kit: real servers, machines of namespaces and helpers for all tiers of tests and all benchmarks.
//!
//! The kit makes no assertions about the product; tests do. All processes that a value of the kit has started end with it.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::must_use_candidate,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "a helper fails its test by panicking and shows logs; its items speak by name"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::OnceLock;

pub mod acme_front;
pub mod agent;
pub mod apiserver;
pub mod audit_policy;
pub mod certs;
pub mod cluster;
pub mod definitions;
pub mod dns;
pub mod doctor;
pub mod front_end;
pub mod golden;
pub mod guide;
pub mod hosted;
pub mod logs;
pub mod machine;
pub mod made_once;
pub mod member;
pub mod netns;
pub mod operators;
pub mod passes;
pub mod pebble;
pub mod reconciler;
pub mod report;
pub mod ruleset_oracle;
pub mod scenario;
pub mod scripted_tailscaled;
pub mod servers;
pub mod sheet;
pub mod stock;
pub mod tailnet;
pub mod tailnet_client;
pub mod tiers;
pub mod wait;
pub mod world;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/kit is two folders deep")
}

/// Files in and below a folder with this extension, sorted.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The allocator's variables of the image, by which the memory of a program is that of the program in a container.
pub fn allocator_variables() -> Vec<(String, String)> {
    let recipe = std::fs::read_to_string(root().join("config/image/Dockerfile")).expect("the image's recipe");
    let variables = recipe.lines().filter_map(|line| line.strip_prefix("ENV ")).flat_map(str::split_whitespace);
    let variables = variables.filter_map(|variable| variable.split_once('=')).filter(|(name, _)| name.starts_with("MALLOC_"));
    let variables: Vec<_> = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert_eq!(variables.len(), 3, "{variables:?}");
    variables
}

/// A setting of a test or benchmark: the value of a variable, if it is set and not empty. Panics if it cannot be parsed.
pub fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} cannot be {text}")))
}

/// The compiled `tailyard` that belongs to the running test or benchmark: cargo builds it before any program of the package.
pub fn tailyard() -> &'static str {
    static PATH: OnceLock<String> = std::sync::OnceLock::new();
    PATH.get_or_init(|| built().join("tailyard").display().to_string())
}

/// Variable by which the tier runner marks that the kit's programs are built.
pub(crate) const PROGRAMS_BUILT: &str = "TAILYARD_KIT_BUILT";

/// A program of the kit, as fresh as its source: cargo builds those of the package under test only, so this has it built once.
pub fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if env::var_os(PROGRAMS_BUILT).is_some() {
            return;
        }
        let profile = if built().ends_with("release") { "bench" } else { "dev" };
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--locked", "--package", "tailyard-kit", "--bins", "--profile", profile]);
        let status = remove_package_variables(&mut cargo).current_dir(root()).status();
        assert!(status.expect("cargo").success(), "the programs of the kit cannot be built");
    });
    built().join(name)
}

/// A call of cargo without the variables that cargo and the runner of tiers set for this program: they would make the build scripts
/// of some dependencies stale, and those would be compiled again.
pub(crate) fn remove_package_variables(cargo: &mut Command) -> &mut Command {
    let of_package = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| of_package(name) || name == "RUSTC_BOOTSTRAP") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The directory of the programs of the running build: `target/debug`, or that of another profile.
fn built() -> PathBuf {
    let this = env::current_exe().expect("the path of this program");
    this.ancestors().skip(1).find(|folder| !folder.ends_with("deps")).expect("a folder").to_owned()
}

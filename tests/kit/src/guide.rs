//! Runner of the commands in documents, as they are written. A table names the tests that run each block, so that no block is forgotten.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::cluster::{Cluster, commands};

/// The documents whose blocks are all in [`BLOCKS`].
pub const DOCUMENTS: [&str; 6] = ["README.md", HEADSCALE, QUICKSTART, UPGRADE, MIGRATE, API_SERVER];
pub const README: &str = "README.md";
pub const HEADSCALE: &str = "docs/headscale.md";
pub const QUICKSTART: &str = "docs/quickstart.md";
pub const UPGRADE: &str = "docs/upgrade.md";
pub const MIGRATE: &str = "docs/migrate.md";
pub const API_SERVER: &str = "docs/api-server.md";

/// Tests that run blocks.
pub const SERVICES: &str = "services::each_kind_of_service_is_served_and_leaves_nothing";
pub const CROSSING: &str = "crossing::service_is_used_across_clusters_during_proxy_restarts";
pub const GROUP: &str = "dropin::group_is_handed_over_and_back";
pub const SITES: &str = "dropin::ingress_and_standalone_proxies_are_handed_over_and_back";
pub const PLAN: &str = "cli::plan_of_the_quickstart_loads";

/// Whether a block is run.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// By each of these tests.
    RunBy(&'static [&'static str]),
    /// By none, for this reason.
    NotRun(&'static str),
}
use Fate::{NotRun, RunBy};

/// Every block of the documents, by its first words.
pub const BLOCKS: [(&str, &str, Fate); 48] = [
    (README, "$ make demo", NotRun("the tier demo runs the demo")),
    (README, "$ make image", RunBy(&[CROSSING])),
    (README, "$ kubectl annotate", RunBy(&[CROSSING])),
    (README, "$ kubectl apply", RunBy(&[CROSSING])),
    (README, "$ make build", NotRun("it builds and tests the checkout, which the test is part of")),
    (HEADSCALE, "$ kubectl create namespace", RunBy(&[SERVICES])),
    (HEADSCALE, "$ helm install", RunBy(&[SERVICES])),
    (HEADSCALE, "apiVersion: v1\nkind: Secret", RunBy(&[SERVICES])),
    (HEADSCALE, "$ make build", RunBy(&[SERVICES])),
    (HEADSCALE, "apiVersion: tailscale.com/v1alpha1\nkind: ProxyGroup", RunBy(&[SERVICES])),
    (HEADSCALE, "$ kubectl create secret generic headscale", NotRun("headscale 0.30 is not released; a scripted server has its API v2")),
    (QUICKSTART, "$ make demo", NotRun("the tier demo runs the demo")),
    (QUICKSTART, "$ cat > egress.json", RunBy(&[PLAN])),
    (QUICKSTART, "$ make image", NotRun("a release build; the block of docs/headscale.md builds the same image")),
    (QUICKSTART, "$ make cluster", NotRun("a release build, and the cluster that the test has by itself, with the same commands")),
    (QUICKSTART, "$ kubectl create namespace", RunBy(&[SERVICES])),
    (QUICKSTART, "$ headscale apikeys", RunBy(&[SERVICES])),
    (QUICKSTART, "$ kubectl create secret generic oauth", NotRun("README.md has the same command, which a test runs")),
    (QUICKSTART, "$ helm install", RunBy(&[SERVICES])),
    (QUICKSTART, "$ kubectl apply", RunBy(&[SERVICES])),
    (QUICKSTART, "$ kubectl exec", RunBy(&[SERVICES])),
    (QUICKSTART, "$ tailyard proxy", NotRun("it needs a tailnet's device wg0; the tier proxy runs replicas with static tailnets")),
    (UPGRADE, "$ kubectl apply --server-side", RunBy(&[SERVICES])),
    (UPGRADE, "$ kubectl set image", RunBy(&[SERVICES])),
    (MIGRATE, "$ tailyard migrate check", NotRun("reconciler::migration of the tier api runs the command on a cluster of its own")),
    (
        MIGRATE,
        "$ helm get values",
        NotRun("it needs a release; tests of the tier package convert values files and render the chart with them"),
    ),
    (MIGRATE, "$ kubectl get deployments", RunBy(&[GROUP, SITES])),
    (MIGRATE, "$ kubectl get deployment -n", RunBy(&[GROUP, SITES])),
    (MIGRATE, "$ kubectl get serviceaccount", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl get ingresses", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl get secret", RunBy(&[GROUP, SITES])),
    (MIGRATE, "$ kubectl scale -n tailscale deployment/operator", RunBy(&[GROUP, SITES])),
    (MIGRATE, "$ helm install", RunBy(&[GROUP, SITES])),
    (MIGRATE, "$ helm upgrade", RunBy(&[GROUP, SITES])),
    (MIGRATE, "$ kubectl get proxyclasses", RunBy(&[SITES])),
    (MIGRATE, "apiServerProxyConfig:", NotRun("a values file; the tests of the migration set the same values by `--set`")),
    (MIGRATE, "$ kubectl delete clusterrolebindings", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl delete statefulsets", RunBy(&[SITES])),
    (MIGRATE, "ns=tailscale", RunBy(&[GROUP])),
    (MIGRATE, "$ kubectl get endpointslices", RunBy(&[GROUP])),
    (MIGRATE, "$ kubectl delete -f", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl apply -f site.yaml", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl scale -n tailscale deployment/tailyard-reconciler", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl get pods", RunBy(&[SITES])),
    (MIGRATE, "$ kubectl delete secret", RunBy(&[SITES])),
    (API_SERVER, "$ helm upgrade", NotRun("the cluster tests set the same value when they install the chart")),
    (
        API_SERVER,
        "apiVersion: tailscale.com/v1alpha1\nkind: ProxyGroup",
        NotRun("the cluster tests apply these objects with their own names"),
    ),
    (
        API_SERVER,
        "$ tailyard kubeconfig",
        NotRun("the cluster tests use kubectl on clients of a tailnet; tests/pure/kubeconfig.rs runs the command"),
    ),
];

/// A block of commands or objects.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// `console`, `sh` or `yaml`.
    language: String,
    text: String,
}

/// A shell in which blocks are run, with the checkout or an empty directory as its working directory.
pub struct Guide {
    /// First directory of the shell's path.
    commands: PathBuf,
    directory: PathBuf,
    run: Mutex<BTreeSet<(&'static str, &'static str)>>,
}

impl Guide {
    pub fn new(commands: &Path, directory: &Path) -> Self {
        Self { commands: commands.to_owned(), directory: directory.to_owned(), run: Mutex::default() }
    }

    /// For the administrator of a cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let place = cluster.control.machine.own_dir().join("commands");
        fs::create_dir_all(&place).expect("a directory");
        commands::write(cluster, &place);
        Self::new(&place, crate::root())
    }

    /// Runs the block of a document with these first words and returns its output, which must have the lines that the document shows.
    /// Each substitution must match: what a test cannot run as it is written, and its replacement.
    pub fn run(&self, document: &'static str, begin: &'static str, substitutions: &[(&str, &str)]) -> String {
        let block = block(document, begin);
        let script = substitutions.iter().fold(block.script(), |script, (written, replacement)| {
            assert!(script.contains(written), "{document}: no {written:?} in\n{script}");
            script.replace(written, replacement)
        });
        println!("{document}:\n{script}");
        let path = format!("{}:{}", self.commands.display(), env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.args(["-euc", &script]).env("PATH", path).current_dir(&self.directory).stdin(Stdio::null());
        let output = command.output().expect("sh");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{document}:\n{script}\n{printed}{errors}");
        let mut lines = printed.lines();
        for line in block.output() {
            assert!(lines.any(|printed| printed == line), "{document}:\n{script}\nprinted no {line:?} in its place:\n{printed}{errors}");
        }
        self.lock().insert((document, begin));
        printed
    }

    /// Copies a file of the checkout with these changes, each of which must match, and returns the path of the copy.
    pub fn edit(&self, file: &str, changes: &[(&str, &str)]) -> String {
        let text = fs::read_to_string(crate::root().join(file)).expect("a file of the checkout");
        let text = changes.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "{file} has no {from:?}");
            text.replace(from, to)
        });
        let copy = self.commands.join(file.replace('/', "-"));
        fs::write(&copy, text).expect("written");
        copy.display().to_string()
    }

    /// Checks at the end of a test that it ran the blocks for which the table names it, and no others.
    pub fn finish(&self, test: &str) {
        let of_test = |fate: &Fate| matches!(fate, RunBy(tests) if tests.contains(&test));
        let expected = BLOCKS.iter().filter(|(_, _, fate)| of_test(fate)).map(|(document, begin, _)| (*document, *begin));
        assert_eq!(*self.lock(), expected.collect(), "blocks that {test} ran, and those of the table");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<(&'static str, &'static str)>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Block {
    /// Lines of the block with whether each is part of a command: a line after a prompt, a backslash, a pipe, or in a here-document.
    fn lines(&self) -> Vec<(bool, &str)> {
        let (mut goes_on, mut end) = (false, None);
        let of = |line: &'_ str| line.ends_with(['\\', '|']);
        let mark = |line| {
            let (is_command, command) = match str::strip_prefix(line, "$ ") {
                Some(command) if end.is_none() => (true, command),
                _ => (goes_on || end.is_some(), line),
            };
            match end {
                Some(last) if last == command => end = None,
                None if is_command => end = command.split_once("<<").map(|(_, word)| word.trim_matches(['\'', '"'])),
                _ => {}
            }
            goes_on = is_command && of(command);
            (is_command, command)
        };
        self.text.lines().map(mark).collect()
    }

    /// The block as a shell script.
    pub fn script(&self) -> String {
        match &self.language[..] {
            "console" => {
                let commands = self.lines().into_iter().filter(|(is_command, _)| *is_command);
                commands.flat_map(|(_, line)| [line, "\n"]).collect()
            }
            "yaml" => format!("kubectl apply -f - <<'YAML'\n{}YAML\n", self.text),
            _ => self.text.clone(),
        }
    }

    /// Output that the document shows, except omissions (`...`).
    fn output(&self) -> Vec<&str> {
        let lines = if self.language == "console" { self.lines() } else { Vec::new() };
        lines
            .into_iter()
            .filter(|(is_command, line)| !is_command && !line.trim().is_empty() && line.trim() != "...")
            .map(|(_, line)| line)
            .collect()
    }
}

/// The blocks of a document in a language that can be run.
pub fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for line in document.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_open = !is_open;
            if is_open {
                blocks.push(Block { language: language.to_owned(), text: String::new() });
            }
        } else if is_open && let Some(block) = blocks.last_mut() {
            block.text.extend([line, "\n"]);
        }
    }
    blocks.retain(|block| ["console", "sh", "yaml"].contains(&&block.language[..]));
    blocks
}

/// The one block of a document that begins with these words.
fn block(document: &str, begin: &str) -> Block {
    let found: Vec<Block> = read(document).into_iter().filter(|block| block.text.starts_with(begin)).collect();
    match <[Block; 1]>::try_from(found) {
        Ok([block]) => block,
        Err(found) => panic!("{document}: {} blocks begin with {begin:?}", found.len()),
    }
}

fn read(document: &str) -> Vec<Block> {
    blocks(&fs::read_to_string(crate::root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}")))
}

/// Blocks of the documents that the table lacks or has twice, and rows without a block.
pub fn faults() -> Vec<String> {
    let mut faults = Vec::new();
    for document in DOCUMENTS {
        let blocks = read(document);
        let rows: Vec<&str> = BLOCKS.iter().filter(|row| row.0 == document).map(|row| row.1).collect();
        let counts = |text: &str| rows.iter().filter(|begin| text.starts_with(**begin)).count();
        faults.extend(
            blocks
                .iter()
                .filter(|block| counts(&block.text) != 1)
                .map(|block| format!("{document}: {} rows for\n{}", counts(&block.text), block.text)),
        );
        faults.extend(
            rows.iter()
                .filter(|begin| !blocks.iter().any(|block| block.text.starts_with(**begin)))
                .map(|begin| format!("{document}: no block {begin:?}")),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_blocks_are_split_into_commands_and_output() {
        let text = "text\n```console\n$ one \\\n    --flag |\n  more\nprinted\n  ...\n$ cat > file <<'END'\n$ not a command\nEND\n$ two\n```\n```json\n{}\n```\n";
        let found = blocks(text);
        assert_eq!(found.len(), 1, "JSON is not run");
        assert_eq!(found[0].script(), "one \\\n    --flag |\n  more\ncat > file <<'END'\n$ not a command\nEND\ntwo\n");
        assert_eq!(found[0].output(), ["printed"]);
        let object = Block { language: "yaml".to_owned(), text: "a: b\n".to_owned() };
        assert_eq!(object.script(), "kubectl apply -f - <<'YAML'\na: b\nYAML\n");
    }
}

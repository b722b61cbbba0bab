//! Commands of the documents, as far as they can be checked without a cluster: values that the chart accepts, objects that it renders,
//! files of the checkout. `cluster::dropin` runs those of docs/migrate.md.

use std::collections::BTreeSet;
use std::fs;

use super::{deployment, helm, objects, path, read, rendered, rendered_with, template};

/// Documents on installing or operating the chart.
const DOCUMENTS: [&str; 5] = ["README.md", "charts/tailyard/README.md", "docs/headscale.md", "docs/quickstart.md", "docs/migrate.md"];

/// Fenced blocks of a document, each with its language.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect()
}

/// Commands of a document, joined with their continuation lines.
fn commands(text: &str) -> Vec<String> {
    let shell = blocks(text).into_iter().filter(|(language, _)| matches!(*language, "console" | "sh"));
    let lines = shell.flat_map(|(_, block)| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| line.trim_start_matches("$ ").to_owned()).collect()
}

/// `--set` flags of each helm command, and of each one in the prose.
fn values(text: &str) -> Vec<Vec<String>> {
    let prose = text.split('`').filter(|code| code.starts_with("--set ")).map(str::to_owned);
    let helm = commands(text).into_iter().filter(|command| command.starts_with("helm install") || command.starts_with("helm upgrade"));
    helm.chain(prose).map(|command| set_flags(&command)).collect()
}

fn set_flags(command: &str) -> Vec<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "--set").flatten().map(|word| (*word).to_owned()).collect()
}

/// Error of the chart for these flags, if any.
fn refusal(flags: &[String]) -> Option<String> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let output = helm(&[&template("tailscale")[..], &flags].concat());
    (!output.status.success()).then(|| format!("{flags:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn chart_accepts_the_values_in_documents() {
    for document in DOCUMENTS {
        let commands = values(&read(&path(document)));
        assert!(!commands.is_empty(), "{document} installs the chart");
        let refusals: Vec<_> = commands.iter().filter_map(|flags| refusal(flags)).collect();
        assert!(refusals.is_empty(), "{document}:\n{}", refusals.join("\n"));
    }
    let chart = read(&path("charts/tailyard/README.md"));
    let yaml: Vec<_> = blocks(&chart).into_iter().filter(|(language, _)| *language == "yaml").collect();
    assert!(!yaml.is_empty(), "values of headscale");
    for (_, values) in yaml {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), values).expect("written");
        rendered_with(&["--values", &file.path().display().to_string()]);
    }
}

#[test]
fn value_that_the_chart_does_not_have_is_found() {
    let document = "Text.\n\n```console\n$ helm install tailyard charts/tailyard -n a \\\n    --set ingress.formerClusterIds={A}\n```\nOr `--set tenancy=all`.\n";
    let refusals: Vec<_> = values(document).iter().filter_map(|flags| refusal(flags)).collect();
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    assert!(refusals[0].contains("formerClusterIds") && refusals[1].contains("tenancy"), "{refusals:?}");
}

#[test]
fn objects_labels_and_files_in_documents_exist() {
    let made = objects(&rendered("default", "tailscale"));
    let labels = &deployment("default")["spec"]["template"]["metadata"]["labels"];
    let (mut found, mut faults) = (BTreeSet::new(), Vec::new());
    for document in DOCUMENTS {
        for command in commands(&read(&path(document))).iter().filter(|command| command.contains("kubectl ")) {
            for word in command.split(char::is_whitespace) {
                // The Tailscale operator's Deployment is `operator`.
                let exists = match word.split_once(['/', '=']) {
                    Some(("deployment", name)) => name == "operator" || made.contains_key(&format!("Deployment tailscale/{name}")),
                    Some(("app.kubernetes.io", label)) => {
                        label.split_once('=').is_some_and(|(name, value)| labels[format!("app.kubernetes.io/{name}")] == value)
                    }
                    Some(("config" | "charts", _)) => path(word).exists(),
                    _ => continue,
                };
                found.insert(word.split(['/', '.']).next().unwrap_or_default().to_owned());
                if !exists {
                    faults.push(format!("{document}: {word}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(found, ["app", "charts", "config", "deployment"].map(str::to_owned).into(), "each kind of word is in a command");
}

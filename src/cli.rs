//! Dispatch and settings of the command line. Exit codes: 0 done, 1 failed, 2 usage, 64 settings at fault, 70 crashed.

mod cluster;
mod crd;
mod demo;
mod doctor;
mod load;
mod plan;
pub mod proxy;
pub mod reconciler;
mod status;
mod sysctl;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::runtime::{memory, telemetry};

/// Services of a tailnet and of Kubernetes clusters, joined by groups of replicated proxies.
#[derive(Debug, Parser)]
#[command(name = "tailyard", version, about, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forward the services of a ProxyGroup replica
    Proxy(Box<proxy::ProxyArgs>),
    // In a terminal backticks would only be noise.
    #[allow(clippy::doc_markdown)]
    /// Keep everything that ProxyGroups need in a cluster
    Reconciler(Box<reconciler::ReconcilerArgs>),
    /// Show groups, replicas and Services of a cluster
    Status(status::Args),
    /// Find out what is wrong with a cluster or a machine, and how to mend it
    Doctor(doctor::Args),
    /// Print, offline and without root, what a config turns into
    Plan(plan::Args),
    /// Switch packet forwarding on in this network namespace, and end: for an init container
    Sysctl,
    /// Print the definitions of our kinds, for `kubectl apply --server-side -f -`
    Crd,
    /// Print the version
    Version,
    /// Offer new connections to a service at a fixed rate, and tell what became of each
    Load(load::Args),
    /// Show a whole group on this machine, under load; no root, cluster or account needed
    Demo(demo::Args),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Proxy(args) => proxy::run(*args),
        Command::Reconciler(args) => reconciler::run(*args),
        Command::Status(args) => status::run(&args, &mut std::io::stdout()),
        Command::Doctor(args) => doctor::run(&args, &mut std::io::stdout()),
        Command::Plan(args) => plan::run(&args, &mut std::io::stdout().lock()),
        Command::Sysctl => sysctl::run(&mut std::io::stdout().lock()),
        Command::Crd => crd::run(&mut std::io::stdout().lock()),
        Command::Version => version(&mut std::io::stdout().lock()),
        Command::Load(args) => load::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            use std::io::Write;
            // Nothing is left to do when standard error is closed too.
            let _ = writeln!(std::io::stderr(), "tailyard: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, without those that the text before them holds already.
fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        _ if text.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

/// Begins what runs for long: with logs, and with an allocator that gives memory back.
fn begin(json: bool, filter: &str) -> anyhow::Result<()> {
    let format = if json { telemetry::Format::Json } else { telemetry::Format::Text };
    let frugal = memory::give_back();
    telemetry::init(format, filter).context("logs")?;
    if let Err(error) = frugal {
        tracing::warn!("memory may be held longer than needed, as the program cannot start itself with MALLOC_ARENA_MAX=1: {error}");
    }
    Ok(())
}

fn version(out: &mut dyn std::io::Write) -> anyhow::Result<ExitCode> {
    writeln!(out, "tailyard {}", env!("CARGO_PKG_VERSION"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command as Line};

    use super::proxy::ProxyArgs;
    use super::reconciler::ReconcilerArgs;
    use crate::model::settings::reconciler::RECONCILER_FLAGS;
    use crate::model::settings::{FLAGS, Flags};

    type Table = &'static [(&'static str, &'static str)];

    /// What a command makes of all flags of its table, each with a value of its own, and the help that it prints.
    fn read<A: Args + Into<Flags>>(table: Table) -> (Flags, String) {
        let mut command = A::augment_args(Line::new("x"));
        let words = table.iter().flat_map(|(flag, _)| [(*flag).to_owned(), format!("value-of{flag}")]);
        let matches = command.clone().try_get_matches_from(std::iter::once("x".to_owned()).chain(words)).expect("all flags exist");
        let args = A::from_arg_matches(&matches).expect("all flags are read");
        (args.into(), command.render_long_help().to_string())
    }

    #[test]
    fn every_flag_of_a_table_reaches_the_settings_and_help_names_its_variable() {
        let proxy: (Table, _) = (&FLAGS, read::<ProxyArgs>(&FLAGS));
        let reconciler: (Table, _) = (&RECONCILER_FLAGS, read::<ReconcilerArgs>(&RECONCILER_FLAGS));
        for (table, (flags, help)) in [proxy, reconciler] {
            let all = table.iter().fold(Flags::new(), |flags, (flag, _)| flags.with(flag, Some(format!("value-of{flag}"))));
            assert_eq!(flags, all);
            for (flag, variable) in table {
                let entry = help.split("\n      --").find(|entry| format!("--{entry}").starts_with(&format!("{flag} ")));
                assert!(entry.is_some_and(|entry| entry.contains(variable)), "{flag} does not name {variable} in {help}");
            }
        }
    }

    #[test]
    fn help_groups_the_flags() {
        let (_, proxy) = read::<ProxyArgs>(&FLAGS);
        let (_, reconciler) = read::<ReconcilerArgs>(&RECONCILER_FLAGS);
        let headings = [
            (proxy, &["Tailnet:", "Services:", "Kernel:", "State:", "Observing:"][..]),
            (reconciler, &["Cluster:", "Proxies:", "Control plane:", "Process:"]),
        ];
        for (help, headings) in headings {
            assert!(headings.iter().all(|heading| help.contains(heading)), "{headings:?} in {help}");
        }
    }
}

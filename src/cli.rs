//! Dispatch and settings of the command line. Exit codes: 0 done, 1 failed, 2 usage, 64 settings at fault.

mod crd;
mod demo;
mod plan;
pub mod proxy;
pub mod reconciler;
mod sysctl;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Print, offline and without root, what a config turns into
    Plan(plan::Args),
    /// Switch packet forwarding on in this network namespace, and end: for an init container
    Sysctl,
    /// Print the definitions of our kinds, for `kubectl apply --server-side -f -`
    Crd,
    /// Print the version
    Version,
    /// Show a whole group on this machine, under load; no root, cluster or account needed
    Demo(demo::Args),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Proxy(args) => proxy::run(*args),
        Command::Reconciler(args) => reconciler::run(*args),
        Command::Plan(args) => plan::run(&args, &mut std::io::stdout().lock()),
        Command::Sysctl => sysctl::run(&mut std::io::stdout().lock()),
        Command::Crd => crd::run(&mut std::io::stdout().lock()),
        Command::Version => version(&mut std::io::stdout().lock()),
        Command::Demo(args) => demo::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            use std::io::Write;
            // Nothing is left to do when standard error is closed too.
            let _ = writeln!(std::io::stderr(), "tailyard: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn version(out: &mut dyn std::io::Write) -> anyhow::Result<ExitCode> {
    writeln!(out, "tailyard {}", env!("CARGO_PKG_VERSION"))?;
    Ok(ExitCode::SUCCESS)
}

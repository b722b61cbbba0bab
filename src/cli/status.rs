//! `tailyard status`: groups, replicas, Services, Ingresses and Connectors of a cluster, for people.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::cluster::{ClusterArgs, block_on};
use crate::inspect::status::{RefreshMode, StatusFormat, StatusOptions, run as show};
use crate::model::diagnostics::overview::{RowSelection, Width};

/// Arguments of `tailyard status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// One ProxyGroup or Connector, or one Service or Ingress
    #[arg(value_name = "GROUP|NAMESPACE/NAME")]
    selected: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Go on, and draw again at each change: over the last drawing in a terminal, else a line for each row that changed
    #[arg(long, short)]
    watch: bool,
    /// How to print
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    output: Option<StatusOutput>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StatusOutput {
    /// More columns
    Wide,
    /// JSON; one document to a line with --watch
    Json,
}

/// Prints the overview. Fails if the groups cannot be read; the code is 0 however they are.
pub(super) fn run(args: &StatusArgs, out: &mut (dyn Write + Send)) -> Result<ExitCode> {
    let terminal = std::io::stdout().is_terminal();
    let options = StatusOptions {
        selection: args.selected.as_deref().map(RowSelection::parse).unwrap_or_default(),
        format: match args.output {
            None => StatusFormat::Text(Width::Narrow),
            Some(StatusOutput::Wide) => StatusFormat::Text(Width::Wide),
            Some(StatusOutput::Json) => StatusFormat::Json,
        },
        rhythm: if args.watch { RefreshMode::Watch { terminal } } else { RefreshMode::Once },
    };
    block_on(async {
        let cluster = args.cluster.find().await.context("no cluster")?;
        show(&cluster, &options, out).await.context("no answer")
    })??;
    Ok(ExitCode::SUCCESS)
}

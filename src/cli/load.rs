//! `tailyard load`: an open-loop load of new connections on a service of one's own, with some held open beside them.

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use super::length;
use crate::edge::tls::Checked;
use crate::load::Load;
use crate::load::https::Https;
use crate::load::protocol::TargetProtocol;
use crate::load::report::{Line, LoadSummary};
use crate::load::resolver::HostPort;
use crate::load::run::{LoadOptions, run as offer};
use crate::load::tui::LoadView;
use crate::model::base::net::Proto;
use crate::model::diagnostics::load::LoadSchedule;

/// The fastest that is offered: what one thread keeps up with.
pub(super) const FASTEST: i64 = 5_000;
/// The longest that a load lasts.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// Arguments of `tailyard load`.
#[derive(Debug, clap::Args)]
pub(super) struct LoadArgs {
    /// Targets, used in turn: names are resolved again every second, and all their addresses are used in turn
    #[arg(required = true, value_name = "HOST:PORT")]
    to: Vec<HostPort>,
    /// New connections and UDP flows per second, started on schedule whatever the latency (open loop)
    #[arg(long, default_value_t = 50, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=FASTEST))]
    rate: u32,
    /// How long to run; SIGINT or SIGTERM end it sooner
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = length(Duration::from_secs(1), MAX_DURATION))]
    duration: Duration,
    /// Protocols
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "udp", "both"])]
    proto: String,
    /// Expected prefix of the response: over TCP of what the server sends first, over UDP of its reply to a datagram. Without it an
    /// established TCP connection counts as answered
    #[arg(long, default_value = "", value_name = "TEXT")]
    expect: String,
    /// Use HTTPS: for each attempt a new connection, a TLS handshake and a GET of `/` for HOST. The status must be 2xx and the body
    /// must begin with the expected text
    #[arg(long, conflicts_with_all = ["proto", "active", "idle"])]
    https: bool,
    /// Trusted CAs for HTTPS, in PEM
    #[arg(long, default_value = "/etc/ssl/certs/ca-certificates.crt", value_name = "FILE", requires = "https")]
    ca: PathBuf,
    /// Address to connect to in place of those of HOST
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<IpAddr>,
    /// Timeout of a connection attempt and its response
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = length(Duration::from_secs(1), Duration::from_mins(1)))]
    timeout: Duration,
    /// Maximum number of concurrent attempts; further ones count as not sent
    #[arg(long, default_value_t = 1_024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    max_in_flight: u32,
    /// Long-lived connections that send requests at an interval; the server must echo
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    active: u16,
    /// Long-lived connections that are idle until the end, when each sends one request
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    idle: u16,
    /// Interval between the requests of an active connection
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = length(Duration::from_millis(10), Duration::from_mins(1)))]
    interval: Duration,
    /// Print JSON lines on a terminal, too
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    fn options(&self) -> Result<LoadOptions> {
        let rate = NonZeroU32::new(self.rate).context("no rate")?;
        let load = Load {
            protocol: self.protocol()?,
            timeout: self.timeout,
            max_in_flight: usize::try_from(self.max_in_flight)?,
            ..Load::new(LoadSchedule::new(rate), self.duration)
        };
        let protos = match self.proto.as_str() {
            "tcp" => vec![Proto::Tcp],
            "udp" => vec![Proto::Udp],
            _ => Proto::ALL.into(),
        };
        let (aims, connect) = (self.to.clone(), self.connect);
        Ok(LoadOptions { aims, connect, protos, load, rate: self.rate, active: self.active, idle: self.idle, interval: self.interval })
    }

    fn protocol(&self) -> Result<TargetProtocol> {
        let expected = self.expect.as_bytes().into();
        if !self.https {
            return Ok(TargetProtocol::Greeting(expected));
        }
        let authorities = fs::read(&self.ca).with_context(|| format!("cannot read {}", self.ca.display()))?;
        let checked = Checked::new(&authorities).with_context(|| self.ca.display().to_string())?;
        let names = self.to.iter().map(|aim| aim.host.clone()).collect();
        Ok(TargetProtocol::Https(Https { checked, names, expected }))
    }
}

/// Offers the load. Fails if a name has no address at the start; the exit code is 1 if anything failed.
pub(super) fn run(args: &LoadArgs) -> Result<ExitCode> {
    let options = args.options()?;
    let (lines, printed) = mpsc::channel();
    // On a thread of its own, so that a slow terminal does not slow the load.
    let offering = thread::spawn(move || offer_all(&options, &lines));
    let mut out = stdout();
    let mut view = (!args.json && out.is_terminal()).then(LoadView::default);
    for line in printed {
        match &mut view {
            Some(view) => view.show(&mut out, &line)?,
            None => writeln!(out, "{}", serde_json::to_string(&line)?)?,
        }
    }
    let summary = offering.join().map_err(|_| anyhow!("the load's thread panicked"))??;
    Ok(if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn offer_all(options: &LoadOptions, lines: &mpsc::Sender<Line>) -> Result<LoadSummary> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let reported = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        // The load continues when its output is closed: the exit status still reports the result.
        Ok(offer(options, |line| drop(lines.send(line)), reported).await?)
    })
}

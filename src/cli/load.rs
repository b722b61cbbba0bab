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

use crate::edge::tls::Checked;
use crate::load::Load;
use crate::load::https::Https;
use crate::load::line::{Line, Summary};
use crate::load::names::Aim;
use crate::load::run::{Options, run as offer};
use crate::load::talk::Talk;
use crate::load::view::View;
use crate::model::load::Schedule;
use crate::model::net::Proto;

/// The fastest that is offered: what one thread keeps up with.
const FASTEST: i64 = 5_000;
/// The longest that a load lasts, in seconds.
const LONGEST: u64 = 86_400;

/// Arguments of `tailyard load`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Whom to connect to, in turn: names are looked up again every second, and all their addresses are used in turn
    #[arg(required = true, value_name = "HOST:PORT")]
    to: Vec<Aim>,
    /// New connections and UDP flows each second; begun by the clock, however slow the answers are
    #[arg(long, default_value_t = 50, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=FASTEST))]
    rate: u32,
    /// How long, in seconds; SIGINT or SIGTERM end it sooner
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    seconds: u64,
    /// Over what
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "udp", "both"])]
    proto: String,
    /// How an answer must begin to be the intended target's: over TCP what the server says first, over UDP its answer to a
    /// datagram. Without it a TCP connection that stands is enough
    #[arg(long, default_value = "", value_name = "TEXT")]
    expect: String,
    /// Ask over HTTPS: each time a new connection, a TLS handshake and a GET of `/`; HOST is the name that is asked for. The answer's
    /// body must begin with what is expected, and its status be 2xx
    #[arg(long, conflicts_with_all = ["proto", "active", "idle"])]
    https: bool,
    /// The authorities to believe over HTTPS, in PEM
    #[arg(long, default_value = "/etc/ssl/certs/ca-certificates.crt", value_name = "FILE", requires = "https")]
    ca: PathBuf,
    /// Where to connect to, in place of what HOST leads to
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<IpAddr>,
    /// After how many seconds without an answer an attempt has failed
    #[arg(long, default_value_t = 5, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=60))]
    patience: u64,
    /// How many attempts may be under way at once; those beyond count as not sent
    #[arg(long, default_value_t = 1_024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    in_flight: u32,
    /// Connections that are held open and ask again and again; the server must give back what it is sent
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    active: u16,
    /// Connections that are held open and are silent until the end, when they are asked once
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    idle: u16,
    /// How often an active connection asks, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    beat: u64,
    /// Print lines of JSON on a terminal, too
    #[arg(long)]
    json: bool,
}

impl Args {
    fn options(&self) -> Result<Options> {
        let rate = NonZeroU32::new(self.rate).context("no rate")?;
        let load = Load {
            talk: self.talk()?,
            patience: Duration::from_secs(self.patience),
            in_flight: usize::try_from(self.in_flight)?,
            ..Load::new(Schedule::new(rate), Duration::from_secs(self.seconds))
        };
        let protos = match self.proto.as_str() {
            "tcp" => vec![Proto::Tcp],
            "udp" => vec![Proto::Udp],
            _ => Proto::ALL.into(),
        };
        let beat = Duration::from_millis(self.beat);
        let (aims, connect) = (self.to.clone(), self.connect);
        Ok(Options { aims, connect, protos, load, rate: self.rate, active: self.active, idle: self.idle, beat })
    }

    fn talk(&self) -> Result<Talk> {
        let expected = self.expect.as_bytes().into();
        if !self.https {
            return Ok(Talk::Greeting(expected));
        }
        let authorities = fs::read(&self.ca).with_context(|| format!("cannot read {}", self.ca.display()))?;
        let checked = Checked::new(&authorities).with_context(|| self.ca.display().to_string())?;
        let names = self.to.iter().map(|aim| aim.host().to_owned()).collect();
        Ok(Talk::Https(Https { checked, names, expected }))
    }
}

/// Offers the load. Fails if a name leads nowhere at the start; the exit code is 1 if anything failed.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let options = args.options()?;
    let (lines, told) = mpsc::channel();
    // On a thread of its own, so that a slow terminal does not slow the load.
    let offering = thread::spawn(move || offer_all(&options, &lines));
    let mut out = stdout();
    let mut view = (!args.json && out.is_terminal()).then(View::default);
    for line in told {
        match &mut view {
            Some(view) => view.show(&mut out, &line)?,
            None => writeln!(out, "{}", serde_json::to_string(&line)?)?,
        }
    }
    let summary = offering.join().map_err(|_| anyhow!("the load's thread panicked"))??;
    Ok(if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn offer_all(options: &Options, lines: &mpsc::Sender<Line>) -> Result<Summary> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let told = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        // Where nobody reads any more the load goes on: its exit code still says what came of it.
        Ok(offer(options, |line| drop(lines.send(line)), told).await?)
    })
}

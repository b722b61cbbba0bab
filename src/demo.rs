//! `tailyard demo`: a complete group on one machine, in its own network namespaces, under load.
//!
//! The proxies are real, child processes of the same executable; only the tailnet is simulated, by a file and three targets on a bridge.
//! Topology and targets also serve the benchmarks. Never changes the machine's own network.

pub mod held_flows;
pub mod replicas;
pub mod scenario;
pub mod scoreboard;
pub mod screen;
pub mod services;
pub mod summary;
pub mod swap;
pub mod target;
pub mod topology;

use std::future::pending;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::replicas::{Launch, ReplicaProcess, is_ready};
use self::scenario::Script;
use self::scoreboard::{Scoreboard, SharedScoreboard, look};
use self::screen::Screen;
use self::services::{DemoService, FIRST_TARGET_PORT, TARGET_PORTS, Volume};
use self::summary::DemoSummary;
use self::target::DemoTarget;
use self::topology::Topology;
use crate::edge::link::LinkError;
use crate::edge::netns::{Namespace, NetnsError};
use crate::load::Load;
use crate::model::base::net::BadInterfaceName;
use crate::model::diagnostics::load::LoadSchedule;

pub const TARGETS: u8 = 3;
/// Timeout for the replicas to become ready, at the start and after the load.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of log lines of a replica in an error.
const LOG_LINES: usize = 12;

#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Number of replicas; at least two, so that one can be stopped.
    pub replicas: u8,
    /// Number of services at the start; at least one.
    pub services: u16,
    pub lasts: Duration,
    /// New connections and UDP flows each second.
    pub rate: NonZeroU32,
    pub seed: u64,
    pub launch: Launch,
}

#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Name(#[from] BadInterfaceName),
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot {action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error("replica {number} was not ready within {} s; it said:\n{log}", READY_TIMEOUT.as_secs())]
    NotReady { number: usize, log: String },
}

impl DemoError {
    /// Converts an error of what could not be done.
    pub fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}

/// Runs the demo and returns its summary. Must run in private namespaces ([`crate::edge::netns::private`]).
pub fn run<W: Write + Send>(options: &DemoOptions, screen: Option<&mut Screen<W>>) -> Result<DemoSummary, DemoError> {
    let topology = Topology::make(options.replicas, TARGETS)?;
    play(&topology, options, screen, async |script| script.play(options.lasts).await)
}

/// Runs another script than the demo's, in an existing topology. Load and flows continue meanwhile until the time is over.
pub fn play<W: Write + Send, P>(
    topology: &Topology,
    options: &DemoOptions,
    screen: Option<&mut Screen<W>>,
    play: P,
) -> Result<DemoSummary, DemoError>
where
    P: AsyncFnOnce(&mut Script<'_>) -> Result<(), DemoError> + Send,
{
    let ports = FIRST_TARGET_PORT..FIRST_TARGET_PORT + TARGET_PORTS;
    let start = |(number, site): (u16, &topology::DemoSite)| DemoTarget::start(&site.namespace, number, ports.clone());
    let _targets = (0_u16..).zip(&topology.targets).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut volume = Volume::make(options.launch.egress.clone()).map_err(DemoError::io("make the egress config"))?;
    let services: Vec<DemoService> =
        (0..options.services).map(|number| DemoService { number, target: number % u16::from(TARGETS) }).collect();
    volume.write(topology, services.iter().copied()).map_err(DemoError::io("write the egress config"))?;
    let mut replicas = Vec::new();
    for number in 0..usize::from(options.replicas) {
        if let Some(mut replica) = ReplicaProcess::prepare(topology, number, &options.launch)? {
            replica.start(&options.launch)?;
            replicas.push(replica);
        }
    }
    topology.client.block_on(|| async {
        all_ready(&mut replicas).await?;
        let board: SharedScoreboard = Arc::new(Mutex::new(Scoreboard::new(Instant::now(), topology, services)));
        let mut script = Script {
            topology,
            board: Arc::clone(&board),
            volume,
            replicas,
            launch: options.launch.clone(),
            lasting: options.services,
            next: options.services,
            dice: fastrand::Rng::with_seed(options.seed),
        };
        show(options, topology, &mut script, screen, play).await?;
        let board = look(&board);
        let lasted = options.lasts.min(board.now());
        Ok(DemoSummary::of(&board, &options.launch.backend, options.services, options.rate.get(), lasted))
    })?
}

/// Runs load, flows and script concurrently, then stops everything in order.
async fn show<W: Write, P>(
    options: &DemoOptions,
    topology: &Topology,
    script: &mut Script<'_>,
    mut screen: Option<&mut Screen<W>>,
    play: P,
) -> Result<(), DemoError>
where
    P: AsyncFnOnce(&mut Script<'_>) -> Result<(), DemoError> + Send,
{
    let board = Arc::clone(&script.board);
    let (stop, done) = begin_load(&topology.client, Arc::clone(&board), options);
    let mut around = JoinSet::new();
    for (number, replica) in script.replicas.iter().enumerate() {
        around.spawn(held_flows::listen(Arc::clone(&board), number, replica.admin()));
    }
    let mut flows = JoinSet::new();
    for flow in held_flows::flows(options.services) {
        flows.spawn(held_flows::keep(Arc::clone(&board), flow));
    }
    let play = async {
        tokio::select! {
            played = play(script) => played?,
            interrupted = interruption() => {
                interrupted.map_err(DemoError::io("listen for signals"))?;
                drop(stop);
            }
        }
        if done.await.is_err() {
            look(&board).faults.push("the load ended before its time".to_owned());
        }
        script.settle_down(READY_TIMEOUT).await?;
        flows.shutdown().await;
        end_replicas(script).await
    };
    tokio::pin!(play);
    let mut ticks = tokio::time::interval(screen.as_ref().map_or(Duration::from_hours(1), |screen| screen.every()));
    loop {
        tokio::select! {
            ended = &mut play => return ended,
            _ = ticks.tick() => if let Some(screen) = &mut screen {
                screen.draw(&look(&board), options).map_err(DemoError::io("draw"))?;
            },
        }
    }
}

/// Offers the load from a separate thread, so that screen and script do not delay it. Dropping the first channel stops it early; the second
/// reports its end.
fn begin_load(client: &Namespace, board: SharedScoreboard, options: &DemoOptions) -> (oneshot::Sender<()>, oneshot::Receiver<()>) {
    let ((stop, stopped), (done, is_done)) = (oneshot::channel(), oneshot::channel());
    let load = Load::new(LoadSchedule::new(options.rate), options.lasts);
    let client = client.clone();
    std::thread::spawn(move || {
        let start = look(&board).start;
        let offered = client.block_on(|| async {
            tokio::select! {
                () = load.offer(start, |number| look(&board).choose(number), |report| look(&board).record(report), pending()) => {}
                _ = stopped => {}
            }
        });
        match offered {
            // If the send fails, the receiver is gone: nothing waits for it.
            Ok(()) => drop(done.send(())),
            Err(error) => look(&board).faults.push(error.to_string()),
        }
    });
    (stop, is_done)
}

/// Waits for SIGINT or SIGTERM.
async fn interruption() -> io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn all_ready(replicas: &mut [ReplicaProcess]) -> Result<(), DemoError> {
    let until = Instant::now() + READY_TIMEOUT;
    for (number, replica) in replicas.iter_mut().enumerate() {
        while !is_ready(replica.admin()).await {
            if Instant::now() > until || replica.ended()?.is_some() {
                return Err(DemoError::NotReady { number, log: end_of_log(replica) });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

fn end_of_log(replica: &ReplicaProcess) -> String {
    let log = std::fs::read_to_string(replica.log()).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}

/// Drains the replicas after the load and checks that they exit.
async fn end_replicas(script: &mut Script<'_>) -> Result<(), DemoError> {
    for replica in &script.replicas {
        replica.signal(Signal::SIGTERM);
    }
    let until = Instant::now() + script.launch.grace + READY_TIMEOUT;
    for (number, replica) in script.replicas.iter_mut().enumerate() {
        while replica.pid().is_some() {
            match replica.ended()? {
                Some(status) if !status.success() => look(&script.board).faults.push(format!("replica {number} ended with {status}")),
                None if Instant::now() > until => {
                    look(&script.board).faults.push(format!("replica {number} did not end"));
                    break;
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    Ok(())
}

//! The benchmarks: one program, one module for each question. Every question runs in a process of its own, so that memory, processor
//! time and namespaces are its own; the report is docs/benchmarks.md.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark shows figures and progress, and fails as the test kit fails: by a panic"
)]

mod apply;
mod connect;
mod first;
mod footprint;
mod hostile;
mod kubeproxy;
mod live;
mod operators;
mod orders;
mod peers;
mod plan;
mod players;
mod proxy;
mod reconciler;
mod rolling;
mod standalone;
mod support;
mod surroundings;
mod throughput;
mod tls;
mod traffic;
mod users;

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Parser;
use kit::report::Benchmark;
use kit::sheet::ALONE;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tailyard::edge::netns::private;

use crate::Place::{Machine, Private};
use crate::support::{Args, Sheet, publish};

/// The namespaces in which a benchmark begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Those of the machine: it makes its own.
    Machine,
    /// New ones for network, mounts and processes.
    Private,
}

/// A benchmark: its namespaces, and the measuring function.
fn question(benchmark: Benchmark) -> (Place, fn(&Args) -> Result<Sheet>) {
    match benchmark {
        Benchmark::Plan => (Private, plan::bench),
        Benchmark::Apply => (Private, apply::bench),
        Benchmark::Live => (Private, live::bench),
        Benchmark::Connect => (Private, connect::bench),
        Benchmark::Kubeproxy => (Private, kubeproxy::bench),
        Benchmark::Throughput => (Private, throughput::bench),
        Benchmark::Footprint => (Private, footprint::bench),
        Benchmark::Tls => (Machine, tls::bench),
        Benchmark::Orders => (Machine, orders::bench),
        Benchmark::Reconciler => (Machine, reconciler::bench),
        Benchmark::Surroundings => (Machine, surroundings::bench),
        Benchmark::Hostile => (Machine, hostile::bench),
        Benchmark::First => (Machine, first::bench),
        Benchmark::Operators => (Machine, operators::bench),
        Benchmark::Rolling => (Machine, rolling::bench),
        Benchmark::RollingMany => (Machine, rolling::many),
        Benchmark::Standalone => (Machine, standalone::bench),
        Benchmark::StandaloneMany => (Machine, standalone::many::bench),
        Benchmark::PeersLive => (Machine, peers::live::bench),
        Benchmark::PeersConnect => (Machine, peers::connect::bench),
        Benchmark::PeersFootprint => (Machine, peers::footprint::bench),
        Benchmark::PeersFaults => (Machine, peers::faults::bench),
        Benchmark::PeersSwap => (Machine, peers::swap::bench),
        Benchmark::PeersNames => (Machine, peers::names::bench),
        Benchmark::PeersThroughput => (Machine, peers::throughput::bench),
        Benchmark::PeersRestart => (Machine, peers::restart::bench),
        Benchmark::PeersApiserver => (Machine, peers::apiserver::bench),
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.list {
        args.chosen().iter().for_each(|benchmark| println!("{}", benchmark.name()));
        return Ok(ExitCode::SUCCESS);
    }
    if args.isolated { run_isolated(&args) } else { suite(&args) }
}

/// Runs the selected benchmarks one after the other, each in a process of its own, independently of earlier failures.
fn suite(args: &Args) -> Result<ExitCode> {
    let mut failed = Vec::new();
    for benchmark in args.chosen() {
        let name = benchmark.name();
        let mut command = Command::new(env::current_exe().context("the path of this program")?);
        command.arg(&name).args(args.options()).arg(format!("--{ALONE}"));
        let status = command.status().with_context(|| format!("{name} cannot be started"))?;
        if !status.success() {
            eprintln!("benchmark {name} failed: {status}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("failed benchmarks: {}", failed.join(" "));
    Ok(ExitCode::FAILURE)
}

/// Runs one benchmark in this process, which ends with the one that started it.
fn run_isolated(args: &Args) -> Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL)?;
    let [benchmark] = args.chosen()[..] else { bail!("--{ALONE} is for one benchmark") };
    let (place, measure) = question(benchmark);
    if place == Private && !private::is_inside() {
        return Ok(ExitCode::from(private::run_inside(env::args_os().skip(1))?));
    }
    publish(benchmark, args, &measure(args)?)?;
    Ok(ExitCode::SUCCESS)
}

//! What the benchmarks share: repetitions, their spread, a table for people and JSON for machines.

#![allow(dead_code, reason = "each benchmark uses its own part")]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;
use tailyard::edge::netns::private;

/// How a benchmark is called: `cargo bench --bench NAME -- [OPTIONS]`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Where to write the figures, as NAME.json; the directory must exist
    #[arg(long, value_name = "DIR")]
    pub(crate) json: Option<PathBuf>,
    /// A tenth of the repetitions: shows that it works, says little
    #[arg(long)]
    pub(crate) quick: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// The number of repetitions, or few of them.
    #[must_use]
    pub(crate) fn repetitions(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(10) } else { full }
    }
}

/// One line of the result: repeated measurements of one thing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    /// What was measured, at which size.
    pub(crate) what: String,
    /// Of what the figures are.
    pub(crate) unit: &'static str,
    /// How many measurements.
    pub(crate) count: usize,
    /// Their median.
    pub(crate) median: f64,
    /// The smallest, and the largest.
    pub(crate) range: [f64; 2],
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// What it should be, if something is asked for.
    pub(crate) goal: Option<String>,
}

/// The result of one benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Sheet {
    /// Its question.
    pub(crate) question: &'static str,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The processor, and how many of them.
    pub(crate) processor: String,
    /// The figures.
    pub(crate) lines: Vec<Line>,
}

impl Sheet {
    /// An empty sheet.
    #[must_use]
    pub(crate) fn new(question: &'static str) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo").lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1.to_owned()));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self {
            question,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: format!("{cores} × {}", model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())),
            lines: Vec::new(),
        }
    }

    /// Adds a line; without any measurement there is none.
    pub(crate) fn add(&mut self, what: impl Into<String>, unit: &'static str, mut samples: Vec<f64>, goal: Option<&str>) {
        samples.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (samples.first(), samples.last()) else { return };
        // The nearest rank: at least so many hundredths of the samples are not above it.
        let at = |hundredths: usize| samples.get((samples.len() * hundredths).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default();
        let (range, median, p99) = ([*least, *most], at(50), at(99));
        self.lines.push(Line { what: what.into(), unit, count: samples.len(), median, range, p99, goal: goal.map(str::to_owned) });
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "\n{}\n", self.question)?;
        writeln!(out, "{:<58} {:>10} {:>10} {:>10} {:>10} {:>5}  goal", "", "median", "least", "most", "p99", "n")?;
        for line in &self.lines {
            let [least, most] = line.range.map(figure);
            let (median, p99, goal) = (figure(line.median), figure(line.p99), line.goal.as_deref().unwrap_or(""));
            let what = format!("{} ({})", line.what, line.unit);
            writeln!(out, "{what:<58} {median:>10} {least:>10} {most:>10} {p99:>10} {:>5}  {goal}", line.count)?;
        }
        Ok(())
    }
}

/// Three digits that matter.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1_000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Runs a benchmark in namespaces of its own, prints its sheet and writes it where it is wanted.
pub(crate) fn main(name: &str, bench: impl FnOnce(&Args) -> Result<Sheet>) -> Result<ExitCode> {
    let args = Args::parse();
    if !private::is_inside() {
        return Ok(ExitCode::from(private::run_inside(std::env::args_os().skip(1))?));
    }
    publish(name, &args, &bench(&args)?)
}

/// Prints a sheet and writes it where it is wanted.
pub(crate) fn publish(name: &str, args: &Args, sheet: &Sheet) -> Result<ExitCode> {
    sheet.print(&mut std::io::stdout())?;
    if let Some(directory) = &args.json {
        let path = directory.join(format!("{name}.json"));
        std::fs::write(&path, serde_json::to_vec_pretty(sheet)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How long the work takes, in milliseconds.
pub(crate) fn milliseconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let done = work();
    (ms(begun.elapsed()), done)
}

/// A duration in milliseconds.
#[must_use]
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The ratio of each repetition's pair.
#[must_use]
pub(crate) fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// How much of one processor all threads of a process use during the work, in percent.
pub(crate) fn share(pid: u32, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (before, begun) = (processor_time(pid)?, Instant::now());
    work()?;
    let used = processor_time(pid)?.saturating_sub(before);
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
}

/// The time on a processor of every thread of a process, to the nanosecond; of ended threads it knows nothing.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        total += text.split_whitespace().next().context("schedstat is empty")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

/// A field of a process's status in kB, as MB of a million bytes.
pub(crate) fn status(pid: u32, field: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"));
    Ok(kibibytes.with_context(|| format!("no {field} in the status"))?.parse::<f64>()? * 1024.0 / 1e6)
}

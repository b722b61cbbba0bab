//! Common code of the benchmarks: command line, output of sheets, measurement of time and memory.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use kit::report::Benchmark;
use kit::sheet::ALONE;

pub(crate) use kit::sheet::{PLAIN, Point, Sheet};

/// The firewall of the proxies.
#[must_use]
pub(crate) fn backend() -> String {
    kit::setting("TAILYARD_BENCH_BACKEND").unwrap_or_else(|| "nftables".to_owned())
}

/// The name of our proxy in plots.
#[must_use]
pub(crate) fn tailyard() -> String {
    format!("Tailyard, {}", backend())
}

/// Runs benchmarks and prints their results
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench suite --")]
#[allow(clippy::struct_excessive_bools, reason = "a flag is a bool")]
pub(crate) struct Args {
    /// Which benchmarks to run, each in a process of its own; all of them unless named
    #[arg(value_name = "NAME", value_enum)]
    names: Vec<Benchmark>,
    /// Unless benchmarks are named, leave out those that need a whole cluster
    #[arg(long)]
    no_cluster: bool,
    /// Print the names of the benchmarks and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Where to write the figures, as NAME.json; `rolling` and `standalone` write those of the rounds so far after each
    #[arg(long, value_name = "DIR")]
    json: Option<PathBuf>,
    /// A tenth of the repetitions, without the large sizes: a functional check without valid figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// For `reconciler`: only groups with this number of Services
    #[arg(long, value_name = "N")]
    pub(crate) size: Option<usize>,
    /// For `first`: number of existing Services, 1000 by default; for `standalone_many`: number of Services, 20 by default
    #[arg(long, value_name = "N")]
    pub(crate) services: Option<usize>,
    /// Number of rounds of `rolling` and `peers_apiserver` (5 by default), `standalone` and `standalone_many` (3)
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Run the one named benchmark in this process
    #[arg(long = ALONE, hide = true)]
    pub(crate) isolated: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// The benchmarks to run.
    #[must_use]
    pub(crate) fn chosen(&self) -> Vec<Benchmark> {
        if !self.names.is_empty() {
            return self.names.clone();
        }
        Benchmark::all().iter().copied().filter(|benchmark| !self.no_cluster || !benchmark.needs_cluster()).collect()
    }

    /// The options that each benchmark is given.
    #[must_use]
    pub(crate) fn options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> = self.quick.then(|| "--quick".into()).into_iter().collect();
        let numbers = [("--size", self.size), ("--services", self.services), ("--rounds", self.rounds)]
            .map(|(name, number)| (name, number.map(|n| n.to_string().into())));
        let json = ("--json", self.json.as_ref().map(|json| json.clone().into_os_string()));
        for (name, value) in numbers.into_iter().chain([json]) {
            options.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        }
        options
    }

    /// The number of repetitions, or few of them.
    #[must_use]
    pub(crate) fn repetitions(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(10) } else { full }
    }

    /// The sizes to sweep, or those up to a thousand.
    #[must_use]
    pub(crate) fn sizes<T: Copy + PartialOrd + From<u16>>(&self, full: &[T]) -> Vec<T> {
        full.iter().copied().filter(|size| !self.quick || *size <= T::from(1_000)).collect()
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

/// Prints a sheet and stores it.
pub(crate) fn publish(benchmark: Benchmark, args: &Args, sheet: &Sheet) -> Result<()> {
    ensure!(!sheet.lines.is_empty(), "nothing was measured");
    print(sheet, &mut std::io::stdout())?;
    store(benchmark, args, sheet)
}

/// Writes a sheet to the directory of `--json`: the whole one at the end, or that of the rounds so far, which the next one overwrites.
pub(crate) fn store(benchmark: Benchmark, args: &Args, sheet: &Sheet) -> Result<()> {
    ensure!(sheet.lines.iter().all(|line| line.range.iter().all(|figure| figure.is_finite())), "a figure is none");
    if let Some(directory) = &args.json {
        let path = directory.join(format!("{}.json", benchmark.name()));
        std::fs::create_dir_all(directory)?;
        std::fs::write(&path, serde_json::to_vec_pretty(sheet)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn print(sheet: &Sheet, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "\n{}\n", sheet.question)?;
    writeln!(out, "{:<72} {:>10} {:>10} {:>10} {:>10} {:>5}  goal", "", "median", "least", "most", "p99", "n")?;
    for line in &sheet.lines {
        let [least, most] = line.range.map(figure);
        let (median, p99, goal) = (figure(line.median), figure(line.p99), line.goal.as_deref().unwrap_or(""));
        let what = format!("{} ({})", line.what, line.unit);
        writeln!(out, "{what:<72} {median:>10} {least:>10} {most:>10} {p99:>10} {:>5}  {goal}", line.count)?;
    }
    Ok(())
}

/// The duration of the work, in milliseconds.
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

/// Runs all of these in parallel; returns the results. Fails if one of them does.
pub(crate) fn at_once<T: Send>(works: impl IntoIterator<Item = impl FnOnce() -> Result<T> + Send>) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = works.into_iter().map(|work| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
    })
}

/// Rotates the order by round, so that each is first, second and so on in turn.
pub(crate) fn in_turn<T>(things: impl IntoIterator<Item = T>, round: usize) -> Vec<T> {
    let mut order: Vec<T> = things.into_iter().collect();
    let first = round % order.len().max(1);
    order.rotate_left(first);
    order
}

/// The ratio of each repetition's pair. One to zero is undefined, and is not in it.
#[must_use]
pub(crate) fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).filter(|ratio| ratio.is_finite()).collect()
}

/// How much of one processor all threads of a process use during the work, in percent.
pub(crate) fn share(pid: u32, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (before, begun) = (processor_time(pid)?, Instant::now());
    work()?;
    let used = processor_time(pid)?.saturating_sub(before);
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
}

/// The processor time of all threads of a process, in nanoseconds; ended threads are not included.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        total += text.split_whitespace().next().context("schedstat is empty")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

/// Processor time of a process since its start, in steps of 10 ms. Includes threads that ended.
pub(crate) fn processor_time_since_start(pid: u32) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain spaces: fields are counted from its closing bracket. The user's time is field 14, the kernel's 15.
    let (_, fields) = text.rsplit_once(')').context("stat without a name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(10 * ticks))
}

/// A field of a process's status in kB, as MB of a million bytes.
pub(crate) fn status(pid: u32, field: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"));
    Ok(kibibytes.with_context(|| format!("no {field} in the status"))?.parse::<f64>()? * 1024.0 / 1e6)
}

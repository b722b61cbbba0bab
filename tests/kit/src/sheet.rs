//! A sheet: the results of one benchmark, with machine and versions, stored as JSON. Pure but for [`Conditions::here`]; benchmarks fill
//! sheets, the report reads them.

use std::collections::BTreeMap;
use std::process::Command;

use k8s_openapi::jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};

/// The result of one benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sheet {
    /// Its question.
    pub question: String,
    /// What the size of a point counts: `service` unless set.
    #[serde(default = "service", skip_serializing_if = "is_service")]
    pub counts: String,
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// The figures.
    pub lines: Vec<Line>,
}

/// Where and how something was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Conditions {
    /// When it began, RFC 3339.
    pub date: String,
    /// The command line.
    pub command: String,
    /// The kernel's release.
    pub kernel: String,
    /// The processor, and how many of them.
    pub processor: String,
    /// The distribution.
    pub distribution: String,
    /// Load average of the minute before, if it was measured.
    pub busy: Option<f64>,
    /// Built without optimizations, or with few repetitions: a functional check without valid figures.
    pub trial: bool,
    /// Versions of the measured programs.
    pub versions: BTreeMap<String, String>,
}

/// One line of the result: repeated measurements of one quantity.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// Measured quantity and size.
    pub what: String,
    /// Unit of the figures.
    pub unit: String,
    /// How many measurements.
    pub count: usize,
    /// Their median.
    pub median: f64,
    /// The smallest, and the largest.
    pub range: [f64; 2],
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The goal, if there is one: `≥ 0.95`, `≤ 25`, for the median unless it begins with `p99` or `most`.
    pub goal: Option<String>,
    /// Position in a plot, if it is plotted.
    pub point: Option<Point>,
}

/// Position of a line in a plot: each system is a curve over the size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The comparison; identifies a plot of the question.
    pub plot: String,
    /// The system: `Tailyard, nftables`, `Tailscale proxy, nftables`, `plain forwarding`.
    pub system: String,
    /// With how many services, or other things that the sheet counts; a limit does not depend on them.
    pub size: Option<u64>,
}

/// Internal option (without dashes) for the process of one benchmark.
pub const ALONE: &str = "alone";

/// The limit.
pub const PLAIN: &str = "plain forwarding";

impl Point {
    /// A point of a plot.
    #[must_use]
    pub fn of(plot: &str, system: &str, size: impl Into<u64>) -> Self {
        Self { plot: plot.to_owned(), system: system.to_owned(), size: Some(size.into()) }
    }

    /// A point of a quantity that does not depend on the size.
    #[must_use]
    pub fn limit(plot: &str, system: &str) -> Self {
        Self { plot: plot.to_owned(), system: system.to_owned(), size: None }
    }
}

fn service() -> String {
    "service".to_owned()
}

fn is_service(noun: &str) -> bool {
    noun == "service"
}

impl Sheet {
    /// An empty sheet of this machine.
    #[must_use]
    pub fn new(question: &str) -> Self {
        Self { question: question.to_owned(), counts: service(), conditions: Conditions::here(), lines: Vec::new() }
    }

    /// Notes the version of something that is measured.
    pub fn version(&mut self, of: &str, is: impl Into<String>) {
        self.conditions.versions.insert(of.to_owned(), is.into());
    }

    /// Adds a line; without any measurement there is none.
    pub fn add(&mut self, what: impl Into<String>, unit: &str, samples: Vec<f64>, goal: Option<&str>) {
        self.lines.extend(Line::of(what.into(), unit, samples, goal));
    }

    /// Adds a line that is also plotted.
    pub fn plot(&mut self, point: Point, unit: &str, samples: Vec<f64>, goal: Option<&str>) {
        let size = point.size.map_or_else(String::new, |size| format!(", {}", counted(size, &self.counts)));
        let what = format!("{}: {}{size}", point.plot, point.system);
        let line = Line::of(what, unit, samples, goal);
        self.lines.extend(line.map(|line| Line { point: Some(point), ..line }));
    }
}

impl Line {
    fn of(what: String, unit: &str, mut samples: Vec<f64>, goal: Option<&str>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let range = [*samples.first()?, *samples.last()?];
        // The nearest rank: at least this many hundredths of the samples are not above it.
        let at = |hundredths: usize| samples.get((samples.len() * hundredths).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default();
        let (median, p99) = (at(50), at(99));
        Some(Self { what, unit: unit.to_owned(), count: samples.len(), median, range, p99, goal: goal.map(str::to_owned), point: None })
    }
}

impl Conditions {
    /// Those of this machine and this process, now.
    fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo").lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1.to_owned()));
        let release = read("/etc/os-release");
        let distribution = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let internal = |argument: &str| ["bench", ALONE].iter().any(|name| argument.strip_prefix("--") == Some(name));
        let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| !internal(argument)).collect();
        let version = format!("{} {}", env!("CARGO_PKG_VERSION"), first_output("git", &["describe", "--always", "--dirty"]));
        let nft = first_output("nft", &["--version"]).split_whitespace().nth(1).unwrap_or("unknown").to_owned();
        Self {
            date: Timestamp::now().round(Unit::Second).map(|now| now.to_string()).unwrap_or_default(),
            command: format!("cargo bench --bench suite -- {}", arguments.join(" ")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: format!("{cores} × {}", model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())),
            distribution: distribution.trim_matches('"').to_owned(),
            busy: read("/proc/loadavg").split_whitespace().next().and_then(|load| load.parse().ok()),
            trial: cfg!(debug_assertions) || arguments.iter().any(|argument| argument == "--quick"),
            versions: [("tailyard".to_owned(), version), ("nft".to_owned(), nft)].into(),
        }
    }
}

/// A number of things: `1 replica`, `5 replicas`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The output of a program, or empty text.
fn first_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

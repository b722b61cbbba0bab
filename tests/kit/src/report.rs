//! docs/benchmarks.md and its plots, rendered from sheets and from the texts of bench/words. Pure: no measurement and no I/O.

use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::sheet::{Conditions, Sheet};

mod goal;
mod number;
mod plot;
mod scale;
mod svg;
mod table;

pub use svg::text_width;

/// Where the words of a question leave room for its figures, and those of the whole for all questions.
const FIGURES: &str = "<!-- figures -->\n";
/// Marker of the table of goals.
const GOALS: &str = "<!-- goals -->\n";

/// The benchmarks, in the order of the report; their names are those of the variants in `snake_case`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Benchmark {
    Plan,
    Apply,
    Live,
    Connect,
    Kubeproxy,
    Throughput,
    Footprint,
    Tls,
    Orders,
    Reconciler,
    Surroundings,
    Hostile,
    First,
    Operators,
    Rolling,
    RollingMany,
    Standalone,
    StandaloneMany,
    PeersLive,
    PeersConnect,
    PeersFootprint,
    PeersFaults,
    PeersSwap,
    PeersNames,
    PeersThroughput,
    PeersRestart,
    PeersApiserver,
}

impl Benchmark {
    /// All of them.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The benchmark's name on the command line, in bench/words and in bench/results.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no variant is hidden").get_name().to_owned()
    }

    /// Whether it starts a whole Kubernetes cluster.
    pub fn needs_cluster(self) -> bool {
        matches!(self, Self::First | Self::Operators | Self::Rolling | Self::RollingMany | Self::Standalone | Self::StandaloneMany)
    }
}

/// One question: a benchmark, its text, and its results.
pub struct Question {
    /// The benchmark's name.
    pub name: String,
    /// A heading, and words before and after the figures.
    pub words: String,
    /// The results, if the benchmark was run.
    pub sheet: Option<Sheet>,
}

/// The document and its plots.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// The document.
    pub markdown: String,
    /// The plots by the names of their benchmarks, as SVG.
    pub plots: BTreeMap<String, String>,
}

impl Report {
    /// The report on all questions, in their order; `words` are those of the whole.
    pub fn on(questions: &[Question], words: &str) -> Result<Self, String> {
        let mut plots = BTreeMap::new();
        let (mut sections, mut goals) = (String::new(), Vec::new());
        for question in questions {
            let plot = question.sheet.as_ref().and_then(plot::svg);
            sections += &question.section(plot.is_some())?;
            goals.extend(question.goals()?);
            plots.extend(plot.map(|plot| (question.name.clone(), plot)));
        }
        let (words, rest) = words.split_once(GOALS).ok_or("the words of the whole leave no room for goals")?;
        let (between, after) = rest.split_once(FIGURES).ok_or("the words of the whole leave no room for figures")?;
        let markdown = format!("{words}{}{between}{sections}{after}", goal::summary(&goals));
        Ok(Self { markdown, plots })
    }
}

impl Question {
    /// Its part of the document.
    fn section(&self, plotted: bool) -> Result<String, String> {
        let room = || format!("the words of {} have no room for figures", self.name);
        let (before, after) = self.words.split_once(FIGURES).ok_or_else(room)?;
        let command = format!("cargo bench --bench suite -- {}", self.name);
        let Some(sheet) = &self.sheet else {
            return Ok(format!("{before}Not measured yet: `{command}` does it.\n{after}\n"));
        };
        let plot = if plotted { format!("![{}](benchmarks/{}.svg)\n\n", sheet.question, self.name) } else { String::new() };
        let figures = format!("[All figures](../bench/results/{}.json)", self.name);
        Ok(format!("{before}{plot}{}{} {figures}\n{after}\n", table::of(sheet), conditions(&sheet.conditions)))
    }

    /// Goals and results.
    fn goals(&self) -> Result<Vec<goal::Row>, String> {
        let heading =
            self.words.lines().find_map(|line| line.strip_prefix("## ")).ok_or_else(|| format!("{} has no heading", self.name))?;
        let lines = self.sheet.iter().flat_map(|sheet| &sheet.lines);
        lines.filter_map(|line| goal::Row::of(heading, line).transpose()).collect()
    }
}

/// Time, machine and versions of the measurement; the sheet has the rest.
fn conditions(conditions: &Conditions) -> String {
    let Conditions { date, kernel, processor, trial, versions, .. } = conditions;
    let (day, _) = date.split_once('T').unwrap_or((date, ""));
    let versions: Vec<_> = versions.iter().map(|(of, is)| format!("{of} {is}")).collect();
    let trial = if *trial { "**A trial: the figures say nothing.** " } else { "" };
    format!("{trial}*Measured {day} on {processor}, Linux {kernel}, {}.*", versions.join(", "))
}

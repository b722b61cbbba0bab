//! Metrics: families with typed labels, created once, and the Prometheus exposition text.
//!
//! Two kinds of family. *Counted* ones have state, updated by events ([`Counter`], [`Gauge`], [`Histogram`]). *Sampled* ones ([`Sampled`])
//! have none: their values are written directly into the [`Page`] of a scrape, so ten thousand services use no memory between scrapes and a
//! removed one leaves no series behind. The meaning of the families is up to their owners.

use std::fmt::Write as _;

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, TextEncoder};

/// Content type of [`Page::finish`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Values only increase, or restart at zero.
    Counter,
    /// Values increase and decrease.
    Gauge,
    /// Values are counted in buckets.
    Histogram,
}

impl Kind {
    /// Type name in the exposition format.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Description of a family, for documentation and the exposition's header lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Name, with unit.
    pub name: &'static str,
    pub kind: Kind,
    /// One sentence without a final full stop.
    pub help: &'static str,
    pub labels: Vec<&'static str>,
}

/// Error of creating a family: its name or a label is malformed, or the name is in use.
#[derive(Debug, thiserror::Error)]
#[error("metric family {name}: {source}")]
pub struct MetricsError {
    name: &'static str,
    source: prometheus::Error,
}

/// A counter with `L` labels.
#[derive(Debug, Clone)]
pub struct Counter<const L: usize>(IntCounterVec);

/// A gauge with `L` labels.
#[derive(Debug, Clone)]
pub struct Gauge<const L: usize>(GaugeVec);

/// A histogram with `L` labels.
#[derive(Debug, Clone)]
pub struct Histogram<const L: usize>(HistogramVec);

/// A family with `L` labels whose values are written at each scrape.
#[derive(Debug, Clone)]
pub struct Sampled<const L: usize>(Description);

/// Sample of one series of a histogram that is counted elsewhere.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HistogramSample {
    /// Upper bounds of the buckets, increasing.
    pub bounds: &'static [f64],
    /// Number of observations in each bucket, then above all bounds. Not cumulative.
    pub counts: Vec<u64>,
    pub sum: f64,
}

impl HistogramSample {
    /// A histogram of these bounds without observations.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }
}

#[derive(Debug, Default)]
pub struct Registry {
    counted: prometheus::Registry,
    descriptions: Vec<Description>,
}

/// Text of one scrape.
#[derive(Debug)]
pub struct Page(String);

/// A count as a Prometheus value. Counts above 2^53 lose their last digits, without effect on rates.
#[allow(clippy::cast_precision_loss)]
pub fn number(count: u64) -> f64 {
    count as f64
}

impl<const L: usize> Counter<L> {
    /// Adds to the counter with these label values.
    pub fn add(&self, labels: [&str; L], count: u64) {
        self.0.with_label_values(&labels).inc_by(count);
    }

    pub fn inc(&self, labels: [&str; L]) {
        self.add(labels, 1);
    }
}

impl<const L: usize> Gauge<L> {
    pub fn set(&self, labels: [&str; L], value: f64) {
        self.0.with_label_values(&labels).set(value);
    }
}

impl<const L: usize> Histogram<L> {
    pub fn observe(&self, labels: [&str; L], value: f64) {
        self.0.with_label_values(&labels).observe(value);
    }
}

impl Registry {
    /// Creates a counter. Fails if the name is malformed or in use.
    pub fn counter<const L: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
    ) -> Result<Counter<L>, MetricsError> {
        let family = IntCounterVec::new(Opts::new(name, help), &labels);
        self.enter(Description { name, kind: Kind::Counter, help, labels: labels.to_vec() }, family).map(Counter)
    }

    /// Creates a gauge. Fails if the name is malformed or in use.
    pub fn gauge<const L: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
    ) -> Result<Gauge<L>, MetricsError> {
        let family = GaugeVec::new(Opts::new(name, help), &labels);
        self.enter(Description { name, kind: Kind::Gauge, help, labels: labels.to_vec() }, family).map(Gauge)
    }

    /// Creates a histogram with these upper bounds. Fails if the name is malformed or in use, or if the bounds do not increase.
    pub fn histogram<const L: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
        bounds: &[f64],
    ) -> Result<Histogram<L>, MetricsError> {
        let family = HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), &labels);
        self.enter(Description { name, kind: Kind::Histogram, help, labels: labels.to_vec() }, family).map(Histogram)
    }

    /// Creates a family whose values are written at each scrape.
    pub fn sampled<const L: usize>(&mut self, name: &'static str, kind: Kind, help: &'static str, labels: [&'static str; L]) -> Sampled<L> {
        let description = Description { name, kind, help, labels: labels.to_vec() };
        self.descriptions.push(description.clone());
        Sampled(description)
    }

    /// All families, in order of creation.
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// Table of all families for the documentation.
    pub fn table(&self) -> String {
        let line = |Description { name, kind, help, labels }: &Description| {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "))
        };
        let head = ["| name | type | labels | meaning |", "|---|---|---|---|"].map(str::to_owned);
        let lines: Vec<_> = head.into_iter().chain(self.descriptions.iter().map(line)).collect();
        format!("{}\n", lines.join("\n"))
    }

    /// Starts the text of a scrape with all counted families.
    pub fn page(&self) -> Page {
        let mut text = String::new();
        for family in self.counted.gather() {
            // A family without series has no lines. One that cannot be encoded is left out and does not affect the rest.
            let mark = text.len();
            if TextEncoder::new().encode_utf8(&[family], &mut text).is_err() {
                text.truncate(mark);
            }
        }
        Page(text)
    }

    fn enter<F: Collector + Clone + 'static>(
        &mut self,
        description: Description,
        family: prometheus::Result<F>,
    ) -> Result<F, MetricsError> {
        let registered = family.and_then(|family| self.counted.register(Box::new(family.clone())).map(|()| family));
        let family = registered.map_err(|source| MetricsError { name: description.name, source })?;
        self.descriptions.push(description);
        Ok(family)
    }
}

impl Page {
    /// Writes the values of a sampled family. A family without values has no lines.
    pub fn write<'a, const L: usize>(&mut self, family: &Sampled<L>, values: impl IntoIterator<Item = ([&'a str; L], f64)>) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.head(family);
        }
        for (labels, value) in values {
            self.series(family.0.name, "", family.0.labels.iter().copied().zip(labels), value);
        }
    }

    /// Writes the series of a sampled histogram. A family without values has no lines.
    pub fn write_histogram<'a, const L: usize>(
        &mut self,
        family: &Sampled<L>,
        values: impl IntoIterator<Item = ([&'a str; L], &'a HistogramSample)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.head(family);
        }
        for (labels, sample) in values {
            let pairs = || family.0.labels.iter().copied().zip(labels);
            let bounds = sample.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            let mut count = 0.0;
            for (bound, observed) in bounds.zip(&sample.counts) {
                count += number(*observed);
                self.series(family.0.name, "_bucket", pairs().chain([("le", bound.as_str())]), count);
            }
            self.series(family.0.name, "_sum", pairs(), sample.sum);
            self.series(family.0.name, "_count", pairs(), count);
        }
    }

    fn head<const L: usize>(&mut self, family: &Sampled<L>) {
        let Description { name, kind, help, .. } = &family.0;
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
    }

    fn series<'a>(&mut self, name: &str, suffix: &str, labels: impl Iterator<Item = (&'a str, &'a str)>, value: f64) {
        self.line(format_args!("{name}{suffix}"));
        let mut open = '{';
        for (label, text) in labels {
            self.line(format_args!("{open}{label}=\""));
            self.escaped(text);
            self.0.push('"');
            open = ',';
        }
        self.line(format_args!("{} {value}\n", if open == '{' { "" } else { "}" }));
    }

    /// Appends exposition text of another process.
    pub fn append(&mut self, text: &str) {
        self.0.push_str(text);
        if !text.is_empty() && !text.ends_with('\n') {
            self.0.push('\n');
        }
    }

    pub fn finish(self) -> String {
        self.0
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a String cannot fail.
        let _ = self.0.write_fmt(line);
    }

    fn escaped(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                plain => self.0.push(plain),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_and_sampled_families_share_a_page() {
        let mut registry = Registry::default();
        let errors = registry.counter("t_errors_total", "Errors by kind", ["kind"]).expect("a family");
        let seconds = registry.histogram("t_seconds", "Durations", [], &[0.1, 1.0]).expect("a family");
        let targets = registry.sampled("t_targets", Kind::Gauge, "Targets by service", ["service"]);
        errors.add(["refused"], 2);
        seconds.observe([], 0.5);
        let mut page = registry.page();
        page.write(&targets, [(["a\"b\\c\nd"], 3.0), (["e"], 0.25)]);
        page.append("other 1");
        assert_eq!(
            page.finish(),
            "# HELP t_errors_total Errors by kind\n# TYPE t_errors_total counter\nt_errors_total{kind=\"refused\"} 2\n\
             # HELP t_seconds Durations\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"0.1\"} 0\nt_seconds_bucket{le=\"1\"} 1\n\
             t_seconds_bucket{le=\"+Inf\"} 1\nt_seconds_sum 0.5\nt_seconds_count 1\n\
             # HELP t_targets Targets by service\n# TYPE t_targets gauge\nt_targets{service=\"a\\\"b\\\\c\\nd\"} 3\nt_targets{service=\"e\"} 0.25\n\
             other 1\n"
        );
    }

    #[test]
    fn families_without_values_have_no_lines() {
        let mut registry = Registry::default();
        registry.counter("t_total", "Nothing yet", ["kind"]).expect("a family");
        let sampled = registry.sampled("t_now", Kind::Gauge, "Nothing now", []);
        let mut page = registry.page();
        page.write(&sampled, []);
        assert_eq!(page.finish(), "");
    }

    #[test]
    fn table_has_one_row_for_each_family_in_order_of_creation() {
        let mut registry = Registry::default();
        registry.counter("t_total", "Events", ["kind", "name"]).expect("a family");
        registry.sampled("t_now", Kind::Gauge, "What is now", []);
        registry.histogram("t_seconds", "Durations", ["kind"], &[1.0]).expect("a family");
        registry.gauge("t_up", "Whether it is up", []).expect("a family");
        assert_eq!(
            registry.table(),
            "| name | type | labels | meaning |\n|---|---|---|---|\n\
             | `t_total` | counter | `kind`, `name` | Events |\n\
             | `t_now` | gauge |  | What is now |\n\
             | `t_seconds` | histogram | `kind` | Durations |\n\
             | `t_up` | gauge |  | Whether it is up |\n"
        );
    }

    #[test]
    fn duplicate_metric_name_is_an_error() {
        let mut registry = Registry::default();
        registry.gauge("t_up", "Whether it is up", []).expect("a family").set([], 1.0);
        let error = registry.gauge("t_up", "Again", []).expect_err("taken");
        assert!(error.to_string().starts_with("metric family t_up: "), "{error}");
        assert_eq!(registry.descriptions().len(), 1);
    }
}

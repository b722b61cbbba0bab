//! Figures as people read them.

use crate::sheet::Line;

/// The title of a column of [`spread`].
pub(crate) const SPREAD: &str = "median (least to most, n)";
/// From so many measurements on the 99th percentile is not the maximum.
const P99_COUNT: usize = 100;

/// The median of a line with its unit, its range and the number of measurements. Includes the p99 on request, or for many measurements.
pub(crate) fn spread(line: &Line, p99: bool) -> String {
    let [median, least, most, of_p99] = [line.median, line.range[0], line.range[1], line.p99].map(figure);
    let p99 = if p99 || line.count >= P99_COUNT { format!(", p99 {of_p99}") } else { String::new() };
    let unit = if matches!(line.unit.as_str(), "" | "ratio" | "count") { String::new() } else { format!(" {}", line.unit) };
    let range = if line.count > 1 { format!(" ({least} to {most}, {})", line.count) } else { String::new() };
    format!("{median}{p99}{unit}{range}")
}

/// Three digits that matter, thousands apart.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v.fract() == 0.0 => thousands(value),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.1 => format!("{value:.3}"),
        v if v >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

/// A mark of an axis: no digit more than it needs.
pub(crate) fn mark(value: f64) -> String {
    if value >= 1_000.0 { thousands(value) } else { format!("{value:.5}").trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// A whole number.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let grouped: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{}{}", if value < 0.0 { "-" } else { "" }, grouped.join(","))
}

#[test]
fn spread_has_unit_range_and_percentile_if_meaningful() {
    let line = |unit: &str, count| Line {
        what: String::new(),
        unit: unit.to_owned(),
        count,
        median: 2.0,
        range: [1.0, 9.0],
        p99: 8.0,
        goal: None,
        point: None,
    };
    assert_eq!(spread(&line("ms", 1), false), "2 ms");
    assert_eq!(spread(&line("ms", 5), true), "2, p99 8 ms (1 to 9, 5)");
    assert_eq!(spread(&line("ratio", 100), false), "2, p99 8 (1 to 9, 100)");
}

#[test]
fn figures_have_three_significant_digits() {
    let shown = [0.0, 1.0, 0.00821, 0.0153, 0.97, 12.44, 133.5, 12_269.8, 1_250_000.0, -1_234.0].map(figure);
    assert_eq!(shown, ["0", "1", "0.00821", "0.0153", "0.970", "12.4", "134", "12,270", "1,250,000", "-1,234"]);
    assert_eq!([0.0, 0.001, 3.0 * 0.1, 1.5, 20.0, 15_000.0].map(mark), ["0", "0.001", "0.3", "1.5", "20", "15,000"]);
}

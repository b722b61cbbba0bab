//! Figures as people read them.

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
fn figures_have_the_digits_that_matter() {
    let shown = [0.0, 1.0, 0.00821, 0.0153, 0.97, 12.44, 133.5, 12_269.8, 1_250_000.0, -1_234.0].map(figure);
    assert_eq!(shown, ["0", "1", "0.00821", "0.0153", "0.970", "12.4", "134", "12,270", "1,250,000", "-1,234"]);
    assert_eq!([0.0, 0.001, 3.0 * 0.1, 1.5, 20.0, 15_000.0].map(mark), ["0", "0.001", "0.3", "1.5", "20", "15,000"]);
}

//! Metric families of both pages, checked by promtool against the conventions of Prometheus.

use std::io::Write;
use std::process::{Command, Stdio};

use tailyard::proxy::metrics::Metrics;
use tailyard::reconciler::metrics::Metrics as Reconciler;
use tailyard::runtime::metrics::Description;

/// A family with one series, in the format of the page.
fn family(Description { name, kind, help, labels }: &Description) -> String {
    let kind = kind.name();
    let pairs = |more: &[&str]| {
        let all: Vec<_> = labels.iter().map(|label| format!("{label}=\"a\"")).chain(more.iter().map(|pair| (*pair).to_owned())).collect();
        if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
    };
    let plain = pairs(&[]);
    let series = match kind {
        "histogram" => {
            let buckets = ["le=\"1\"", "le=\"+Inf\""].map(|bound| format!("{name}_bucket{} 1\n", pairs(&[bound]))).concat();
            format!("{buckets}{name}_sum{plain} 1\n{name}_count{plain} 1\n")
        }
        _ => format!("{name}{plain} 1\n"),
    };
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{series}")
}

/// Faults that promtool finds in a page; empty if none.
fn faults(page: &str) -> String {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (tests/setup installs it)");
    promtool.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("written");
    let output = promtool.wait_with_output().expect("it ends");
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert_eq!(output.status.success(), texts.is_empty(), "{texts}");
    texts
}

#[test]
fn families_follow_the_conventions_of_prometheus() {
    let (proxy, reconciler) = (Metrics::new().expect("families"), Reconciler::new().expect("families"));
    for registry in [proxy.registry(), reconciler.registry()] {
        let page: String = registry.descriptions().iter().map(family).collect();
        assert!(page.lines().count() > 40, "{page}");
        assert_eq!(faults(&page), "");
    }
    assert!(faults("# HELP a_seconds_count x\n# TYPE a_seconds_count gauge\na_seconds_count 1\n").contains("a_seconds_count"));
}

//! docs/benchmarks.md, its plots and the figures in README.md equal the generator's output for bench/results and bench/words.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure report` rewrites them, and the report on the sheets of tests/golden/report.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kit::golden::{assert_golden, assert_part, is_updating};
use kit::report::{Benchmark, Question, Report};
use kit::root;
use kit::sheet::{Line, Sheet};

mod plots;

/// Questions with these names, each with its text and its sheet, if it exists.
fn questions(names: &[String], words: &Path, results: &Path) -> Vec<Question> {
    let question = |name: &String| Question {
        name: name.clone(),
        words: fs::read_to_string(words.join(format!("{name}.md")))
            .unwrap_or_else(|_| panic!("no words about {name} in {}", words.display())),
        sheet: fs::read(results.join(format!("{name}.json"))).ok().map(|sheet| serde_json::from_slice(&sheet).expect(name)),
    };
    names.iter().map(question).collect()
}

/// Names of the benchmarks, in the order of the report.
fn benchmarks() -> Vec<String> {
    Benchmark::all().iter().map(|benchmark| benchmark.name()).collect()
}

/// Compares the report with the document and its plots in the repository, by the document's path.
fn assert_report(report: &Report, document: &str) {
    assert_golden(document, &report.markdown);
    let folder = document.trim_end_matches(".md");
    let plots: BTreeSet<_> = report.plots.keys().map(|name| format!("{name}.svg")).collect();
    for (name, plot) in &report.plots {
        assert_golden(&format!("{folder}/{name}.svg"), plot);
    }
    for entry in fs::read_dir(root().join(folder)).expect("the plots") {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned())).expect("an entry");
        if is_updating() && !plots.contains(&name) {
            fs::remove_file(&path).expect("removed");
        }
        assert!(is_updating() || plots.contains(&name), "{} is of no question", path.display());
    }
}

/// The report on bench/results.
fn report() -> Report {
    let words = root().join("bench/words");
    let questions = questions(&benchmarks(), &words, &root().join("bench/results"));
    let whole = fs::read_to_string(words.join("benchmarks.md")).expect("the words of the whole");
    Report::on(&questions, &whole).expect("a report")
}

#[test]
fn document_and_plots_equal_the_generated_ones() {
    assert_report(&report(), "docs/benchmarks.md");
}

/// The figures of `rolling` in README.md.
fn figures_of_readme(sheet: &Sheet) -> String {
    let systems = ["Tailyard", "Tailscale operator"];
    let line = |plot: &str, system: &str| -> &Line {
        let of = |line: &&Line| line.what.strip_prefix(plot).is_some_and(|rest| rest.starts_with(&format!(": {system}")));
        sheet.lines.iter().find(of).unwrap_or_else(|| panic!("no figure of {plot}, {system}"))
    };
    let row = |title: &str, plot: &str, digits: usize| {
        let lines = systems.map(|system| line(plot, system));
        let cells = lines.map(|line| format!("{:.digits$}{}{}", line.median, if line.unit.is_empty() { "" } else { " " }, line.unit));
        let counts: BTreeSet<_> = lines.iter().map(|line| line.count).collect();
        let counts = counts.into_iter().map(|count| count.to_string()).collect::<Vec<_>>();
        format!("| {title} | {} | {} |\n", cells.join(" | "), counts.join(" to "))
    };
    let release = &sheet.conditions.versions["Tailscale operator"];
    [
        "[Measured](docs/benchmarks.md#both-groups-under-load) on one cluster with two replicas and 200 new connections a second (30 while a node is lost);\nmedians:\n\n".to_owned(),
        format!("| | Tailyard | Tailscale operator {release} | runs of each |\n|---|---:|---:|---:|\n"),
        row("Rolling restart: failed connections", "rolling restart: failed connects", 0),
        row("Rolling restart: duration", "rolling restart: until all Pods are new and ready", 1),
        row("Replica killed: connections not answered within a second", "replica killed: not answered within a second", 0),
        row("Node lost: failed connections", "node lost: failed connects", 0),
    ]
    .concat()
}

#[test]
fn figures_in_readme_are_those_of_the_results() {
    let sheet = fs::read(root().join("bench/results/rolling.json")).expect("results");
    let figures = figures_of_readme(&serde_json::from_slice(&sheet).expect("a sheet"));
    assert_part("README.md", "<!-- rolling restart: made by tests/pure/report.rs -->\n", "<!-- end of figures -->", &figures);
}

#[test]
fn each_result_belongs_to_a_benchmark() {
    let existing: BTreeSet<_> = benchmarks().into_iter().collect();
    for entry in fs::read_dir(root().join("bench/results")).expect("results") {
        let path = entry.expect("an entry").path();
        assert!(existing.contains(&*path.file_stem().expect("a name").to_string_lossy()), "{}", path.display());
    }
}

/// A sweep with a limit and missed goals, figures of one size, lines without a plot, and a question without figures.
#[test]
fn report_on_sample_sheets_is_golden() {
    let folder = root().join("tests/golden/report");
    let names = ["sweep", "single", "absent"].map(str::to_owned);
    let questions = questions(&names, &folder, &folder);
    let whole = "# Made up\n\n<!-- goals -->\n\nThen:\n\n<!-- figures -->\nThe end.\n";
    assert_report(&Report::on(&questions, whole).expect("a report"), "tests/golden/report/benchmarks.md");
}

#[test]
fn text_without_a_placeholder_and_an_unreadable_goal_are_errors() {
    let folder = root().join("tests/golden/report");
    let mut questions = questions(&["sweep".to_owned()], &folder, &folder);
    let whole = "<!-- goals -->\n<!-- figures -->\n";
    Report::on(&questions, "<!-- goals -->\n").expect_err("no room for figures");
    let question = questions.first_mut().expect("one");
    question.sheet.as_mut().expect("a sheet").lines.first_mut().expect("a line").goal = Some("about 0".to_owned());
    assert_eq!(Report::on(&questions, whole).expect_err("no goal"), "no goal: about 0");
    questions.first_mut().expect("one").words = "## Nothing".to_owned();
    assert_eq!(Report::on(&questions, whole).expect_err("no room"), "the words of sweep have no room for figures");
}

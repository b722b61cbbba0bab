//! docs/benchmarks.md and its plots are what the generator makes of bench/results and bench/words.
//!
//! `TAILYARD_WRITE_DOCS=1 cargo test --test pure report` writes them anew, `UPDATE_GOLDEN=1` what made-up sheets come to.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kit::report::{Benchmark, Question, Report};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The questions of these names: what is to be said about them, and what was measured.
fn questions(names: &[String], words: &Path, results: &Path) -> Vec<Question> {
    let question = |name: &String| Question {
        name: name.clone(),
        words: fs::read_to_string(words.join(format!("{name}.md")))
            .unwrap_or_else(|_| panic!("no words about {name} in {}", words.display())),
        sheet: fs::read(results.join(format!("{name}.json"))).ok().map(|sheet| serde_json::from_slice(&sheet).expect(name)),
    };
    names.iter().map(question).collect()
}

/// The names of the benchmarks, in the order of the report.
fn benchmarks() -> Vec<String> {
    Benchmark::all().iter().map(|benchmark| benchmark.name()).collect()
}

/// Compares the report with what is held, or writes it.
fn hold(report: &Report, document: &Path, how: &str) {
    let plots = document.with_extension("");
    let mut files = vec![(document.to_owned(), &report.markdown)];
    files.extend(report.plots.iter().map(|(name, plot)| (plots.join(format!("{name}.svg")), plot)));
    if std::env::var_os(how).is_some() {
        let _ = fs::remove_dir_all(&plots);
        fs::create_dir_all(&plots).expect("a folder");
        for (path, text) in &files {
            fs::write(path, text).expect("written");
        }
    }
    for (path, text) in &files {
        let held = fs::read_to_string(path).unwrap_or_default();
        assert!(held == **text, "{} is stale; write it with\n  {how}=1 cargo test --test pure report", path.display());
    }
    let held = fs::read_dir(&plots).expect("the plots").map(|entry| entry.expect("an entry").path()).collect::<BTreeSet<_>>();
    let made = files.iter().skip(1).map(|(path, _)| path.clone()).collect();
    assert_eq!(held, made, "no plot is left over");
}

#[test]
fn the_document_is_what_was_measured() {
    let words = root().join("bench/words");
    let questions = questions(&benchmarks(), &words, &root().join("bench/results"));
    let whole = fs::read_to_string(words.join("benchmarks.md")).expect("the words of the whole");
    hold(&Report::on(&questions, &whole).expect("a report"), &root().join("docs/benchmarks.md"), "TAILYARD_WRITE_DOCS");
}

#[test]
fn nothing_was_measured_by_a_benchmark_that_there_is_not() {
    let known: BTreeSet<_> = benchmarks().into_iter().collect();
    for entry in fs::read_dir(root().join("bench/results")).expect("results") {
        let path = entry.expect("an entry").path();
        assert!(known.contains(&*path.file_stem().expect("a name").to_string_lossy()), "{}", path.display());
    }
}

/// A sweep with a limit and a goal that is missed, figures of one size, lines without a plot, and a question without figures.
#[test]
fn made_up_sheets_become_a_report() {
    let folder = root().join("tests/golden/report");
    let names = ["sweep", "single", "absent"].map(str::to_owned);
    let questions = questions(&names, &folder, &folder);
    let whole = "# Made up\n\n<!-- goals -->\n\nThen:\n\n<!-- figures -->\nThe end.\n";
    hold(&Report::on(&questions, whole).expect("a report"), &folder.join("benchmarks.md"), "UPDATE_GOLDEN");
}

#[test]
fn words_without_room_and_goals_that_say_nothing_are_told() {
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

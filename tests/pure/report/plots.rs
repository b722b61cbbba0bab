//! Legibility of all plots of the report: texts do not overlap and are inside of the picture; the legend explains colours and dashes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kit::report::text_width;
use kit::root;
use kit::sheet::Sheet;

use super::report;

/// A text of a picture, and its box.
#[derive(Debug)]
struct Text {
    words: String,
    across: [f64; 2],
    down: [f64; 2],
}

/// An entry of a legend.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    words: String,
    colour: String,
    is_dashed: bool,
}

fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let value = element.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    value.unwrap_or_else(|| panic!("no {name} in {element}")).0
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name).parse().expect("a number")
}

fn text(element: &str) -> Text {
    let escaped = element.split_once('>').and_then(|(_, rest)| rest.split_once('<')).expect("words").0;
    let words = escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
    let (x, y) = (number(element, "x"), number(element, "y"));
    let width = text_width(&words, element.contains("font-weight"));
    let left_edge = match attribute(element, "text-anchor") {
        "start" => x,
        "middle" => x - width / 2.0,
        _ => x - width,
    };
    Text { words, across: [left_edge, left_edge + width], down: [y - 9.5, y + 3.0] }
}

fn texts(plot: &str) -> Vec<Text> {
    plot.lines().filter(|line| line.starts_with("<text ")).map(text).collect()
}

/// The legend: samples with the text behind each, before the first title.
fn legend(plot: &str) -> Vec<Entry> {
    let elements: Vec<_> = plot.lines().take_while(|line| !line.contains("font-weight")).collect();
    let samples = elements.windows(2).filter(|pair| pair[0].starts_with("<polyline"));
    let entry = |pair: &[&str]| Entry {
        words: text(pair[1]).words,
        colour: attribute(pair[0], "stroke").to_owned(),
        is_dashed: pair[0].contains("stroke-dasharray"),
    };
    samples.map(entry).collect()
}

/// Plots that are not as they have to be, by name.
fn assert_plots(problems: impl Fn(&str, &str) -> Vec<String>) {
    let plots = report().plots;
    assert!(plots.len() > 10, "the plots of the report");
    let found: BTreeMap<_, _> =
        plots.iter().map(|(name, plot)| (name, problems(name, plot))).filter(|(_, found)| !found.is_empty()).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn titles_labels_and_entries_of_the_legend_do_not_overlap() {
    let meet = |one: [f64; 2], other: [f64; 2]| one[0] < other[1] && other[0] < one[1];
    assert_plots(|_, plot| {
        let texts = texts(plot);
        let overlaps = texts.iter().enumerate().flat_map(|(number, text)| {
            let others = texts.iter().take(number).filter(|other| meet(text.across, other.across) && meet(text.down, other.down));
            others.map(|other| format!("{} / {}", other.words, text.words))
        });
        overlaps.collect()
    });
}

#[test]
fn legend_titles_and_labels_are_inside_of_the_picture() {
    assert_plots(|_, plot| {
        let picture = plot.lines().next().expect("a picture");
        let (width, height) = (number(picture, "width"), number(picture, "height"));
        let is_outside = |text: &Text| text.across[0] < 0.0 || text.across[1] > width || text.down[0] < 0.0 || text.down[1] > height;
        texts(plot).into_iter().filter(is_outside).map(|text| text.words).collect()
    });
}

/// Systems of the drawn lines of a sheet, and whether one of them has a goal.
fn drawn(name: &str) -> (BTreeSet<String>, bool) {
    let sheet = fs::read(root().join(format!("bench/results/{name}.json"))).expect("results");
    let sheet: Sheet = serde_json::from_slice(&sheet).expect("a sheet");
    let points: Vec<_> = sheet.lines.iter().filter_map(|line| Some((line, line.point.as_ref()?))).collect();
    let compares = |plot: &str| points.iter().filter(|(_, other)| other.plot == plot).count() > 1;
    let drawn: Vec<_> = points.iter().filter(|(_, point)| compares(&point.plot)).collect();
    (drawn.iter().map(|(_, point)| point.system.clone()).collect(), drawn.iter().any(|(line, _)| line.goal.is_some()))
}

#[test]
fn legend_has_each_system_in_a_colour_of_its_own() {
    assert_plots(|name, plot| {
        let entries: Vec<_> = legend(plot).into_iter().filter(|entry| !entry.is_dashed).collect();
        let colours: BTreeSet<_> = entries.iter().map(|entry| &entry.colour).collect();
        let systems: BTreeSet<_> = entries.iter().map(|entry| entry.words.clone()).collect();
        let expected = drawn(name).0;
        let is_right = colours.len() == entries.len() && systems == expected;
        if is_right { Vec::new() } else { vec![format!("{entries:?}, systems {expected:?}")] }
    });
}

#[test]
fn legend_explains_the_dashes_of_a_goal_where_one_is_drawn() {
    assert_plots(|name, plot| {
        let goals = legend(plot).into_iter().filter(|entry| entry.is_dashed).collect::<Vec<_>>();
        let words: Vec<_> = goals.iter().map(|goal| goal.words.as_str()).collect();
        let dashes = plot.lines().filter(|line| line.starts_with("<polyline") && line.contains("stroke-dasharray"));
        let of_goal = dashes.filter(|dash| goals.iter().any(|goal| attribute(dash, "stroke") == goal.colour)).count();
        let is_right = if drawn(name).1 { words == ["goal"] && of_goal > 1 } else { words.is_empty() };
        if is_right { Vec::new() } else { vec![format!("legend {words:?}, {of_goal} dashes")] }
    });
}

#[test]
fn one_thing_is_in_the_singular() {
    let report = report();
    for (name, text) in report.plots.iter().map(|(name, plot)| (name.as_str(), plot)).chain([("the document", &report.markdown)]) {
        let found: Vec<_> = [" 1 replicas", " 1 services"].into_iter().filter(|plural| text.contains(plural)).collect();
        assert!(found.is_empty(), "{name}: {found:?}");
    }
    assert_eq!([(1, "replica"), (5, "replica")].map(|(number, noun)| kit::sheet::counted(number, noun)), ["1 replica", "5 replicas"]);
}

/// The singular is that of `Point`'s lines, too.
#[test]
fn line_of_one_service_is_named_in_the_singular() {
    let mut sheet = Sheet::new("made up");
    for size in [1_u64, 2] {
        sheet.plot(kit::sheet::Point::of("rate", "A", size), "ms", vec![1.0], None);
    }
    assert_eq!(sheet.lines.iter().map(|line| line.what.as_str()).collect::<Vec<_>>(), ["rate: A, 1 service", "rate: A, 2 services"]);
}

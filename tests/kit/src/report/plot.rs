//! The plots of one sheet, side by side in one drawing: a curve for each system over the number of services, with the least and the
//! most around the median; where nothing is swept, a row for each system.

use std::collections::BTreeMap;

use super::goal::bound;
use super::number::{figure, mark as written};
use super::scale::Scale;
use super::svg::{Anchor, Colour, Drawing, GRID, INK, LINE_HEIGHT, MUTED, text_width, wrapped};
use crate::sheet::{Line, Sheet};

/// The size of one plot.
const PANEL: (f64, f64) = (440.0, 250.0);
/// Where its axes are: from the left, the right, the top and the bottom.
const MARGIN: (f64, f64, f64, f64) = (66.0, 58.0, 44.0, 40.0);
/// Left of the legend and of each title, and right of them.
const PADDING: f64 = 16.0;
/// The sample of an entry of the legend with its gap, and the gap between two entries.
const LEGEND_GAPS: (f64, f64) = (22.0, 18.0);
/// Height of a row of the legend.
const LEGEND_ROW: f64 = 20.0;
/// How high the row of a system is where nothing is swept.
const ROW: f64 = 40.0;

/// Between a point and its label.
const LABEL_GAP: f64 = 8.0;
/// The dashes of a goal: the colour, and half the length.
const GOAL: Colour = INK;
const GOAL_LENGTH: f64 = 14.0;

/// Colours by prefix of the system's name: see [`colours`].
const COLOURS: [(&str, Colour); 9] = [
    ("Tailyard, iptables", ("aqua", "#1baf7a", "#199e70")),
    ("Tailyard with standby", ("violet", "#4a3aa7", "#9085e9")),
    ("Tailyard", ("blue", "#2a78d6", "#3987e5")),
    ("Tailscale proxy, iptables", ("yellow", "#c98500", "#eda100")),
    ("Tailscale", ("orange", "#eb6834", "#d95926")),
    ("kube-proxy", ("violet", "#4a3aa7", "#9085e9")),
    ("plain", ("grey", "#85837d", "#8f8d86")),
    ("NAT", ("magenta", "#d55181", "#e87ba4")),
    ("", ("green", "#008300", "#2ca02c")),
];

/// One comparison.
struct Panel<'a> {
    title: &'a str,
    unit: &'a str,
    /// What the sizes count.
    noun: &'a str,
    curves: Vec<Curve<'a>>,
}

/// The results of one system.
struct Curve<'a> {
    system: &'a str,
    /// By size, if the figure depends on the size.
    lines: Vec<(Option<u64>, &'a Line)>,
}

/// All plots of a sheet, if it has any.
pub(crate) fn svg(sheet: &Sheet) -> Option<String> {
    let panels = panels(sheet);
    let columns = panels.len().min(2);
    let width = PANEL.0 * float(columns);
    let title_lines = panels.iter().map(|panel| panel.title_lines().len()).max()?;
    let titles = LINE_HEIGHT * float(title_lines - 1);
    let height = titles + panels.iter().map(Panel::height).reduce(f64::max)?;
    let colours = colours(&systems(&panels));
    let mut drawing = Drawing::default();
    let top = legend(&panels, &colours, width, &mut drawing);
    for (number, panel) in panels.iter().enumerate() {
        let corner = (PANEL.0 * float(number % columns), top + height * float(number / columns));
        panel.draw(corner, titles, &colours, &mut drawing);
    }
    Some(drawing.finish((width, top + height * float(panels.len().div_ceil(columns))), &sheet.question))
}

/// Whether a line is drawn in a plot: a plot with a single line compares nothing and is not drawn.
pub(crate) fn is_drawn(sheet: &Sheet, line: &Line) -> bool {
    let Some(point) = &line.point else { return false };
    sheet.lines.iter().filter_map(|line| line.point.as_ref()).filter(|other| other.plot == point.plot).count() > 1
}

/// The plots of a sheet.
fn panels(sheet: &Sheet) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for (point, line) in sheet.lines.iter().filter(|line| is_drawn(sheet, line)).filter_map(|line| Some((line.point.as_ref()?, line))) {
        let found = panels.iter().position(|panel| panel.title == point.plot).unwrap_or_else(|| {
            panels.push(Panel { title: &point.plot, unit: &line.unit, noun: &sheet.counts, curves: Vec::new() });
            panels.len() - 1
        });
        if let Some(panel) = panels.get_mut(found) {
            panel.add(&point.system, point.size, line);
        }
    }
    panels
}

/// The systems, in the order of the legend.
fn systems<'a>(panels: &[Panel<'a>]) -> Vec<&'a str> {
    let mut systems = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if !systems.contains(&curve.system) {
            systems.push(curve.system);
        }
    }
    systems
}

/// The colour of each system. It is that of the first prefix in [`COLOURS`], the same in all pictures; a further system with this prefix in one
/// picture has an unused colour.
fn colours<'a>(systems: &[&'a str]) -> BTreeMap<&'a str, Colour> {
    let of_prefix = |system: &str| COLOURS.into_iter().filter(|(begin, _)| system.starts_with(begin)).take(1).collect::<Vec<_>>();
    let mut colours = BTreeMap::new();
    for any in [false, true] {
        for system in systems {
            let candidates = if any { COLOURS.to_vec() } else { of_prefix(system) };
            let unused = candidates.into_iter().map(|(_, colour)| colour).find(|colour| !colours.values().any(|used| used == colour));
            if let (Some(colour), false) = (unused, colours.contains_key(system)) {
                colours.insert(*system, colour);
            }
        }
    }
    colours
}

/// Colours of the systems, and the dashes of a goal, in as many rows as the width requires. Returns the height.
fn legend(panels: &[Panel<'_>], colours: &BTreeMap<&str, Colour>, width: f64, drawing: &mut Drawing) -> f64 {
    let has_goal = panels.iter().flat_map(Panel::lines).any(|(_, line)| bound(line).is_some());
    let goal = has_goal.then_some((GOAL, "goal", true));
    let (mut x, mut y) = (PADDING, LEGEND_ROW);
    for (colour, text, dashed) in systems(panels).into_iter().map(|system| (colours[system], system, false)).chain(goal) {
        let end = x + LEGEND_GAPS.0 + text_width(text, false);
        if end > width - PADDING && x > PADDING {
            (x, y) = (PADDING, y + LEGEND_ROW);
        }
        drawing.line(&[(x, y), (x + 16.0, y)], colour, if dashed { 2.0 } else { 3.0 }, dashed);
        drawing.text((x + LEGEND_GAPS.0, y + 4.0), Anchor::Start, INK, false, text);
        x += LEGEND_GAPS.0 + text_width(text, false) + LEGEND_GAPS.1;
    }
    y + 14.0
}

impl<'a> Panel<'a> {
    fn add(&mut self, system: &'a str, size: Option<u64>, line: &'a Line) {
        match self.curves.iter_mut().find(|curve| curve.system == system) {
            Some(curve) => curve.lines.push((size, line)),
            None => self.curves.push(Curve { system, lines: vec![(size, line)] }),
        }
    }

    fn lines(&self) -> impl Iterator<Item = (Option<u64>, &'a Line)> {
        self.curves.iter().flat_map(|curve| curve.lines.iter().copied())
    }

    /// The sizes that are swept.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.lines().filter_map(|(size, _)| size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The title, in lines that fit.
    fn title_lines(&self) -> Vec<String> {
        let title = if self.unit.is_empty() { self.title.to_owned() } else { format!("{}\u{a0}({})", self.title, self.unit) };
        wrapped(&title, PANEL.0 - 2.0 * PADDING)
    }

    /// The height with a title of one line.
    fn height(&self) -> f64 {
        if self.sizes().len() > 1 { PANEL.1 } else { MARGIN.2 + MARGIN.3 + ROW * float(self.curves.len()) }
    }

    fn draw(&self, corner: (f64, f64), titles: f64, colours: &BTreeMap<&str, Colour>, drawing: &mut Drawing) {
        for (number, title) in self.title_lines().iter().enumerate() {
            drawing.text((corner.0 + PADDING, corner.1 + 24.0 + LINE_HEIGHT * float(number)), Anchor::Start, INK, true, title);
        }
        let frame = Frame {
            left_edge: corner.0 + MARGIN.0,
            right_edge: corner.0 + PANEL.0 - MARGIN.1,
            top: corner.1 + titles + MARGIN.2,
            bottom: corner.1 + titles + self.height() - MARGIN.3,
        };
        let values: Vec<_> = self.lines().flat_map(|(_, line)| line.range.into_iter().chain(bound(line))).collect();
        match self.sizes()[..] {
            [least, .., most] => self.sweep(&frame, Scale::of(&values), (least, most), colours, drawing),
            _ => self.rows(&frame, &values, colours, drawing),
        }
    }

    /// A curve for each system.
    fn sweep(&self, frame: &Frame, scale: Scale, ends: (u64, u64), colours: &BTreeMap<&str, Colour>, drawing: &mut Drawing) {
        for mark in scale.marks() {
            let y = frame.y(scale.place(mark));
            drawing.line(&[(frame.left_edge, y), (frame.right_edge, y)], GRID, 1.0, false);
            drawing.text((frame.left_edge - 8.0, y + 4.0), Anchor::End, MUTED, false, &written(mark));
        }
        for size in self.sizes() {
            drawing.text((frame.x(across(size, ends)), frame.bottom + 18.0), Anchor::Middle, MUTED, false, &written(exact(size)));
        }
        drawing.text((frame.right_edge, frame.bottom + 33.0), Anchor::End, MUTED, false, &format!("{}s", self.noun));
        let mut labels = Vec::new();
        for curve in &self.curves {
            let points = curve.points(ends);
            let at = |value: fn(&Line) -> f64| {
                points.iter().map(move |(size, line)| (frame.x(across(*size, ends)), frame.y(scale.place(value(line))))).collect::<Vec<_>>()
            };
            let (least, median, most) = (at(|line| line.range[0]), at(|line| line.median), at(|line| line.range[1]));
            let colour = colours[curve.system];
            drawing.area(&least.into_iter().chain(most.into_iter().rev()).collect::<Vec<_>>(), colour);
            drawing.line(&median, colour, 2.0, curve.is_limit());
            for ((_, line), point) in points.iter().zip(&median) {
                if !curve.is_limit() {
                    drawing.dot(*point, colour, &tooltip(line));
                }
                if let Some(y) = bound(line).map(|goal| frame.y(scale.place(goal))) {
                    let ends = [point.0 - GOAL_LENGTH, point.0 + GOAL_LENGTH].map(|x| x.clamp(frame.left_edge, frame.right_edge));
                    drawing.line(&ends.map(|x| (x, y)), GOAL, 2.0, true);
                }
            }
            labels.extend(median.last().zip(points.last()).map(|(at, (_, line))| (*at, figure(line.median))));
        }
        for ((x, y), label) in apart(labels, frame.bottom) {
            drawing.label((x + LABEL_GAP, y + 4.0), &label);
        }
    }

    /// A row for each system.
    fn rows(&self, frame: &Frame, values: &[f64], colours: &BTreeMap<&str, Colour>, drawing: &mut Drawing) {
        let frame = Frame { left_edge: frame.left_edge - MARGIN.0 + PADDING, ..*frame };
        let scale = Scale::of(values);
        for mark in scale.marks() {
            let x = frame.x(scale.place(mark));
            drawing.line(&[(x, frame.top), (x, frame.bottom)], GRID, 1.0, false);
            drawing.text((x, frame.bottom + 18.0), Anchor::Middle, MUTED, false, &written(mark));
        }
        for (number, curve) in self.curves.iter().enumerate() {
            let y = frame.top + ROW * (float(number) + 0.7);
            drawing.text((frame.left_edge, y - 12.0), Anchor::Start, MUTED, false, curve.system);
            for (_, line) in &curve.lines {
                let [least, most] = line.range.map(|value| frame.x(scale.place(value)));
                drawing.line(&[(least, y), (most, y)], colours[curve.system], 2.0, false);
                drawing.dot((frame.x(scale.place(line.median)), y), colours[curve.system], &tooltip(line));
                if let Some(x) = bound(line).map(|goal| frame.x(scale.place(goal))) {
                    drawing.line(&[(x, y - GOAL_LENGTH / 2.0), (x, y + GOAL_LENGTH / 2.0)], GOAL, 2.0, true);
                }
                drawing.text((frame.right_edge + LABEL_GAP, y + 4.0), Anchor::Start, INK, false, &figure(line.median));
            }
        }
    }
}

impl<'a> Curve<'a> {
    fn is_limit(&self) -> bool {
        self.lines.iter().all(|(size, _)| size.is_none())
    }

    /// Its points by size; a limit is the same from end to end.
    fn points(&self, ends: (u64, u64)) -> Vec<(u64, &'a Line)> {
        let everywhere = |(size, line): &(Option<u64>, &'a Line)| match size {
            Some(size) => vec![(*size, *line)],
            None => vec![(ends.0, *line), (ends.1, *line)],
        };
        let mut points: Vec<_> = self.lines.iter().flat_map(everywhere).collect();
        points.sort_by_key(|(size, _)| *size);
        points
    }
}

/// Where the axes of a plot are.
struct Frame {
    left_edge: f64,
    right_edge: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, place: f64) -> f64 {
        self.left_edge + place * (self.right_edge - self.left_edge)
    }

    fn y(&self, place: f64) -> f64 {
        self.bottom - place * (self.bottom - self.top)
    }
}

/// Where a size lies between the least and the most, by its logarithm.
fn across(size: u64, (least, most): (u64, u64)) -> f64 {
    let log = |size: u64| exact(size.max(1)).ln();
    (log(size) - log(least)) / (log(most) - log(least))
}

/// Labels that do not overlap: the lower one of two is moved down, and all are moved up from the sizes below the axis.
fn apart(mut labels: Vec<((f64, f64), String)>, bottom: f64) -> Vec<((f64, f64), String)> {
    labels.sort_by(|(one, _), (other, _)| one.1.total_cmp(&other.1));
    let end = |((x, _), label): &((f64, f64), String)| x + text_width(label, false) + LABEL_GAP;
    let columns: Vec<_> = labels.iter().map(|label| (label.0.0, end(label))).collect();
    let meet = |one: usize, other: usize| columns[one].0 < columns[other].1 && columns[other].0 < columns[one].1;
    for lower in 0..labels.len() {
        let above = (0..lower).filter(|above| meet(*above, lower)).map(|above| labels[above].0.1 + LINE_HEIGHT);
        labels[lower].0.1 = above.fold(labels[lower].0.1, f64::max);
    }
    for upper in (0..labels.len()).rev() {
        let below = (upper + 1..labels.len()).filter(|below| meet(upper, *below)).map(|below| labels[below].0.1 - LINE_HEIGHT);
        labels[upper].0.1 = below.fold(labels[upper].0.1.min(bottom), f64::min);
    }
    labels
}

/// The tooltip of a dot.
fn tooltip(line: &Line) -> String {
    let [median, least, most, p99] = [line.median, line.range[0], line.range[1], line.p99].map(figure);
    format!("{}: {median} {} (least {least}, p99 {p99}, most {most}, n {})", line.what, line.unit, line.count)
}

#[allow(clippy::cast_precision_loss, reason = "a number of plots")]
fn float(number: usize) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss, reason = "a number of services")]
fn exact(size: u64) -> f64 {
    size as f64
}

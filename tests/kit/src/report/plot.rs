//! The plots of one sheet, side by side in one drawing: a curve for each system over the number of services, with the least and the
//! most around the median; where nothing is swept, a row for each system.

use super::goal::bound;
use super::number::{figure, mark as written};
use super::scale::Scale;
use super::svg::{Anchor, Colour, Drawing, GRID, INK, MUTED};
use crate::sheet::{Line, Sheet};

/// The size of one plot.
const PANEL: (f64, f64) = (440.0, 250.0);
/// Where its axes are: from the left, the right, the top and the bottom.
const MARGIN: (f64, f64, f64, f64) = (58.0, 52.0, 44.0, 40.0);
/// Height of the legend.
const LEGEND: f64 = 34.0;
/// How high the row of a system is where nothing is swept.
const ROW: f64 = 40.0;

/// Colours by prefix of the system's name. A system has the same colour in all plots.
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
    curves: Vec<Curve<'a>>,
}

/// The results of one system.
struct Curve<'a> {
    system: &'a str,
    colour: Colour,
    /// By size, if the figure depends on the size.
    lines: Vec<(Option<u64>, &'a Line)>,
}

/// All plots of a sheet, if it has any.
pub(crate) fn svg(sheet: &Sheet) -> Option<String> {
    let panels = panels(sheet);
    let columns = panels.len().min(2);
    let height = panels.iter().map(Panel::height).reduce(f64::max)?;
    let mut drawing = Drawing::default();
    legend(&panels, &mut drawing);
    for (number, panel) in panels.iter().enumerate() {
        panel.draw((PANEL.0 * float(number % columns), LEGEND + height * float(number / columns)), &mut drawing);
    }
    Some(drawing.finish((PANEL.0 * float(columns), LEGEND + height * float(panels.len().div_ceil(columns))), &sheet.question))
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
            panels.push(Panel { title: &point.plot, unit: &line.unit, curves: Vec::new() });
            panels.len() - 1
        });
        if let Some(panel) = panels.get_mut(found) {
            panel.add(&point.system, point.size, line);
        }
    }
    panels
}

/// Which colour is which system.
fn legend(panels: &[Panel<'_>], drawing: &mut Drawing) {
    let (mut x, mut systems) = (16.0, Vec::new());
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if systems.contains(&curve.system) {
            continue;
        }
        systems.push(curve.system);
        drawing.line(&[(x, 20.0), (x + 16.0, 20.0)], curve.colour, 3.0, false);
        drawing.text((x + 22.0, 24.0), Anchor::Start, INK, false, curve.system);
        x += 44.0 + 6.6 * float(curve.system.chars().count());
    }
}

impl<'a> Panel<'a> {
    fn add(&mut self, system: &'a str, size: Option<u64>, line: &'a Line) {
        match self.curves.iter_mut().find(|curve| curve.system == system) {
            Some(curve) => curve.lines.push((size, line)),
            None => self.curves.push(Curve { system, colour: colour(system), lines: vec![(size, line)] }),
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

    fn height(&self) -> f64 {
        if self.sizes().len() > 1 { PANEL.1 } else { MARGIN.2 + MARGIN.3 + ROW * float(self.curves.len()) }
    }

    fn draw(&self, corner: (f64, f64), drawing: &mut Drawing) {
        let title = if self.unit.is_empty() { self.title.to_owned() } else { format!("{} ({})", self.title, self.unit) };
        drawing.text((corner.0 + 16.0, corner.1 + 24.0), Anchor::Start, INK, true, &title);
        let frame = Frame {
            left_edge: corner.0 + MARGIN.0,
            right_edge: corner.0 + PANEL.0 - MARGIN.1,
            top: corner.1 + MARGIN.2,
            bottom: corner.1 + self.height() - MARGIN.3,
        };
        let values: Vec<_> = self.lines().flat_map(|(_, line)| line.range.into_iter().chain(bound(line))).collect();
        match self.sizes()[..] {
            [least, .., most] => self.sweep(&frame, Scale::of(&values), (least, most), drawing),
            _ => self.rows(&frame, &values, drawing),
        }
    }

    /// A curve for each system.
    fn sweep(&self, frame: &Frame, scale: Scale, ends: (u64, u64), drawing: &mut Drawing) {
        for mark in scale.marks() {
            let y = frame.y(scale.place(mark));
            drawing.line(&[(frame.left_edge, y), (frame.right_edge, y)], GRID, 1.0, false);
            drawing.text((frame.left_edge - 8.0, y + 4.0), Anchor::End, MUTED, false, &written(mark));
        }
        for size in self.sizes() {
            drawing.text((frame.x(across(size, ends)), frame.bottom + 18.0), Anchor::Middle, MUTED, false, &written(exact(size)));
        }
        drawing.text((frame.right_edge, frame.bottom + 33.0), Anchor::End, MUTED, false, "services");
        let mut labels = Vec::new();
        for curve in &self.curves {
            let points = curve.points(ends);
            let at = |value: fn(&Line) -> f64| {
                points.iter().map(move |(size, line)| (frame.x(across(*size, ends)), frame.y(scale.place(value(line))))).collect::<Vec<_>>()
            };
            let (least, median, most) = (at(|line| line.range[0]), at(|line| line.median), at(|line| line.range[1]));
            drawing.area(&least.into_iter().chain(most.into_iter().rev()).collect::<Vec<_>>(), curve.colour);
            drawing.line(&median, curve.colour, 2.0, curve.is_limit());
            for ((_, line), point) in points.iter().zip(&median).filter(|_| !curve.is_limit()) {
                drawing.dot(*point, curve.colour, &tooltip(line));
                if let Some(goal) = bound(line) {
                    let y = frame.y(scale.place(goal));
                    drawing.line(
                        &[((point.0 - 14.0).max(frame.left_edge), y), ((point.0 + 14.0).min(frame.right_edge), y)],
                        MUTED,
                        2.0,
                        true,
                    );
                }
            }
            labels.extend(median.last().zip(points.last()).map(|(at, (_, line))| (*at, figure(line.median))));
        }
        for ((x, y), label) in apart(labels) {
            drawing.text((x + 8.0, y + 4.0), Anchor::Start, INK, false, &label);
        }
    }

    /// A row for each system.
    fn rows(&self, frame: &Frame, values: &[f64], drawing: &mut Drawing) {
        let frame = Frame { left_edge: frame.left_edge - 42.0, ..*frame };
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
                drawing.line(&[(least, y), (most, y)], curve.colour, 2.0, false);
                drawing.dot((frame.x(scale.place(line.median)), y), curve.colour, &tooltip(line));
                drawing.text((frame.right_edge + 8.0, y + 4.0), Anchor::Start, INK, false, &figure(line.median));
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

/// Labels that do not lie on one another: of those at the same place, the lower ones are moved down.
fn apart(mut labels: Vec<((f64, f64), String)>) -> Vec<((f64, f64), String)> {
    labels.sort_by(|(one, _), (other, _)| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let mut above = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    for (at, _) in &mut labels {
        if (at.0 - above.0).abs() < 1.0 {
            at.1 = at.1.max(above.1 + 13.0);
        }
        above = *at;
    }
    labels
}

fn colour(system: &str) -> Colour {
    COLOURS.into_iter().find(|(begin, _)| system.starts_with(begin)).map_or(INK, |(_, colour)| colour)
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

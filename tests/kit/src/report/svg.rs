//! SVG elements of a drawing. Each has its colour for a light background as an attribute, and a class with another colour for a dark one.

use std::fmt::Write;

/// A colour on a light and on a dark ground.
pub(crate) type Colour = (&'static str, &'static str, &'static str);

/// The ground itself.
const GROUND: Colour = ("ground", "#fcfcfb", "#1a1a19");
/// Words.
pub(crate) const INK: Colour = ("ink", "#0b0b0b", "#ffffff");
/// Words of less weight.
pub(crate) const MUTED: Colour = ("muted", "#6b6a67", "#a5a39c");
/// Lines that only help the eye.
pub(crate) const GRID: Colour = ("grid", "#e6e5e0", "#33332f");

/// Between two lines of text.
pub(crate) const LINE_HEIGHT: f64 = 14.0;
/// Size of the font.
const FONT_SIZE: f64 = 12.0;

/// Where a text ends or begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    /// It begins here.
    Start,
    /// It is around here.
    Middle,
    /// It ends here.
    End,
}

/// A drawing as it grows.
#[derive(Debug, Default)]
pub(crate) struct Drawing {
    body: String,
    colours: Vec<Colour>,
}

impl Drawing {
    /// Words.
    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, colour: Colour, bold: bool, text: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if bold { r#" font-weight="600""# } else { "" };
        let fill = self.fill(colour);
        let text = escaped(text);
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{weight} {fill}>{text}</text>"#);
    }

    /// A figure beside a point, legible on lines.
    pub(crate) fn label(&mut self, (x, y): (f64, f64), text: &str) {
        let (fill, text) = (self.fill(INK).replace("-fill\"", "-fill ground-line\""), escaped(text));
        let halo = format!(r#"stroke="{}" stroke-width="4" paint-order="stroke""#, GROUND.1);
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="start" {halo} {fill}>{text}</text>"#);
    }

    /// A line through points.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], colour: Colour, width: f64, dashed: bool) {
        let pattern = if dashed { r#" stroke-dasharray="5 4""# } else { "" };
        let (points, stroke) = (listed(points), self.stroke(colour));
        let _ = writeln!(
            self.body,
            r#"<polyline points="{points}" fill="none" stroke-width="{width}" stroke-linejoin="round" stroke-linecap="round"{pattern} {stroke}/>"#
        );
    }

    /// A surface that shines through.
    pub(crate) fn area(&mut self, points: &[(f64, f64)], colour: Colour) {
        let (points, fill) = (listed(points), self.fill(colour));
        let _ = writeln!(self.body, r#"<polygon points="{points}" fill-opacity="0.14" {fill}/>"#);
    }

    /// A dot with a tooltip.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), colour: Colour, says: &str) {
        let (fill, says) = (self.fill(colour), escaped(says));
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" {fill}><title>{says}</title></circle>"#);
    }

    /// The whole, as a document.
    pub(crate) fn finish(self, (width, height): (f64, f64), title: &str) -> String {
        let mut dark = String::new();
        for (name, _, dark_one) in [GROUND].into_iter().chain(self.colours) {
            let _ = write!(dark, ".{name}-fill{{fill:{dark_one}}}.{name}-line{{stroke:{dark_one}}}");
        }
        let (title, ground, body) = (escaped(title), GROUND.1, self.body);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="{FONT_SIZE}">
<title>{title}</title>
<style>@media (prefers-color-scheme: dark){{{dark}}}</style>
<rect width="100%" height="100%" rx="8" class="ground-fill" fill="{ground}"/>
{body}</svg>
"#
        )
    }

    fn fill(&mut self, colour: Colour) -> String {
        self.knows(colour);
        format!(r#"class="{}-fill" fill="{}""#, colour.0, colour.1)
    }

    fn stroke(&mut self, colour: Colour) -> String {
        self.knows(colour);
        format!(r#"class="{}-line" stroke="{}""#, colour.0, colour.1)
    }

    fn knows(&mut self, colour: Colour) {
        if !self.colours.contains(&colour) && colour != GROUND {
            self.colours.push(colour);
        }
    }
}

/// The width of a text in the widest fonts that a reader may have (`DejaVu Sans`, Verdana): an estimate from above.
#[must_use]
pub fn text_width(text: &str, bold: bool) -> f64 {
    let ems = |letter: char| match letter {
        'i' | 'j' | 'l' | 'I' | ' ' | '\u{a0}' | '.' | ',' | ':' | ';' | '\'' | '|' | '/' => 0.35,
        'f' | 'r' | 't' | '(' | ')' | '-' => 0.43,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 1.0,
        letter if letter.is_uppercase() => 0.79,
        _ => 0.65,
    };
    text.chars().map(ems).sum::<f64>() * FONT_SIZE * if bold { 1.12 } else { 1.0 }
}

/// A bold text in lines of at most this width.
pub(crate) fn wrapped(text: &str, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), true) <= room => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn listed(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

//! Terminal frame: redraws lines in place. Independent of their content.

use std::fmt::Write as _;
use std::io::{self, Write};

pub const BOLD: &str = "\x1b[1m";
pub const DIM: &str = "\x1b[2m";
pub const GREEN: &str = "\x1b[32m";
pub const YELLOW: &str = "\x1b[33m";
pub const RED: &str = "\x1b[31m";
pub const PLAIN: &str = "\x1b[0m";

/// A count of failures: green while there are none.
pub fn count(count: u64, text: &str) -> String {
    format!("{}{count} {text}{PLAIN}", if count == 0 { GREEN } else { RED })
}

#[derive(Debug, Default)]
pub struct Frame {
    drawn: usize,
}

impl Frame {
    pub fn draw(&mut self, out: &mut impl Write, lines: &[String]) -> io::Result<()> {
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in lines {
            let _ = writeln!(text, "\r{line}\x1b[K");
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_overwrites_the_previous_one_and_erases_its_rest() {
        let (mut out, mut frame) = (Vec::new(), Frame::default());
        frame.draw(&mut out, &["a".to_owned(), "b".to_owned()]).expect("drawn");
        frame.draw(&mut out, &["c".to_owned()]).expect("drawn");
        assert_eq!(String::from_utf8(out).expect("text"), "\ra\x1b[K\n\rb\x1b[K\n\x1b[J\x1b[2A\rc\x1b[K\n\x1b[J");
    }
}

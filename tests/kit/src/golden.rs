//! Golden files and generated parts of documents: a test compares the program's output with the repository.
//!
//! `UPDATE_GOLDEN=1` rewrites them, for the test that a failure names. Read the difference before you commit it.

use std::{env, fs};

/// Whether files are written and not compared.
pub fn is_updating() -> bool {
    env::var_os("UPDATE_GOLDEN").is_some()
}

/// A file of the repository, by its path from the root.
pub fn read(file: &str) -> String {
    let path = crate::root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails unless a file of the repository holds this text, and names the first line that differs.
pub fn assert_golden(file: &str, text: &str) {
    let path = crate::root().join(file);
    if is_updating() {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
        return fs::write(&path, text).expect("written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == text, "{file} is stale: {}; UPDATE_GOLDEN=1 writes it anew", difference(&expected, text));
}

/// Fails unless the part of a document between two markers is this text.
pub fn assert_part(file: &str, begin: &str, end: &str, part: &str) {
    assert_golden(file, &with_part(&read(file), begin, end, part));
}

/// A document with the part between two markers replaced.
pub fn with_part(document: &str, begin: &str, end: &str, part: &str) -> String {
    let (before, rest) = document.split_once(begin).unwrap_or_else(|| panic!("no marker {begin}"));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("no marker {end} after {begin}"));
    format!("{before}{begin}{part}{end}{after}")
}

/// The first line in which two texts differ.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    let number = expected.iter().zip(&actual).take_while(|(expected, actual)| expected == actual).count();
    let line = |lines: &[&str]| lines.get(number).map_or_else(|| "no line".to_owned(), |line| format!("{line:?}"));
    format!("line {} is {}, the program makes {}", number + 1, line(&expected), line(&actual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_different_line_is_named() {
        assert_eq!(difference("a\nb\n", "a\nc\n"), r#"line 2 is "b", the program makes "c""#);
        assert_eq!(difference("a\n", "a\nc\n"), r#"line 2 is no line, the program makes "c""#);
    }

    #[test]
    fn only_the_text_between_markers_is_replaced() {
        assert_eq!(with_part("x<b>old<e>y<e>", "<b>", "<e>", "new"), "x<b>new<e>y<e>");
    }
}

//! Source file reduced to its names: without comments, literals and tests.

use std::fs;
use std::path::{Path, PathBuf};

use kit::files;

/// Files of src: path under it, and text.
pub(crate) fn tree() -> Vec<(String, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let file = |path: PathBuf| {
        let name = path.strip_prefix(&src).expect("below src").display().to_string();
        (name, fs::read_to_string(&path).expect("text"))
    };
    files(&src, "rs").into_iter().map(file).collect()
}

/// A file without comments, literals and tests.
pub(crate) struct Source {
    /// Path of its module, from the crate's root.
    pub(crate) module: Vec<String>,
    /// Whether it has only tests.
    pub(crate) is_test: bool,
    /// Lines of its production part, including comments.
    pub(crate) lines: usize,
    /// Literals of its production part.
    pub(crate) texts: Vec<String>,
    /// Types that it defines.
    pub(crate) types: Vec<String>,
    /// Every path that it names, with `use` groups expanded.
    paths: Vec<Vec<String>>,
    /// Paths that it re-exports.
    reexports: Vec<Vec<String>>,
}

impl Source {
    /// Reads a file; `path` is relative to src.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let module: Vec<String> = path.trim_end_matches(".rs").split('/').filter(|name| *name != "mod").map(str::to_owned).collect();
        let production = without_tests(text);
        let (code, texts) = split(&production);
        let names = words(&code);
        let defines = |pair: &[String]| matches!(pair[0].as_str(), "struct" | "enum" | "trait").then(|| pair[1].clone());
        Self {
            is_test: module.iter().any(|name| name == "tests"),
            lines: production.lines().count(),
            types: names.windows(2).filter_map(defines).collect(),
            paths: paths(&code),
            reexports: reexports(&code),
            texts,
            module,
        }
    }

    /// Paths of our modules, from the crate's root.
    pub(crate) fn ours(&self) -> Vec<Vec<String>> {
        self.paths.iter().filter_map(|path| self.absolute(path)).collect()
    }

    /// Paths that begin with no keyword, as if they began with a submodule.
    pub(crate) fn below(&self) -> Vec<Vec<String>> {
        let relative = self.paths.iter().filter(|path| path.len() > 1 && self.absolute(path).is_none());
        relative.map(|path| self.module.iter().chain(path).cloned().collect()).collect()
    }

    /// Names that it re-exports, each with its path from the crate's root.
    pub(crate) fn reexports(&self) -> impl Iterator<Item = (String, Vec<String>)> {
        // A path without a keyword begins with a submodule.
        let own = |path: &Vec<String>| self.absolute(path).unwrap_or_else(|| self.module.iter().chain(path).cloned().collect());
        self.reexports.iter().filter_map(move |path| Some((path.last()?.clone(), own(path))))
    }

    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        if first == "crate" || first == "tailyard" {
            return Some(path[1..].to_vec());
        }
        if first == "self" {
            return Some(self.module.iter().chain(&path[1..]).cloned().collect());
        }
        let ups = path.iter().take_while(|name| *name == "super").count();
        let base = self.module.len().checked_sub(ups).filter(|_| ups > 0)?;
        Some(self.module[..base].iter().chain(&path[ups..]).cloned().collect())
    }

    /// Whether a path begins with `wanted`. A crate's name alone does not match: functions and modules may have the same name.
    pub(crate) fn names(&self, wanted: &str) -> bool {
        let wanted: Vec<&str> = wanted.split("::").collect();
        let least = if wanted.len() == 1 && wanted[0].starts_with(char::is_lowercase) { 2 } else { wanted.len() };
        self.paths.iter().any(|path| path.len() >= least && wanted.iter().zip(path).all(|(wanted, name)| wanted == name))
    }
}

/// Identifiers of a text, including tests and repetitions.
pub(crate) fn identifiers(text: &str) -> Vec<String> {
    words(&split(text).0)
}

fn words(code: &str) -> Vec<String> {
    code.split(|c: char| !is_name(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The text without inline test modules.
pub(crate) fn without_tests(text: &str) -> String {
    let mut code_lines = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let opens = |next: &&str| next.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ").starts_with("mod ");
        if line.trim() == "#[cfg(test)]" && lines.peek().is_some_and(|next| opens(next) && next.trim_end().ends_with('{')) {
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = format!("{indent}}}");
            for inner in lines.by_ref() {
                if inner == end {
                    break;
                }
            }
            continue;
        }
        code_lines.push_str(line);
        code_lines.push('\n');
    }
    code_lines
}

/// The text with comments and literals blanked out, and the literals.
fn split(text: &str) -> (String, Vec<String>) {
    let (mut out, mut texts) = (String::new(), Vec::new());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest).filter(|_| !out.ends_with(is_name)) {
            length
        } else if first == '"' {
            quoted(rest)
        } else if first == '\'' {
            character(rest)
        } else {
            0
        };
        if skip == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.push(' ');
            texts.extend(rest[..skip].contains('"').then(|| rest[..skip].to_owned()).filter(|text| !text.starts_with('/')));
            rest = &rest[skip..];
        }
    }
    (out, texts)
}

/// Length of a raw string at the start of the text.
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - body.len();
    Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

fn quoted(rest: &str) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

/// Length of a character literal; zero for a lifetime.
fn character(rest: &str) -> usize {
    let mut inner = rest.char_indices().skip(1);
    match inner.next() {
        Some((_, '\\')) => rest[2..].find('\'').map_or(0, |at| if rest[2..].starts_with('\'') { 4 } else { at + 3 }),
        Some(_) => inner.next().filter(|(_, end)| *end == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Every path in the code, except in visibilities. A group in braces after `::` is expanded to one path for each member; `use name;` is
/// `name::self`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let in_path = at > 0 && matches!(tokens[at - 1].as_str(), "::" | ".");
        let is_visibility = at > 1 && tokens[at - 2] == "pub" && tokens[at - 1] == "(";
        if !in_path && !is_visibility && tokens[at].starts_with(is_name) {
            let used = at > 0 && tokens[at - 1] == "use";
            at = path(&tokens, at, &[], &mut found);
            if let Some(single) = found.last_mut().filter(|path| used && path.len() == 1) {
                single.push("self".to_owned());
            }
        } else {
            at += 1;
        }
    }
    found
}

/// Every path after `pub use`, whatever its visibility.
fn reexports(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at] == "pub") {
        let restricted = tokens.get(at + 1).is_some_and(|token| token == "(");
        let end = if restricted { tokens[at..].iter().position(|token| token == ")").map(|end| at + end + 1) } else { Some(at + 1) };
        if let Some(first) = end.filter(|end| tokens.get(*end).is_some_and(|token| token == "use")) {
            path(&tokens, first + 1, &[], &mut found);
        }
    }
    found
}

/// Reads one path, or one member of a group, from `at` on; returns its end.
fn path(tokens: &[String], mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") if path.len() > before.len() || !before.is_empty() => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at = if tokens[at].starts_with(is_name) || tokens[at] == "{" { self::path(tokens, at, &path, found) } else { at + 1 };
                }
                return at + 1;
            }
            Some(name) if name.starts_with(is_name) => path.push(name.to_owned()),
            _ => break,
        }
        at += 1;
        if tokens.get(at).is_none_or(|token| token != "::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// Names, `::` and single characters.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_name(first) {
            rest.find(|c| !is_name(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    tokens
}

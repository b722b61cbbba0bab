//! Request paths: the normal form for routing, and the path to forward.
//!
//! Routes are selected by the normal form ([`normal`]). The forwarded path ([`resolved`]) is the received one with `.` and `..` resolved:
//! the backend resolves it to the path that was matched. Paths that servers resolve differently are rejected, so that no encoding reaches
//! another route.

use std::borrow::Cow;

/// Path to forward: as received, with `.` and `..` resolved. `None` if servers resolve it differently: a `.` or `..` next to a parameter
/// (`..;`), a backslash or an escaped slash.
pub fn resolved(path: &str) -> Option<Cow<'_, str>> {
    if is_plain(path) {
        return Some(Cow::Borrowed(path));
    }
    let (mut parts, mut dots): (Vec<&str>, bool) = (Vec::new(), !path.starts_with('/'));
    for raw in path.split('/') {
        let part = unescaped(raw);
        match &*part {
            "." | ".." => {
                dots = true;
                if part.len() > 1 {
                    parts.pop();
                }
            }
            "" => {}
            part if is_ambiguous(part) => return None,
            _ => parts.push(raw),
        }
    }
    Some(if dots { Cow::Owned(joined(&parts, is_open(path))) } else { Cow::Borrowed(path) })
}

/// Normal form for comparisons: `.` and `..` resolved, duplicate slashes merged, unnecessary escapes decoded. Begins with a slash; a
/// trailing slash remains. An escaped slash is not a separator and remains escaped.
pub fn normal(path: &str) -> Cow<'_, str> {
    if is_plain(path) && !path.contains("//") {
        return Cow::Borrowed(path);
    }
    let mut parts: Vec<Cow<'_, str>> = Vec::new();
    for part in path.split('/').map(unescaped) {
        match &*part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    Cow::Owned(joined(&parts, is_open(path)))
}

/// Remainder of a [`resolved`] path after this number of segments, with its leading slash.
pub fn after(path: &str, segments: usize) -> &str {
    (0..segments).fold(path, |path, _| {
        let path = path.trim_start_matches('/');
        &path[path.find('/').unwrap_or(path.len())..]
    })
}

/// Number of segments of a path in normal form.
pub fn segments(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

/// Whether a path equals `above` or is below it, by whole segments. `above` has no trailing slash, unless it is `/`.
pub fn is_below(path: &str, above: &str) -> bool {
    above == "/" || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether the path needs no resolving, decoding or rejection.
fn is_plain(path: &str) -> bool {
    path.starts_with('/') && !path.contains("/.") && !path.bytes().any(|byte| matches!(byte, b'%' | b'\\' | b';'))
}

fn is_open(path: &str) -> bool {
    path.rsplit('/').next().is_none_or(|last| matches!(&*unescaped(last), "" | "." | ".."))
}

fn joined<S: std::borrow::Borrow<str>>(parts: &[S], open: bool) -> String {
    let mut path = String::from("/");
    path.push_str(&parts.join("/"));
    if open && !parts.is_empty() {
        path.push('/');
    }
    path
}

/// Whether a segment contains a `.` or `..` for servers that strip parameters or accept other separators.
fn is_ambiguous(part: &str) -> bool {
    let bare = |part: &str| part.split([';', '\0']).next().map(str::trim_end).is_some_and(|bare| matches!(bare, "." | ".."));
    part.replace("%2F", "/").replace("%2f", "/").split(['/', '\\']).any(bare)
}

/// Decodes escapes, except those of slashes and of invalid UTF-8.
fn unescaped(part: &str) -> Cow<'_, str> {
    if !part.contains('%') {
        return Cow::Borrowed(part);
    }
    String::from_utf8(percent_decoded(part, Some(b'/'))).map_or(Cow::Borrowed(part), Cow::Owned)
}

/// Decodes escapes, except malformed ones and those of this byte.
pub fn percent_decoded(text: &str, except: Option<u8>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped =
            (*first == b'%').then(|| after.first_chunk::<2>()).flatten().and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?));
        match escaped {
            Some(byte) if except != Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equivalent_paths_have_one_normal_form() {
        let same = [
            ("/", "/"),
            ("", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("//a///b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/public/../admin", "/admin"),
            ("/public/%2e%2E/admin", "/admin"),
            ("/../../x", "/x"),
            ("/a/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/%61pi", "/api"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%", "/a%"),
            ("/%ff", "/%ff"),
            ("/%61pi/%2e%2e/x/%ff", "/x/%ff"),
            ("/%C3%A9", "/é"),
        ];
        for (path, form) in same {
            assert_eq!(normal(path), form, "{path}");
        }
    }

    #[test]
    fn dot_segments_are_resolved_before_forwarding() {
        let sent = [
            ("/a//b%2Fc;x=1/", "/a//b%2Fc;x=1/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/../secret", "/secret"),
            ("/y/../public/x", "/public/x"),
            ("/%70ublic/%2e/x", "/%70ublic/x"),
            ("/a/%2e%2E/b%20c/..", "/"),
            ("/a/b/..", "/a/"),
            ("x", "/x"),
        ];
        for (path, expected) in sent {
            assert_eq!(resolved(path).as_deref(), Some(expected), "{path}");
        }
        for path in ["/x/..;/admin", "/x/.;a/b", "/a\\..\\b", "/\\..", "/a%5c..", "/a%2f..%2Fb", "/x/..%3b/a", "/x/..%00/a", "/x/..%20/a"] {
            assert_eq!(resolved(path), None, "{path}");
        }
    }

    #[test]
    fn matched_prefix_is_removed_in_any_spelling() {
        for (path, count, rest) in
            [("/public/x", 1, "/x"), ("//public//x", 1, "//x"), ("/%70ublic", 1, ""), ("/a/b/c", 2, "/c"), ("/a", 0, "/a")]
        {
            assert_eq!(after(path, count), rest, "{path}");
        }
        assert_eq!([segments("/"), segments("/a"), segments("/a/b/")], [0, 1, 2]);
    }

    #[test]
    fn prefix_match_compares_segments() {
        assert!(is_below("/api", "/api") && is_below("/api/", "/api") && is_below("/api/v1", "/api") && is_below("/x", "/"));
        assert!(!is_below("/apis", "/api") && !is_below("/ap", "/api"));
    }

    proptest! {
        #[test]
        fn forwarded_path_has_no_dot_segment_and_its_normal_form(path in "(/|\\.|%2e|%2f|a|%|é|;|\\\\){0,20}") {
            let form = normal(&path).into_owned();
            prop_assert!(form.starts_with('/'));
            prop_assert!(!form.split('/').any(|part| part == ".." || part == "."), "{form}");
            if let Some(sent) = resolved(&path) {
                prop_assert_eq!(normal(&sent), form);
                prop_assert!(!sent.split(['/', '\\']).any(|part| matches!(part.split(';').next(), Some("." | ".."))), "{sent}");
            }
        }
    }
}

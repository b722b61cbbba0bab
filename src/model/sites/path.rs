//! Paths of requests, for finding a route: one form for all ways to write the same path.
//!
//! Only the choice of a route goes by this form; what is sent on is what came. Without it `/public/../admin` would be the
//! route of `/public`, and answered by the backend as `/admin`.

/// The path with `.` and `..` resolved, doubled slashes joined and what needs no escape unescaped. Begins with a slash; a final
/// slash stays. An escaped slash is no separator and stays escaped.
#[must_use]
pub fn normal(path: &str) -> String {
    let path = unescaped(path);
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let open = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    let mut normal = format!("/{}", parts.join("/"));
    if open && normal.len() > 1 {
        normal.push('/');
    }
    normal
}

/// Whether a path is this one or below it, by whole segments. `above` has no final slash, unless it is all there is.
#[must_use]
pub fn is_below(path: &str, above: &str) -> bool {
    above == "/" || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// With escapes resolved, but for those of a slash and of what is no text.
fn unescaped(path: &str) -> String {
    if !path.contains('%') {
        return path.to_owned();
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped =
            (*first == b'%').then(|| after.first_chunk::<2>()).flatten().and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?));
        match escaped {
            Some(byte) if byte != b'/' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_path_has_one_form() {
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
            ("/%C3%A9", "/é"),
        ];
        for (path, form) in same {
            assert_eq!(normal(path), form, "{path}");
        }
    }

    #[test]
    fn below_goes_by_segments() {
        assert!(is_below("/api", "/api") && is_below("/api/", "/api") && is_below("/api/v1", "/api") && is_below("/x", "/"));
        assert!(!is_below("/apis", "/api") && !is_below("/ap", "/api"));
    }

    proptest! {
        #[test]
        fn a_form_has_no_way_up_and_is_reached_in_one_step(path in "(/|\\.|%2e|%2f|a|%|é){0,20}") {
            let form = normal(&path);
            prop_assert!(form.starts_with('/'));
            prop_assert!(!form.split('/').any(|part| part == ".." || part == "."), "{form}");
        }
    }
}

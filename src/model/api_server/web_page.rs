//! Requests that a web page of another site sends, with the identity of the browser's user.
//!
//! The address of a connection is the identity, so a browser needs no token to send requests to the API server. Browsers show the response
//! to no page of another site, but send requests that create objects, and open `WebSockets`.

use http::header::ORIGIN;
use http::uri::Authority;
use http::{HeaderMap, HeaderName};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a page of another site sends a request to this host. Browsers name the page's origin in every request other than GET and HEAD,
/// and for `WebSockets`. Pages of the machine itself are permitted, such as those of `kubectl proxy`.
pub fn is_of_another_site(headers: &HeaderMap, host: &str) -> bool {
    let mut sites = headers.get_all(FETCH_SITE).iter().map(|site| site.as_bytes());
    match (sites.next(), sites.next()) {
        (Some(b"same-origin" | b"none"), None) => false,
        (None, None) => headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(|origin| is_permitted(origin, host))),
        _ => true,
    }
}

fn is_permitted(origin: &str, host: &str) -> bool {
    let Some(authority) = origin.split_once("://").and_then(|(_, authority)| authority.parse::<Authority>().ok()) else { return false };
    let is_local = matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
    is_local || authority.as_str().eq_ignore_ascii_case(host)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HOST;

    use super::*;

    #[test]
    fn requests_of_pages_of_other_sites_are_recognized() {
        let cases: [(&[(&str, &'static str)], bool); 14] = [
            (&[], false),
            (&[("origin", "https://kube.tail.ts.net")], false),
            (&[("origin", "HTTPS://KUBE.tail.ts.net")], false),
            (&[("origin", "https://evil.example")], true),
            (&[("origin", "https://kube.tail.ts.net.evil.example")], true),
            (&[("origin", "https://kube.tail.ts.net@evil.example")], true),
            (&[("origin", "https://kube.tail.ts.net"), ("origin", "https://evil.example")], true),
            (&[("origin", "null")], true),
            (&[("origin", "")], true),
            (&[("origin", "http://localhost:8001")], false),
            (&[("origin", "http://localhost.evil.example")], true),
            (&[("origin", "http://127.0.0.1:8001"), ("sec-fetch-site", "same-origin")], false),
            (&[("sec-fetch-site", "cross-site")], true),
            (&[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], true),
        ];
        for (sent, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("kube.tail.ts.net"));
            for (name, value) in sent {
                headers.append(HeaderName::from_bytes(name.as_bytes()).expect("a name"), HeaderValue::from_static(value));
            }
            assert_eq!(is_of_another_site(&headers, "kube.tail.ts.net"), expected, "{sent:?}");
        }
    }
}

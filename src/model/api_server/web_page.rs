//! Requests that a web page of another site sends, with the identity of the browser's user.
//!
//! The address of a connection is the identity, so a browser needs no token to send requests to the API server. Browsers show the response
//! to no page of another site, but send requests that create objects, and open `WebSockets`.

use http::header::{ORIGIN, UPGRADE};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a page of another site sends a request to this host. Browsers name the page's origin in every request other than GET and HEAD,
/// and for `WebSockets`, for which some send no `Sec-Fetch-Site`. Pages of the machine itself, such as those of `kubectl proxy`, must be of
/// the same origin as the request, and open no connection that is upgraded: they may be of any Pod, by `kubectl port-forward`.
pub fn is_of_another_site(headers: &HeaderMap, host: &str) -> bool {
    let mut sites = headers.get_all(FETCH_SITE).iter().map(HeaderValue::as_bytes);
    let is_same = match (sites.next(), sites.next()) {
        (Some(b"same-origin" | b"none"), None) => true,
        (None, None) => false,
        _ => return true,
    };
    let permits_local = is_same && !headers.contains_key(UPGRADE);
    headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(|origin| is_permitted(origin, host, permits_local)))
}

/// Whether a browser sent the request.
pub fn is_of_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(FETCH_SITE) || headers.contains_key(ORIGIN)
}

fn is_permitted(origin: &str, host: &str, permits_local: bool) -> bool {
    let Some(authority) = origin.split_once("://").and_then(|(_, authority)| authority.parse::<Authority>().ok()) else { return false };
    let is_local = permits_local && matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
    is_local || authority.as_str().eq_ignore_ascii_case(host)
}

#[cfg(test)]
mod tests {
    use http::header::HOST;

    use super::*;

    #[test]
    fn requests_of_pages_of_other_sites_are_recognized() {
        let cases: [(&[(&str, &'static str)], bool); 17] = [
            (&[], false),
            (&[("origin", "https://kube.tail.ts.net")], false),
            (&[("origin", "HTTPS://KUBE.tail.ts.net")], false),
            (&[("origin", "https://evil.example")], true),
            (&[("origin", "https://kube.tail.ts.net.evil.example")], true),
            (&[("origin", "https://kube.tail.ts.net@evil.example")], true),
            (&[("origin", "https://kube.tail.ts.net"), ("origin", "https://evil.example")], true),
            (&[("origin", "null")], true),
            (&[("origin", "")], true),
            (&[("origin", "http://localhost:8001")], true),
            (&[("origin", "http://127.0.0.1:8001"), ("sec-fetch-site", "same-origin"), ("upgrade", "websocket")], true),
            (&[("origin", "https://kube.tail.ts.net"), ("upgrade", "websocket")], false),
            (&[("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")], true),
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

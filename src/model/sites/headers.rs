//! The headers of a request as they are sent on, and of an answer as they come back.
//!
//! What concerns one connection alone ends here (RFC 9110, 7.6.1). What a client says of itself where a proxy should say it is
//! never believed: it is taken away, whoever it is from.

use std::net::IpAddr;

use http::header::{CONNECTION, COOKIE, FORWARDED, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Version};

use super::identity::{Identity, encoded};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const LOGIN: HeaderName = HeaderName::from_static("tailscale-user-login");
const NAME: HeaderName = HeaderName::from_static("tailscale-user-name");
const PICTURE: HeaderName = HeaderName::from_static("tailscale-user-profile-pic");
const INFO: HeaderName = HeaderName::from_static("tailscale-headers-info");
const CAPS: HeaderName = HeaderName::from_static("tailscale-app-capabilities");

/// What is known of a request besides its headers.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// Who it is from.
    pub client: Option<IpAddr>,
    /// The name that it is for, as the client wrote it.
    pub host: &'a str,
    /// It came over TLS.
    pub over_tls: bool,
    /// Who that is, if the tailnet knows.
    pub identity: Option<&'a Identity>,
    /// The application capabilities that the backend wants to be told.
    pub app_caps: &'a [String],
}

/// What a client wants to change the connection into, such as `websocket`; nothing for a plain request.
#[must_use]
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let listed = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| listed).cloned()
}

/// Takes away what concerns one connection alone; `te: trailers`, by which gRPC is told, stays.
pub fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok()).collect();
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let known = [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];
    for name in named.into_iter().filter(|name| *name != TRAILER).chain(known).chain([HTTP2_SETTINGS]) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Makes of a request's headers those that the backend gets.
pub fn forward(headers: &mut HeaderMap, about: About<'_>) {
    end_to_end(headers);
    let claimed: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claimed {
        headers.remove(name);
    }
    let client = about.client.map(|client| client.to_string());
    put(headers, FORWARDED_FOR, client.as_deref());
    put(headers, FORWARDED_HOST, Some(about.host));
    put(headers, FORWARDED_PROTO, Some(if about.over_tls { "https" } else { "http" }));
    let Some(identity) = about.identity else { return };
    if let Some(user) = &identity.user {
        put(headers, LOGIN, Some(&encoded(&user.login)));
        put(headers, NAME, Some(&encoded(&user.name)));
        put(headers, PICTURE, Some(user.picture.as_str()).filter(|picture| !picture.is_empty()).map(encoded).as_deref());
        put(headers, INFO, Some("https://tailscale.com/s/serve-headers"));
    }
    put(headers, CAPS, identity.caps(about.app_caps).map(|caps| encoded(&caps)).as_deref());
}

/// Cookies, which HTTP/2 may split, as the one line that HTTP/1.1 allows (RFC 9113, 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap, from: Version) {
    if from == Version::HTTP_2 && headers.get_all(COOKIE).iter().nth(1).is_some() {
        let parts: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(value) = HeaderValue::from_bytes(&parts.join(&b"; "[..])) {
            headers.insert(COOKIE, value);
        }
    }
}

/// What only this proxy may say. Some servers take `_` for `-`, so both count.
fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    name.starts_with("tailscale-") || name.starts_with("x-forwarded-") || name == FORWARDED.as_str() || name == REAL_IP.as_str()
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::super::identity::User;
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn about(identity: Option<&Identity>) -> About<'_> {
        About { client: "100.64.0.9".parse().ok(), host: "web.tail.ts.net", over_tls: true, identity, app_caps: &[] }
    }

    #[test]
    fn what_a_client_claims_is_not_believed() {
        let mut sent = headers(&[
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-prefix", "/admin"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
            ("tailscale-user-login", "root@example.com"),
            ("tailscale_user_login", "root@example.com"),
            ("x_forwarded_for", "1.2.3.4"),
            ("accept", "*/*"),
        ]);
        forward(&mut sent, about(None));
        let expected = headers(&[
            ("accept", "*/*"),
            ("x-forwarded-for", "100.64.0.9"),
            ("x-forwarded-host", "web.tail.ts.net"),
            ("x-forwarded-proto", "https"),
        ]);
        assert_eq!(sent, expected);
    }

    #[test]
    fn backends_are_told_who_asks() {
        let user = User { login: "alice@example.com".into(), name: "Älice".into(), picture: String::new() };
        let identity = Identity { user: Some(user), caps: [("a".to_owned(), vec![1.into()])].into() };
        let mut sent = HeaderMap::new();
        forward(&mut sent, About { app_caps: &["a".to_owned()], ..about(Some(&identity)) });
        let value = |name: &str| sent.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(value("tailscale-user-login"), Some("alice@example.com"));
        assert_eq!(value("tailscale-user-name"), Some("=?utf-8?q?=C3=84lice?="));
        assert_eq!(value("tailscale-user-profile-pic"), None);
        assert_eq!(value("tailscale-app-capabilities"), Some(r#"{"a":[1]}"#));
    }

    #[test]
    fn what_concerns_one_connection_ends_here() {
        let mut sent = headers(&[
            ("connection", "keep-alive, X-Mine, upgrade"),
            ("x-mine", "1"),
            ("upgrade", "websocket"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic x"),
            ("authorization", "Bearer x"),
        ]);
        assert_eq!(upgrade(&sent).as_ref().map(HeaderValue::as_bytes), Some(&b"websocket"[..]));
        end_to_end(&mut sent);
        assert_eq!(sent, headers(&[("authorization", "Bearer x"), ("te", "trailers")]));
        assert_eq!(upgrade(&headers(&[("upgrade", "h2c")])), None);
    }

    #[test]
    fn split_cookies_become_one_line() {
        let mut sent = HeaderMap::new();
        sent.append(COOKIE, HeaderValue::from_static("a=1"));
        sent.append(COOKIE, HeaderValue::from_static("b=2"));
        join_cookies(&mut sent, Version::HTTP_2);
        assert_eq!(sent.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }
}

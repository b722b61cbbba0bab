//! Header rewriting of forwarded requests and responses.
//!
//! Hop-by-hop headers are removed (RFC 9110, 7.6.1), and only configured protocols are upgraded to. Client-supplied values of headers that
//! a proxy sets are never trusted: they are removed from headers and trailers, for every client.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Version};

use super::identity::{ClientIdentity, encoded};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const LOGIN: HeaderName = HeaderName::from_static("tailscale-user-login");
const NAME: HeaderName = HeaderName::from_static("tailscale-user-name");
const PICTURE: HeaderName = HeaderName::from_static("tailscale-user-profile-pic");
const INFO: HeaderName = HeaderName::from_static("tailscale-headers-info");
const CAPS: HeaderName = HeaderName::from_static("tailscale-app-capabilities");

/// Last words of header names from which servers read a client's address.
const ADDRESS_ENDINGS: [&str; 7] = ["for", "ip", "ipaddr", "ipaddress", "ips", "ipv4", "ipv6"];
/// Words for an address or a host, after a word for a client or for an address.
const ADDRESS_WORDS: [&str; 5] = ["addr", "address", "addresses", "addrs", "host"];
/// Words for a client, which name its address or host before [`ADDRESS_WORDS`], or its address as one word with one of these or `ip`.
const CLIENT_WORDS: [&str; 18] = [
    "caller",
    "client",
    "cluster",
    "connecting",
    "connection",
    "external",
    "origin",
    "originating",
    "peer",
    "proxy",
    "real",
    "remote",
    "socket",
    "source",
    "src",
    "true",
    "user",
    "viewer",
];
/// Words before which a word for a certificate is one of the client's, also as one word.
const TLS_WORDS: [&str; 5] = ["client", "mtls", "peer", "ssl", "tls"];
/// Prefix of the headers from which `WebSphere` and Liberty read the client's address and user, and the requested host and scheme.
const WEBSPHERE_PREFIX: &str = "$ws";
/// Other headers from which servers read the requested host, scheme or path.
const REQUEST_CLAIMS: [&str; 20] = [
    "cf-visitor",
    "front-end-https",
    "wl-proxy-ssl",
    "x-arr-ssl",
    "x-envoy-original-host",
    "x-envoy-original-path",
    "x-host",
    "x-http-host-override",
    "x-original-host",
    "x-original-method",
    "x-original-path",
    "x-original-port",
    "x-original-proto",
    "x-original-scheme",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];

/// Protocols to which a connection may be upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrades(Vec<HeaderValue>);

/// Facts about a request besides its headers.
#[derive(Debug, Clone, Copy)]
pub struct RequestInfo<'a> {
    pub client: Option<IpAddr>,
    /// Requested host name, as written by the client.
    pub host: &'a str,
    pub over_tls: bool,
    /// Client identity, if the tailnet has one.
    pub identity: Option<&'a ClientIdentity>,
    /// Application capabilities that the backend requests.
    pub app_caps: &'a [String],
}

impl Default for Upgrades {
    fn default() -> Self {
        Self(vec![HeaderValue::from_static("websocket")])
    }
}

impl Upgrades {
    /// Parses a comma-separated list of protocols; `None` if one is not a protocol name, or is HTTP or TLS: these would carry requests past
    /// routing and header checks.
    pub fn read(text: &str) -> Option<Self> {
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(&byte));
        let hides_requests = |name: &str| matches!(name.split('/').next(), Some("h2c" | "h2" | "http" | "tls"));
        let name = |name: &str| {
            let name = name.trim().to_ascii_lowercase();
            if is_name(&name) && !hides_requests(&name) { name.parse().ok() } else { None }
        };
        text.split(',').map(name).collect::<Option<_>>().map(Self)
    }

    /// Protocol to upgrade to: the first one of the client's list that is allowed; `None` for a plain request.
    pub fn wanted(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let first = || tokens(headers, &UPGRADE).find_map(|token| self.0.iter().find(|expected| is_same(expected, token)));
        let listed = || tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
        if headers.contains_key(UPGRADE) && listed() { first().cloned() } else { None }
    }
}

/// Whether a response upgrades the connection to this protocol and no other.
pub fn upgrades_to(protocol: &HeaderValue, headers: &HeaderMap) -> bool {
    let mut named = tokens(headers, &UPGRADE);
    named.next().is_some_and(|token| is_same(protocol, token)) && named.next().is_none()
}

fn is_same(expected: &HeaderValue, token: &str) -> bool {
    expected.as_bytes().eq_ignore_ascii_case(token.as_bytes())
}

/// Removes hop-by-hop headers; `te: trailers`, which gRPC requires, remains.
pub fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok()).collect();
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let expected = [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];
    for name in named.into_iter().filter(|name| *name != TRAILER).chain(expected).chain([HTTP2_SETTINGS]) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Joins repeated equal lengths of a response to one (RFC 9110, 8.6): clients reject several. Different ones say nothing and are removed.
pub fn single_length(headers: &mut HeaderMap) {
    let length = {
        let mut lengths = tokens(headers, &CONTENT_LENGTH);
        let (Some(first), Some(second)) = (lengths.next(), lengths.next()) else { return };
        if second == first && lengths.all(|other| other == first) { HeaderValue::from_str(first).ok() } else { None }
    };
    headers.remove(CONTENT_LENGTH);
    headers.extend(length.map(|length| (CONTENT_LENGTH, length)));
}

/// Removes forbidden fields from a request's trailers: those that a client's header may not have either, and those that must not be
/// trailers (RFC 9110, 6.5.1).
pub fn trailers(headers: &mut HeaderMap) {
    end_to_end(headers);
    for name in [AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, TE, TRAILER] {
        headers.remove(name);
    }
    without_claims(headers);
}

/// Converts a request's end-to-end headers into those for the backend.
pub fn forward(headers: &mut HeaderMap, about: RequestInfo<'_>) {
    without_claims(headers);
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

/// Joins cookie headers, which HTTP/2 may split, into the single line that HTTP/1.1 requires (RFC 9113, 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap, from: Version) {
    if from == Version::HTTP_2 && headers.get_all(COOKIE).iter().nth(1).is_some() {
        let parts: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(value) = HeaderValue::from_bytes(&parts.join(&b"; "[..])) {
            headers.insert(COOKIE, value);
        }
    }
}

/// Whether only this proxy may send the header: identity, a client's address or certificate, or the requested host, scheme or path. Addresses
/// are recognized by the words of the name, because CDNs and proxies have many names for them. Some servers treat other characters like
/// `-`, so all characters that are neither letters nor digits separate words.
fn is_claim(name: &str) -> bool {
    let mut words = name.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let is_identity = words.clone().next() == Some("tailscale") && words.clone().nth(1).is_some();
    let is_forwarded = words.clone().any(|word| word.contains("forwarded"));
    let is_request = REQUEST_CLAIMS.into_iter().any(|claim| words.clone().eq(claim.split('-')));
    let is_certificate = words.clone().zip(words.clone().skip(1)).any(|pair| pair == ("ssl", "client"))
        || words.clone().any(|word| TLS_WORDS.into_iter().filter_map(|peer| word.strip_prefix(peer)).any(is_of_certificate))
        || words.clone().skip_while(|word| !TLS_WORDS.contains(word)).skip(1).any(is_of_certificate);
    let is_client = |word: &str| CLIENT_WORDS.contains(&word);
    let is_joined = |word: &str| {
        let endings = ADDRESS_WORDS.into_iter().filter(|word| *word != "host").chain(ADDRESS_ENDINGS);
        endings.filter_map(|ending| word.strip_suffix(ending)).any(is_client)
    };
    let is_address = words.next_back().is_some_and(|last| {
        let is_of_client = |word: &str| is_client(word) || ADDRESS_ENDINGS.contains(&word) || is_joined(word);
        let is_clients = ADDRESS_WORDS.contains(&last) && words.next_back().is_some_and(is_of_client);
        ADDRESS_ENDINGS.contains(&last) || is_joined(last) || is_clients
    });
    name.starts_with(WEBSPHERE_PREFIX) || is_identity || is_forwarded || is_request || is_certificate || is_address
}

/// Whether a word is one for a certificate, its subject or its verification.
fn is_of_certificate(word: &str) -> bool {
    word == "dn" || word.starts_with("cert") || word.starts_with("verif")
}

fn without_claims(headers: &mut HeaderMap) {
    let claimed: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name.as_str())).cloned().collect();
    for name in claimed {
        headers.remove(name);
    }
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

    fn about(identity: Option<&ClientIdentity>) -> RequestInfo<'_> {
        RequestInfo { client: "100.64.0.9".parse().ok(), host: "web.tail.ts.net", over_tls: true, identity, app_caps: &[] }
    }

    #[test]
    fn client_supplied_identity_headers_are_removed() {
        let mut sent = headers(&[
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-prefix", "/admin"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
            ("tailscale-user-login", "root@example.com"),
            ("tailscale_user_login", "root@example.com"),
            ("x_forwarded_for", "1.2.3.4"),
            ("tailscale.user.login", "root@example.com"),
            ("tailscale-user.login", "root@example.com"),
            ("x~real^ip", "1.2.3.4"),
            ("x-forwarded", "for=1.2.3.4"),
            ("forwarded-for", "1.2.3.4"),
            ("x-client-ip", "1.2.3.4"),
            ("true-client-ip", "1.2.3.4"),
            ("x-original-url", "/admin"),
            ("cf-connecting-ip", "1.2.3.4"),
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
    fn identity_headers_are_set_from_the_client() {
        let user = User { login: "alice@example.com".into(), name: "Älice".into(), picture: String::new() };
        let identity = ClientIdentity { user: Some(user), caps: [("a".to_owned(), vec![1.into()])].into() };
        let mut sent = HeaderMap::new();
        forward(&mut sent, RequestInfo { app_caps: &["a".to_owned()], ..about(Some(&identity)) });
        let value = |name: &str| sent.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(value("tailscale-user-login"), Some("alice@example.com"));
        assert_eq!(value("tailscale-user-name"), Some("=?utf-8?q?=C3=84lice?="));
        assert_eq!(value("tailscale-user-profile-pic"), None);
        assert_eq!(value("tailscale-app-capabilities"), Some(r#"{"a":[1]}"#));
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut sent = headers(&[
            ("connection", "keep-alive, X-Mine, upgrade"),
            ("x-mine", "1"),
            ("upgrade", "websocket"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic x"),
            ("authorization", "Bearer x"),
        ]);
        end_to_end(&mut sent);
        assert_eq!(sent, headers(&[("authorization", "Bearer x"), ("te", "trailers")]));
    }

    #[test]
    fn repeated_equal_lengths_become_one() {
        let joined = |values: &[&'static str]| {
            let mut sent = HeaderMap::new();
            for value in values {
                sent.append(CONTENT_LENGTH, HeaderValue::from_static(value));
            }
            single_length(&mut sent);
            sent.get_all(CONTENT_LENGTH).iter().map(|value| value.to_str().expect("text").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(joined(&["5", "5", "5"]), ["5"]);
        assert_eq!(joined(&["5, 5"]), ["5"]);
        assert_eq!(joined(&["5"]), ["5"]);
        assert!(joined(&["5", "6"]).is_empty() && joined(&["5, 6"]).is_empty() && joined(&[]).is_empty());
    }

    #[test]
    fn only_configured_protocols_are_upgraded_to() {
        let upgrade = |upgrades: &Upgrades, protocols: &'static str| {
            upgrades.wanted(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", protocols)]))
        };
        let (default, more) = (Upgrades::default(), Upgrades::read("WebSocket, spdy/3.1").expect("protocols"));
        assert_eq!(upgrade(&default, "h2c, WebSocket"), Some(HeaderValue::from_static("websocket")));
        assert_eq!(upgrade(&more, "SPDY/3.1"), Some(HeaderValue::from_static("spdy/3.1")));
        for protocols in ["h2c", "HTTP/2.0", "TLS/1.0", "spdy/3.1", "", "websocket/13"] {
            assert_eq!(upgrade(&default, protocols), None, "{protocols}");
        }
        assert_eq!(default.wanted(&headers(&[("upgrade", "websocket")])), None, "the connection does not say so");
        for text in ["", "h2c", "H2C", "websocket,HTTP/2.0", "tls/1.3", "a b", "websocket,"] {
            assert_eq!(Upgrades::read(text), None, "{text}");
        }
        let to = |protocol: &'static str| upgrades_to(&HeaderValue::from_static("websocket"), &headers(&[("upgrade", protocol)]));
        assert!(to("WebSocket") && !to("h2c") && !to("websocket, h2c") && !to(""));
        assert!(!upgrades_to(&HeaderValue::from_static("websocket"), &HeaderMap::new()));
    }

    /// Names by which servers, CDNs and libraries read a client's address.
    const ADDRESSES: [&str; 53] = [
        "ali-cdn-real-ip",
        "cf-connecting-ip",
        "cf-connecting-ipv6",
        "cf-pseudo-ipv4",
        "client-ip",
        "cloudfront-viewer-address",
        "do-connecting-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "forwarded",
        "forwarded-for",
        "forwarded-for-ip",
        "forwarded-proto",
        "http-client-ip",
        "http-x-forwarded-for",
        "proxy-client-ip",
        "real-ip",
        "remote-addr",
        "true-client-ip",
        "wl-proxy-client-ip",
        "x-appengine-remote-addr",
        "x-appengine-user-ip",
        "x-azure-clientip",
        "x-azure-socketip",
        "x-client-addrs",
        "x-client-ip",
        "x-client-ip-addr",
        "x-ip-address",
        "x-client-ipaddress",
        "x-cluster-client-ip",
        "x-envoy-external-address",
        "x-forwarded",
        "x-forwarded-by",
        "x-forwardedfor",
        "x-nf-client-connection-ip",
        "x-original-for",
        "x-original-forwarded-for",
        "x-originating-ip",
        "x-proxyuser-ip",
        "x-real-ip",
        "x-real-ip-address",
        "x-realip",
        "x-realip-address",
        "x-remote-addr",
        "x-remote-address",
        "x-remote-host",
        "x-remote-ip",
        "x-remoteaddr",
        "x-source-ip",
        "x-sourceip",
        "x-true-ip",
        "x-user-ips",
        "x-vercel-forwarded-for",
    ];

    #[test]
    fn claims_are_recognized_with_any_separator() {
        let claims = ["tailscale-user-login", "tailscale-app-capabilities", "x-forwarded-proto"];
        for claim in ADDRESSES.into_iter().chain(REQUEST_CLAIMS).chain(claims) {
            for between in "!#$%&'*+-.^_`|~".chars() {
                let name: HeaderName = claim.replace('-', &between.to_string()).parse().expect("a name");
                assert!(is_claim(name.as_str()), "{name}");
            }
            assert!(is_claim(&format!("-{}_", claim.replace('-', "--"))), "{claim}");
        }
    }

    #[test]
    fn certificates_of_clients_and_headers_of_web_servers_are_claims() {
        let certificates =
            ["client-cert", "client-cert-chain", "ssl-client-s-dn", "ssl_client_verify", "x-arr-clientcert", "x-ssl-client-cert"];
        let of_servers = ["$wsra", "$wsru", "$wssc", "wl-proxy-client-cert"];
        for claim in certificates.into_iter().chain(of_servers) {
            assert!(is_claim(claim), "{claim}");
        }
    }

    #[test]
    fn certificates_of_clients_come_from_the_proxy_only() {
        let names = [
            "x-ssl-client-cert",
            "x-ssl-cert",
            "ssl-cert",
            "x-client-dn",
            "x-client-verify",
            "x-peer-certificate",
            "x-tls-cert",
            "x-tls-client-subject-dn",
            "ssl_certificate",
            "x-sslcert",
            "tls-verified",
        ];
        let mut sent = headers(&names.map(|name| (name, "x")));
        forward(&mut sent, RequestInfo { over_tls: true, ..about(None) });
        assert_eq!(names.iter().filter(|name| sent.contains_key(**name)).collect::<Vec<_>>(), [&""; 0]);
        for other in ["x-ssl", "x-tls-version", "x-cert-manager", "x-verify", "x-dn", "x-client-version", "peer-dnt", "cert-client"] {
            assert!(!is_claim(other), "{other}");
        }
    }

    #[test]
    fn other_headers_are_forwarded() {
        let others = [
            "tailscale",
            "forward",
            "x-client-ip-count",
            "host",
            "x-real",
            "x-client-id",
            "content-type",
            "via",
            "origin",
            "x-vip",
            "x-zip",
            "x-membership",
            "x-skip",
            "x-trip",
            "x-billing-address",
            "x-request-id",
            "x-original-filename",
            "x-scheme-version",
            "idempotency-key",
            "x-http-method-override",
            "if-none-match",
            "x-csrf-token",
            "remote-user",
            "wsra",
            "ssl-cipher",
            "x-shipping-host",
            "source",
            "client",
        ];
        for other in others {
            assert!(!is_claim(other), "{other}");
        }
    }

    #[test]
    fn forbidden_trailers_are_removed() {
        let mut sent = headers(&[
            ("tailscale-user-login", "root@example.com"),
            ("x-forwarded-for", "1.2.3.4"),
            ("host", "b"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("authorization", "Basic x"),
            ("x-checksum", "1"),
        ]);
        trailers(&mut sent);
        assert_eq!(sent, headers(&[("x-checksum", "1")]));
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

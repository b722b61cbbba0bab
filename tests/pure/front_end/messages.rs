//! Requests that two servers could interpret differently (RFC 9112), and malformed HTTP/2 requests (RFC 9113): each is either refused or
//! reaches the backend as one request, and no bytes of a body ever become another request.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tailyard::proxy::front_end::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use kit::front_end::backend::{Backend, header};
use kit::front_end::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame,
};
use kit::front_end::front::{DEADLINE, Front, Options, get2, got, plain, service, site};

pub(super) const NAME: &str = "web.tail.ts.net";
/// Bytes that must never become their own request.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: web.tail.ts.net\r\n\r\n";

async fn with(backend: &Backend, protocol: &str) -> Front {
    let moment = Duration::from_millis(300);
    let options = Options { limits: Limits { idle_timeout: moment, body_timeout: moment, ..Limits::default() }, ..Options::default() };
    let front = Front::with(json!({"svc:web": plain(NAME, &service(backend.address, protocol))}), options).await;
    front.answers(&[(backend.address, "a")]);
    front
}

/// All responses to these bytes on one connection, until it is closed.
async fn talk(front: &Front, bytes: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = front.forwarded("svc:web", 80).await.expect("connected").into_split();
    let mut answer = Vec::new();
    // The other side may close before it has read everything.
    let _ = timeout(DEADLINE, async { tokio::join!(write.write_all(bytes), read.read_to_end(&mut answer)) }).await.expect("closed in time");
    answer
}

fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
}

/// Request as the backend has received it.
pub(super) fn echo(answer: &[u8]) -> Value {
    let text = String::from_utf8_lossy(answer);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    serde_json::from_str(&body[body.find('{').unwrap_or_default()..=body.rfind('}').unwrap_or_default()])
        .unwrap_or_else(|_| panic!("{text}"))
}

/// Checks that these requests and no others reached the backend.
fn only(backend: &Backend, paths: &[&str]) {
    assert_eq!(*backend.state.paths.lock().expect("no panic"), paths);
}

#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let (host, many) = (format!("Host: {NAME}\r\n"), "x".repeat(70_000));
    let refused = [
        ("no host", "GET / HTTP/1.1\r\n\r\n".to_owned()),
        ("two hosts", format!("GET / HTTP/1.1\r\n{host}{host}\r\n")),
        ("another host beside it", format!("GET / HTTP/1.1\r\n{host}Host: other\r\n\r\n")),
        ("an empty host beside it", format!("GET / HTTP/1.1\r\n{host}Host:\r\n\r\n")),
        ("a name for a target", format!("GET {NAME} HTTP/1.1\r\n{host}\r\n")),
        ("* for a resource", format!("GET * HTTP/1.1\r\n{host}\r\n")),
        ("two lengths", format!("POST / HTTP/1.1\r\n{host}Content-Length: 0\r\nContent-Length: 50\r\n\r\n{HIDDEN}")),
        ("a length with a sign", format!("POST / HTTP/1.1\r\n{host}Content-Length: +5\r\n\r\n{HIDDEN}")),
        ("a length that is none", format!("POST / HTTP/1.1\r\n{host}Content-Length: 0x32\r\n\r\n{HIDDEN}")),
        (
            "an encoding that is not chunked at last",
            format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("an encoding like chunked", format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("an encoding of HTTP/1.0", format!("POST / HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a blank before the colon", format!("POST / HTTP/1.1\r\n{host}Content-Length : 50\r\n\r\n{HIDDEN}")),
        ("a folded header", format!("POST / HTTP/1.1\r\n{host}X: a\r\n Content-Length: 50\r\n\r\n{HIDDEN}")),
        ("a control character", format!("GET / HTTP/1.1\r\n{host}X: a\0b\r\n\r\n")),
        ("a dot segment with a parameter", format!("GET /x/..;/hidden HTTP/1.1\r\n{host}\r\n")),
        ("a dot segment with a backslash", format!("GET /x\\..\\hidden HTTP/1.1\r\n{host}\r\n")),
        ("a head without end", format!("GET / HTTP/1.1\r\n{host}X: {many}\r\n\r\n")),
    ];
    for (what, request) in refused {
        let backend = Backend::new("a").await;
        let answer = talk(&with(&backend, "http").await, request.as_bytes()).await;
        assert!(matches!(status(&answer), 400 | 414 | 431), "{what}: {}", String::from_utf8_lossy(&answer));
        only(&backend, &[]);
        assert!(!String::from_utf8_lossy(&answer).contains("hidden"), "{what}");
    }
}

/// Lengths and encodings that servers are known to interpret differently.
pub(super) fn disputed_lengths() -> Vec<(&'static str, String)> {
    let (host, size, hex) = (format!("Host: {NAME}"), HIDDEN.len(), format!("{:x}", HIDDEN.len()));
    let post = format!("POST /seen HTTP/1.1\r\n{host}\r\n");
    vec![
        ("lines that end with LF", format!("POST /seen HTTP/1.1\n{host}\nContent-Length: {size}\n\n{HIDDEN}")),
        ("CR in a value", format!("{post}X: a\rContent-Length: 0\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("an empty line before the request", format!("\r\n{post}Content-Length: {size}\r\n\r\n{HIDDEN}")),
        (
            "a blank before the first header",
            format!("POST /seen HTTP/1.1\r\n Content-Length: 0\r\n{host}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}"),
        ),
        ("chunked twice", format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("chunked in a list", format!("{post}Transfer-Encoding: chunked, chunked\r\n\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("chunked after another encoding", format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("chunked in capitals", format!("{post}TRANSFER-ENCODING: CHUNKED\r\n\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("chunked after a vertical tab", format!("{post}Transfer-Encoding:\x0bchunked\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("chunked in quotes", format!("{post}Transfer-Encoding: \"chunked\"\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("an empty encoding", format!("{post}Transfer-Encoding:\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("identity and a length", format!("{post}Transfer-Encoding: identity\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a list of equal lengths", format!("{post}Content-Length: {size}, {size}\r\n\r\n{HIDDEN}")),
        ("equal lengths", format!("{post}Content-Length: {size}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("an empty length", format!("{post}Content-Length:\r\n\r\n{HIDDEN}")),
        ("a length with zeros in front", format!("{post}Content-Length: 00{size}\r\n\r\n{HIDDEN}")),
        ("a length that overflows", format!("{post}Content-Length: 184467440737095516{size}\r\n\r\n{HIDDEN}")),
        ("a negative length", format!("{post}Content-Length: -{size}\r\n\r\n{HIDDEN}")),
    ]
}

/// The same for chunks, targets, versions, hosts and the fields that `Connection` names.
pub(super) fn disputed_parts() -> Vec<(&'static str, String)> {
    let (host, size, hex) = (format!("Host: {NAME}"), HIDDEN.len(), format!("{:x}", HIDDEN.len()));
    let post = format!("POST /seen HTTP/1.1\r\n{host}\r\n");
    let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n");
    vec![
        ("a chunk with an extension", format!("{chunked}{hex};a=\"b;\"\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("an extension with LF", format!("{chunked}2;\nxx\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("an extension with CR", format!("{chunked}2;\rxx\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("a size that ends with LF", format!("{chunked}{hex}\n{HIDDEN}\r\n0\r\n\r\n")),
        ("a chunk that ends with LF", format!("{chunked}{hex}\r\n{HIDDEN}\n0\r\n\r\n")),
        ("a chunk that does not end", format!("{chunked}2\r\nabc\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("a size with a prefix", format!("{chunked}0x{hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("a size with a blank in front", format!("{chunked} {hex}\r\n{HIDDEN}\r\n0\r\n\r\n")),
        ("a last chunk of many zeros", format!("{chunked}{hex}\r\n{HIDDEN}\r\n0000\r\n\r\n")),
        (
            "trailers that name a length",
            format!("{chunked}{hex}\r\n{HIDDEN}\r\n0\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\nHost: b\r\n\r\n"),
        ),
        ("another version", format!("POST /seen HTTP/1.2\r\n{host}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a version in small letters", format!("POST /seen http/1.1\r\n{host}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("two blanks", format!("POST  /seen HTTP/1.1\r\n{host}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a target with NUL", format!("POST /seen\0 HTTP/1.1\r\n{host}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a target with a tab", format!("POST /seen\tHTTP/1.1\r\n{host}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a host with a user", format!("POST /seen HTTP/1.1\r\nHost: other@{NAME}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a list of hosts", format!("POST /seen HTTP/1.1\r\n{host}, other\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("a length that waits for leave", format!("{post}Expect: 100-continue\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("another expectation", format!("{post}Expect: y 100-continue\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        ("connection names the length", format!("{post}Connection: content-length, host\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")),
        (
            "connection names the encoding",
            format!("{post}Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n{hex}\r\n{HIDDEN}\r\n0\r\n\r\n"),
        ),
    ]
}

#[tokio::test]
async fn request_parsed_differently_by_servers_is_refused_or_unambiguous() {
    for (what, request) in disputed_lengths().into_iter().chain(disputed_parts()) {
        for protocol in ["http", "h2c"] {
            let backend = Backend::new("a").await;
            let front = with(&backend, protocol).await;
            let answer = talk(&front, request.as_bytes()).await;
            let text = String::from_utf8_lossy(&answer);
            assert!(!text.contains("hidden"), "{what}, {protocol}: {text}");
            assert_eq!(front.front_end.stats.sample()["svc:web"].failures, [].into(), "{what}, {protocol}");
            let paths = backend.state.paths.lock().expect("no panic").clone();
            match text.find("HTTP/1.1 200") {
                Some(_) => {
                    let echo = echo(&answer);
                    let framing = [header(&echo, "content-length"), header(&echo, "transfer-encoding")];
                    assert!(framing.iter().flatten().count() <= 1, "{what}, {protocol}: {echo}");
                    assert_eq!(
                        (paths.as_slice(), header(&echo, "expect")),
                        (&["/seen".to_owned()][..], None),
                        "{what}, {protocol}: {echo}"
                    );
                }
                None => assert!(
                    matches!(status(&answer), 0 | 400 | 408 | 421 | 505) && paths.iter().all(|path| path == "/seen"),
                    "{what}, {protocol}: {text}"
                ),
            }
        }
    }
}

#[tokio::test]
async fn request_body_is_forwarded_and_never_parsed_as_a_request() {
    let chunked = format!("Host: {NAME}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len());
    let sized = format!("Host: {NAME}\r\nContent-Length: {}\r\n\r\n{HIDDEN}", HIDDEN.len());
    let both =
        format!("Host: {NAME}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len());
    for protocol in ["http", "h2c"] {
        for (method, rest) in
            [("GET", &chunked), ("GET", &sized), ("POST", &chunked), ("POST", &both), ("DELETE", &chunked), ("OPTIONS", &chunked)]
        {
            let backend = Backend::new("a").await;
            let answer = talk(&with(&backend, protocol).await, format!("{method} /seen HTTP/1.1\r\n{rest}").as_bytes()).await;
            assert_eq!(status(&answer), 200, "{protocol} {method}: {}", String::from_utf8_lossy(&answer));
            assert_eq!(echo(&answer)["length"], HIDDEN.len(), "{protocol} {method}");
            only(&backend, &["/seen"]);
        }
        let backend = Backend::new("a").await;
        let answer = talk(
            &with(&backend, protocol).await,
            format!("HEAD /seen HTTP/1.1\r\n{chunked}GET /next HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes(),
        )
        .await;
        assert_eq!(status(&answer), 200, "{protocol} HEAD");
        only(&backend, &["/seen", "/next"]);
    }
}

#[tokio::test]
async fn http2_get_body_is_forwarded_without_a_length() {
    for protocol in ["http", "h2c"] {
        let backend = Backend::new("a").await;
        let front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, protocol))})).await;
        let stream = front.tls("svc:web", NAME, "h2").await.expect("TLS");
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream))
                .await
                .expect("HTTP/2");
        tokio::spawn(connection);
        let parts = [Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(bytes::Bytes::from_static(b"query")))];
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(parts));
        let request = http::Request::get(format!("https://{NAME}/seen")).body(body).expect("a request");
        assert_eq!(got(client.send_request(request)).await.echoed()["length"], 5, "{protocol}");
    }
}

#[tokio::test]
async fn malformed_request_body_ejects_no_endpoint() {
    let host = format!("POST /seen HTTP/1.1\r\nHost: {NAME}\r\n");
    let malformed = [
        "Transfer-Encoding: chunked\r\n\r\n5\r\nabcdeXX",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nbad trailer\r\n\r\n",
        "Content-Length: 50\r\n\r\nabc",
    ];
    for protocol in ["http", "h2c"] {
        let backend = Backend::new("a").await;
        let front = with(&backend, protocol).await;
        for rest in malformed {
            let answer = talk(&front, format!("{host}{rest}").as_bytes()).await;
            let expected = if rest.starts_with("Content-Length") { 408 } else { 400 };
            assert_eq!(status(&answer), expected, "{protocol} {rest:?}: {}", String::from_utf8_lossy(&answer));
        }
        assert_eq!(front.front_end.stats.sample()["svc:web"].failures, [].into(), "{protocol}");
        assert_eq!(front.front_end.sample().endpoints.values().collect::<Vec<_>>(), [&(1, 0)], "{protocol}");
    }
}

#[tokio::test]
async fn options_asterisk_is_forwarded() {
    for protocol in ["http", "h2c"] {
        let backend = Backend::new("a").await;
        let answer = talk(&with(&backend, protocol).await, format!("OPTIONS * HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&answer), 200, "{protocol}: {}", String::from_utf8_lossy(&answer));
        only(&backend, &["*"]);
    }
}

#[tokio::test]
async fn absolute_target_overrides_the_host_header() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http").await;
    let answer = talk(&front, format!("GET http://{NAME}/seen?q HTTP/1.1\r\nHost: other\r\n\r\n").as_bytes()).await;
    let echo = echo(&answer);
    assert_eq!((&echo["uri"], header(&echo, "host")), (&json!("/seen?q"), Some(NAME)));
    assert_eq!(status(&talk(&front, format!("GET http://other/ HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).await), 421);
}

#[tokio::test]
async fn identity_trailers_are_removed() {
    for protocol in ["http", "h2c"] {
        let backend = Backend::new("a").await;
        let front = with(&backend, protocol).await;
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {NAME}\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\
             Trailer: tailscale-user-login, tailscale.user.login, x-forwarded-for, x-sum\r\n\r\n\
             1\r\na\r\n0\r\nTailscale-User-Login: root@example.com\r\nTailscale.User.Login: root@example.com\r\nX-Forwarded-For: 1.2.3.4\r\nX-Sum: 1\r\n\r\n"
        );
        assert_eq!(echo(&talk(&front, request.as_bytes()).await)["trailers"], json!(["x-sum"]), "{protocol}");
        let front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, protocol))})).await;
        let stream = front.tls("svc:web", NAME, "h2").await.expect("TLS");
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream))
                .await
                .expect("HTTP/2");
        tokio::spawn(connection);
        let trailers = ["tailscale-user-login", "tailscale_user_login", "x-real-ip", "host", "x-sum"]
            .map(|name| (http::HeaderName::from_static(name), http::HeaderValue::from_static("1")));
        let frame = hyper::body::Frame::trailers(trailers.into_iter().collect());
        let parts = [Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(bytes::Bytes::from_static(b"a"))), Ok(frame)];
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(parts));
        let request = http::Request::post(format!("https://{NAME}/")).header("trailer", "x-sum").body(body).expect("a request");
        assert_eq!(got(client.send_request(request)).await.echoed()["trailers"], json!(["x-sum"]), "{protocol}");
    }
}

/// Header fields as literals without a table (RFC 7541, 6.2.2).
pub(super) fn fields(list: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    list.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

pub(super) const WHOLE: u8 = END_STREAM | END_HEADERS;

const REQUEST: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":authority", NAME), (":path", "/seen")];

/// The request with this field changed or added.
fn with_field(name: &str, value: &str) -> Vec<u8> {
    let mut list = REQUEST.to_vec();
    match list.iter_mut().find(|field| field.0 == name) {
        Some(field) => field.1 = value,
        None => list.push((name, value)),
    }
    frame(HEADERS, WHOLE, 1, &fields(&list))
}

/// End of an HTTP/2 exchange: an error frame or the end of the connection, or a response, with the first byte of its fields: the status.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Refused,
    Answered(u8),
}

async fn talk2(front: &Front, frames: &[u8]) -> Ended {
    let (mut read, mut write) = front.forwarded("svc:web", 80).await.expect("connected").into_split();
    let bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])[..], frames].concat();
    // The other side may have closed the connection.
    let send = tokio::spawn(async move { write.write_all(&bytes).await.map(|()| write) });
    let ended = async {
        loop {
            let mut head = [0; 9];
            if read.read_exact(&mut head).await.is_err() {
                return Ended::Refused;
            }
            let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
            if read.read_exact(&mut payload).await.is_err() {
                return Ended::Refused;
            }
            match head[3] {
                RST_STREAM | GOAWAY => return Ended::Refused,
                HEADERS => return Ended::Answered(payload[0]),
                _ => {}
            }
        }
    };
    let ended = timeout(DEADLINE, ended).await.expect("ended in time");
    drop(send.await);
    ended
}

#[tokio::test]
async fn malformed_http2_is_not_forwarded() {
    let without = |name: &str| {
        let list: Vec<_> = REQUEST.into_iter().filter(|field| field.0 != name).collect();
        frame(HEADERS, WHOLE, 1, &fields(&list))
    };
    let late = [REQUEST[0], REQUEST[1], REQUEST[3], ("x", "1"), REQUEST[2]];
    let twice = [REQUEST[0], REQUEST[0], REQUEST[1], REQUEST[2], REQUEST[3]];
    let open = frame(HEADERS, END_STREAM, 1, &fields(&REQUEST));
    let cases = [
        ("5.1 DATA on an idle stream", frame(DATA, END_STREAM, 1, b"x")),
        ("5.1 WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
        ("5.1.1 a stream of even number", frame(HEADERS, WHOLE, 2, &fields(&REQUEST))),
        ("6.1 DATA on stream 0", frame(DATA, END_STREAM, 0, b"x")),
        ("6.1 more padding than there is", frame(DATA, 8 | END_STREAM, 1, &[9, 0])),
        ("6.2 HEADERS on stream 0", frame(HEADERS, WHOLE, 0, &fields(&REQUEST))),
        ("6.2 another frame within a head", [open.clone(), frame(PING, 0, 0, &[0; 8])].concat()),
        ("6.4 RST_STREAM on an idle stream", frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
        ("6.5 SETTINGS on a stream", frame(SETTINGS, 0, 1, &[])),
        ("6.5 SETTINGS of five bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("6.5.2 a window above the limit", frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0])),
        ("6.5.2 a frame size below the limit", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("6.6 PUSH_PROMISE of a client", frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])),
        ("6.7 PING of six bytes", frame(PING, 0, 0, &[0; 6])),
        ("6.9 WINDOW_UPDATE of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("6.9.1 a window that overflows", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("6.10 CONTINUATION of nothing", frame(CONTINUATION, END_HEADERS, 1, &fields(&REQUEST))),
        ("4.2 a frame that is too large", frame(HEADERS, WHOLE, 1, &vec![0; 20_000])),
        ("4.3 a head that cannot be decompressed", frame(HEADERS, WHOLE, 1, &[0xff; 8])),
        ("8.2.1 a name with capitals", with_field("X-Upper", "1")),
        ("8.2.1 a value with a line break", with_field("x", "1\r\nhost: other")),
        ("8.2.1 a name with a blank", with_field("x y", "1")),
        ("8.2.2 connection", with_field("connection", "keep-alive")),
        ("8.2.2 transfer-encoding", with_field("transfer-encoding", "chunked")),
        ("8.2.2 te but trailers", with_field("te", "gzip")),
        ("8.3 a pseudo field after others", frame(HEADERS, WHOLE, 1, &fields(&late))),
        ("8.3 a pseudo field that is none", with_field(":x", "1")),
        ("8.3 a status", with_field(":status", "200")),
        ("8.3.1 no method", without(":method")),
        ("8.3.1 no scheme", without(":scheme")),
        ("8.3.1 no path", without(":path")),
        ("8.3.1 an empty path", with_field(":path", "")),
        ("8.3.1 a path without a slash", with_field(":path", "seen")),
        ("8.3.1 two methods", frame(HEADERS, WHOLE, 1, &fields(&twice))),
        ("8.3.1 a host that differs", with_field("host", "other")),
        ("8.3.1 no name at all", without(":authority")),
        ("8.5 CONNECT", with_field(":method", "CONNECT")),
    ];
    for (what, frames) in cases {
        let backend = Backend::new("a").await;
        // 400 and 404 have a static index; 405 is a literal.
        let ended = talk2(&with(&backend, "http").await, &frames).await;
        assert!(matches!(ended, Ended::Refused | Ended::Answered(0x8c | 0x8d | 0x48 | 0x08)), "{what}: {ended:?}");
        only(&backend, &[]);
    }
    let backend = Backend::new("a").await;
    assert_eq!(talk2(&with(&backend, "http").await, &with_field("x", "1")).await, Ended::Answered(0x88));
    only(&backend, &["/seen"]);
}

/// Malformed frames beside a request that is being answered.
#[tokio::test]
async fn malformed_http2_ends_requests_in_progress() {
    let mut list = REQUEST.to_vec();
    list[3].1 = "/hold";
    let head = fields(&list);
    let request = |flags: u8, stream: u32| frame(HEADERS, flags, stream, &head);
    let begun = |rest: &[u8]| [&request(END_HEADERS, 1), rest].concat();
    let whole = |rest: &[u8]| [&request(WHOLE, 1), rest].concat();
    let field = |bytes: &[u8]| frame(HEADERS, WHOLE, 1, &[&head, bytes].concat());
    let cases = [
        ("4.2 DATA that is too large", begun(&frame(DATA, 0, 1, &vec![0; 20_000]))),
        ("5.1 DATA after the end of the stream", whole(&frame(DATA, END_STREAM, 1, b"x"))),
        ("5.1 HEADERS after the end of the stream", whole(&request(WHOLE, 1))),
        ("5.1 CONTINUATION after the end of the head", whole(&frame(CONTINUATION, END_HEADERS, 1, &head))),
        ("5.1.1 a stream of a lower number", [request(WHOLE, 5), request(WHOLE, 3)].concat()),
        ("5.1.2 more streams than there may be", (0..300).flat_map(|number| request(WHOLE, 2 * number + 1)).collect()),
        ("6.1 more padding than there is", begun(&frame(DATA, 8 | END_STREAM, 1, &[9, 0]))),
        ("6.3 PRIORITY on stream 0", whole(&frame(PRIORITY, 0, 0, &[0, 0, 0, 0, 1]))),
        ("6.3 PRIORITY of four bytes", whole(&frame(PRIORITY, 0, 1, &[0; 4]))),
        ("6.4 RST_STREAM on stream 0", whole(&frame(RST_STREAM, 0, 0, &[0, 0, 0, 8]))),
        ("6.4 RST_STREAM of three bytes", whole(&frame(RST_STREAM, 0, 1, &[0; 3]))),
        ("6.5 an acknowledgement with a payload", whole(&frame(SETTINGS, ACK, 0, &[0; 6]))),
        ("6.5.2 push that is neither on nor off", whole(&frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]))),
        ("6.5.2 a frame size above the limit", whole(&frame(SETTINGS, 0, 0, &[0, 5, 1, 0, 0, 0]))),
        ("6.7 PING on a stream", whole(&frame(PING, 0, 1, &[0; 8]))),
        ("6.8 GOAWAY on a stream", whole(&frame(GOAWAY, 0, 1, &[0; 8]))),
        ("6.9 WINDOW_UPDATE of nothing on a stream", whole(&frame(WINDOW_UPDATE, 0, 1, &[0; 4]))),
        ("6.9 WINDOW_UPDATE of three bytes", whole(&frame(WINDOW_UPDATE, 0, 1, &[0; 3]))),
        ("6.9.1 a window of a stream that overflows", whole(&frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]))),
        (
            "6.9.2 a window that overflows by the settings",
            whole(&[frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0, 0]), frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])].concat()),
        ),
        ("6.10 CONTINUATION on stream 0", [request(END_STREAM, 1), frame(CONTINUATION, END_HEADERS, 0, &head)].concat()),
        ("6.10 CONTINUATION of another stream", [request(END_STREAM, 1), frame(CONTINUATION, END_HEADERS, 3, &head)].concat()),
        ("8.1 a second head that does not end the stream", begun(&frame(HEADERS, END_HEADERS, 1, &fields(&[("x", "1")])))),
        ("RFC 7541, 2.3.3: an index of the table that is not there", field(&[0xff, 0x49])),
        ("RFC 7541, 4.2: a size of the table after a field", field(&[0x20])),
        ("RFC 7541, 5.2: padding of more than seven bits", field(&[0, 1, b'x', 0x82, 0xff, 0xff])),
        ("RFC 7541, 5.2: a text longer than the head", field(&[0, 1, b'x', 0x7e, b'x'])),
        ("RFC 7541, 6.1: index 0", field(&[0x80])),
        ("RFC 7541, 6.3: a size of the table above the limit", frame(HEADERS, WHOLE, 1, &[&[0x3f, 0xe1, 0xff, 0x03], &head[..]].concat())),
    ];
    for (what, frames) in cases {
        let backend = Backend::new("a").await;
        let front = with(&backend, "http").await;
        let ended = talk2(&front, &frames).await;
        assert_eq!(ended, Ended::Refused, "{what}");
        let paths = backend.state.paths.lock().expect("no panic").clone();
        assert!(paths.iter().all(|path| path == "/hold"), "{what}: {paths:?}");
        assert_eq!(front.front_end.stats.sample()["svc:web"].failures, [].into(), "{what}");
    }
}

/// RFC 9113, 8.1 calls such a request malformed. The HTTP/2 library drops the field, so it can change neither route nor request.
#[tokio::test]
async fn pseudo_field_in_http2_trailers_is_dropped() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http").await;
    let trailers = frame(HEADERS, WHOLE, 1, &fields(&[(":path", "/hidden")]));
    let frames = [frame(HEADERS, END_HEADERS, 1, &fields(&REQUEST)), trailers].concat();
    assert_eq!(talk2(&front, &frames).await, Ended::Answered(0x88));
    assert_eq!(*backend.state.paths.lock().expect("no panic"), [REQUEST[3].1]);
}

#[tokio::test]
async fn http2_body_must_match_its_content_length() {
    for (length, what) in [("2", "longer"), ("9", "shorter")] {
        let backend = Backend::new("a").await;
        let front = with(&backend, "http").await;
        let list = [&REQUEST[..], &[("content-length", length)]].concat();
        let frames = [frame(HEADERS, END_HEADERS, 1, &fields(&list)), frame(DATA, END_STREAM, 1, b"abcde")].concat();
        let ended = talk2(&front, &frames).await;
        assert!(matches!(ended, Ended::Refused | Ended::Answered(0x8c)), "{what}: {ended:?}");
        assert_eq!(front.front_end.stats.sample()["svc:web"].failures, [].into(), "{what}");
        assert_eq!(front.front_end.sample().endpoints.values().collect::<Vec<_>>(), [&(1, 0)], "{what}");
    }
}

#[tokio::test]
async fn http2_floods_close_the_connection() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http").await;
    let reset = |stream: u32| [frame(HEADERS, WHOLE, stream, &fields(&REQUEST)), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat();
    let resets: Vec<u8> = (0..5000).flat_map(|number| reset(2 * number + 1)).collect();
    assert_eq!(talk2(&front, &resets).await, Ended::Refused, "rapid reset");
    assert!(backend.state.requests.load(Ordering::SeqCst) < 1000);
    let head =
        [frame(HEADERS, END_STREAM, 1, &fields(&REQUEST)), frame(CONTINUATION, 0, 1, &fields(&[("x", "1")])).repeat(100_000)].concat();
    assert_eq!(talk2(&front, &head).await, Ended::Refused, "a head without end");
    let answer = got(Front::new(json!({"svc:web": site(NAME, &service(backend.address, "http"))}))
        .await
        .http2("svc:web", NAME)
        .await
        .send_request(get2(&format!("https://{NAME}/"))))
    .await;
    assert_eq!(answer.status, StatusCode::OK);
}

//! Requests that two servers could read in two ways (RFC 9112), and those of HTTP/2 that are malformed (RFC 9113): each is either refused
//! or reaches the backend as one request, and no bytes of a body ever become another one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tailyard::proxy::ingress::l7::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use kit::l7::backend::{Backend, header};
use kit::l7::front::{DEADLINE, Front, Options, get2, got, plain, service, site};

const NAME: &str = "web.tail.ts.net";
/// What must never be a request of its own.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: web.tail.ts.net\r\n\r\n";

async fn with(backend: &Backend, protocol: &str) -> Front {
    let moment = Duration::from_millis(300);
    let options = Options { limits: Limits { idle: moment, body: moment, ..Limits::default() }, ..Options::default() };
    let front = Front::with(json!({"svc:web": plain(NAME, &service(backend.address, protocol))}), options).await;
    front.answers(&[(backend.address, "a")]);
    front
}

/// Everything that is answered to these bytes on one connection, until it is closed.
async fn talk(front: &Front, bytes: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = front.forwarded("svc:web", 80).await.expect("connected").into_split();
    let mut answer = Vec::new();
    // The other side may have closed before it has read everything.
    let _ = timeout(DEADLINE, async { tokio::join!(write.write_all(bytes), read.read_to_end(&mut answer)) }).await.expect("closed in time");
    answer
}

fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
}

/// What the backend says that it was asked.
fn asked(answer: &[u8]) -> Value {
    let text = String::from_utf8_lossy(answer);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    serde_json::from_str(&body[body.find('{').unwrap_or_default()..=body.rfind('}').unwrap_or_default()])
        .unwrap_or_else(|_| panic!("{text}"))
}

/// Whether any request but these reached the backend.
fn only(backend: &Backend, paths: &[&str]) {
    assert_eq!(*backend.state.paths.lock().expect("no panic"), paths);
}

#[tokio::test]
async fn request_that_can_be_read_in_two_ways_is_refused() {
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

#[tokio::test]
async fn body_reaches_the_backend_whole_and_is_no_request() {
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
            assert_eq!(asked(&answer)["length"], HIDDEN.len(), "{protocol} {method}");
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
async fn body_of_a_get_over_http2_is_passed_on_without_a_length() {
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
        assert_eq!(got(client.send_request(request)).await.asked()["length"], 5, "{protocol}");
    }
}

#[tokio::test]
async fn malformed_body_is_the_clients_fault_and_ejects_nobody() {
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
        assert_eq!(front.l7.stats.sample()["svc:web"].failures, [].into(), "{protocol}");
        assert_eq!(front.l7.endpoints().values().collect::<Vec<_>>(), [&(1, 0)], "{protocol}");
    }
}

#[tokio::test]
async fn options_of_the_server_stays_that() {
    for protocol in ["http", "h2c"] {
        let backend = Backend::new("a").await;
        let answer = talk(&with(&backend, protocol).await, format!("OPTIONS * HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&answer), 200, "{protocol}: {}", String::from_utf8_lossy(&answer));
        only(&backend, &["*"]);
    }
}

#[tokio::test]
async fn absolute_target_names_the_host() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http").await;
    let answer = talk(&front, format!("GET http://{NAME}/seen?q HTTP/1.1\r\nHost: other\r\n\r\n").as_bytes()).await;
    let asked = asked(&answer);
    assert_eq!((&asked["uri"], header(&asked, "host")), (&json!("/seen?q"), Some(NAME)));
    assert_eq!(status(&talk(&front, format!("GET http://other/ HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).await), 421);
}

#[tokio::test]
async fn trailers_name_nobody() {
    for protocol in ["http", "h2c"] {
        let backend = Backend::new("a").await;
        let front = with(&backend, protocol).await;
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {NAME}\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\
             Trailer: tailscale-user-login, tailscale.user.login, x-forwarded-for, x-sum\r\n\r\n\
             1\r\na\r\n0\r\nTailscale-User-Login: root@example.com\r\nTailscale.User.Login: root@example.com\r\nX-Forwarded-For: 1.2.3.4\r\nX-Sum: 1\r\n\r\n"
        );
        assert_eq!(asked(&talk(&front, request.as_bytes()).await)["trailers"], json!(["x-sum"]), "{protocol}");
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
        assert_eq!(got(client.send_request(request)).await.asked()["trailers"], json!(["x-sum"]), "{protocol}");
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as literals without a table (RFC 7541, 6.2.2).
fn fields(list: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    list.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const WHOLE: u8 = END_STREAM | END_HEADERS;

const REQUEST: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":authority", NAME), (":path", "/seen")];

/// The request with this field changed, or added.
fn with_field(name: &str, value: &str) -> Vec<u8> {
    let mut list = REQUEST.to_vec();
    match list.iter_mut().find(|field| field.0 == name) {
        Some(field) => field.1 = value,
        None => list.push((name, value)),
    }
    frame(HEADERS, WHOLE, 1, &fields(&list))
}

/// What ended the talk of HTTP/2: an error frame, the end of the connection, or an answer, whose status is its first byte.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Refused,
    Answered(u8),
}

async fn talk2(front: &Front, frames: &[u8]) -> Ended {
    let (mut read, mut write) = front.forwarded("svc:web", 80).await.expect("connected").into_split();
    let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..], frames].concat();
    // The other side may have closed by now.
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
async fn malformed_http2_reaches_no_backend() {
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
        // 400 and 404, which have an index; 405 is a literal.
        let ended = talk2(&with(&backend, "http").await, &frames).await;
        assert!(matches!(ended, Ended::Refused | Ended::Answered(0x8c | 0x8d | 0x48 | 0x08)), "{what}: {ended:?}");
        only(&backend, &[]);
    }
    let backend = Backend::new("a").await;
    assert_eq!(talk2(&with(&backend, "http").await, &with_field("x", "1")).await, Ended::Answered(0x88));
    only(&backend, &["/seen"]);
}

#[tokio::test]
async fn body_of_http2_is_as_long_as_it_says() {
    for (length, what) in [("2", "longer"), ("9", "shorter")] {
        let backend = Backend::new("a").await;
        let front = with(&backend, "http").await;
        let list = [&REQUEST[..], &[("content-length", length)]].concat();
        let frames = [frame(HEADERS, END_HEADERS, 1, &fields(&list)), frame(DATA, END_STREAM, 1, b"abcde")].concat();
        let ended = talk2(&front, &frames).await;
        assert!(matches!(ended, Ended::Refused | Ended::Answered(0x8c)), "{what}: {ended:?}");
        assert_eq!(front.l7.stats.sample()["svc:web"].failures, [].into(), "{what}");
        assert_eq!(front.l7.endpoints().values().collect::<Vec<_>>(), [&(1, 0)], "{what}");
    }
}

#[tokio::test]
async fn floods_of_http2_end_the_connection() {
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

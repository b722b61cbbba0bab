//! Stalled sides: clients that stop sending or reading, silent backends, idle tunnels.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tailyard::model::front_end::vhosts::min_rate::MIN_RATE;
use tailyard::proxy::front_end::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use kit::front_end::backend::Backend;
use kit::front_end::frames::{DATA, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame};
use kit::front_end::front::{DEADLINE, Front, Options, get1, get2, got, plain, received_head, service, site};
use kit::wait::until_async;

use super::messages::{WHOLE, fields};

const NAME: &str = "web.tail.ts.net";
const MOMENT: Duration = Duration::from_millis(300);

type Parts = StreamBody<futures_util::stream::BoxStream<'static, Result<Frame<Bytes>, std::convert::Infallible>>>;

/// A body with parts that are sent one by one.
fn parts() -> (mpsc::Sender<Bytes>, Parts) {
    let (sender, mut parts) = mpsc::channel(1);
    let stream = futures_util::stream::poll_fn(move |cx| parts.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part)))));
    (sender, StreamBody::new(Box::pin(stream)))
}

/// Front with both listeners, and the backend as an endpoint that could be ejected.
async fn with(backend: &Backend, protocol: &str, limits: Limits) -> Front {
    let mut site = site(NAME, &service(backend.address, protocol));
    site["listeners"]["80"] = json!("http");
    let front = Front::with(json!({"svc:web": site}), Options { limits, ..Options::default() }).await;
    front.answers(&[(backend.address, "a")]);
    front
}

async fn http2(front: &Front) -> http2::SendRequest<Parts> {
    let stream = front.tls("svc:web", NAME, "h2").await.expect("TLS");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn begun(front: &Front, head: &str) -> TcpStream {
    let mut stream = front.forwarded("svc:web", 80).await.expect("connected");
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("closed in time");
    String::from_utf8_lossy(&rest).into_owned()
}

/// Checks that no failure is attributed to the endpoint.
fn unblamed(front: &Front) {
    assert_eq!(front.front_end.sample().endpoints.values().collect::<Vec<_>>(), [&(1, 0)]);
    assert_eq!(front.front_end.stats.sample()["svc:web"].failures, [].into());
}

#[tokio::test]
async fn stalled_request_body_gets_408_and_closes_the_backend_connection() {
    let backend = Backend::new("a").await;
    for protocol in ["http", "h2c"] {
        let front = with(&backend, protocol, Limits { body_timeout: MOMENT, ..Limits::default() }).await;
        let head = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 10\r\n\r\nx");
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(begun(&front, &head).await);
        }
        for mut client in clients {
            let answer = rest(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 408"), "{protocol}: {answer}");
        }
        let mut client = http2(&front).await;
        let (sender, body) = parts();
        let request = Request::post(format!("https://{NAME}/")).body(body).expect("a request");
        sender.send(Bytes::from_static(b"x")).await.expect("sent");
        let answer = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("an answer");
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT, "{protocol}");
        assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [("Client", 21)].into());
        unblamed(&front);
        if protocol == "http" {
            until_async("connections to the backend are closed", DEADLINE, async || backend.state.open() == 0).await;
        }
    }
}

#[tokio::test]
async fn slow_client_that_makes_progress_is_served() {
    let backend = Backend::new("a").await;
    let front = with(
        &backend,
        "http",
        Limits { body_timeout: Duration::from_secs(2), answer_timeout: Duration::from_secs(2), ..Limits::default() },
    )
    .await;
    let mut client = http2(&front).await;
    let (sender, body) = parts();
    let request = Request::post(format!("https://{NAME}/")).body(body).expect("a request");
    let answer = tokio::spawn(async move { client.send_request(request).await });
    for _ in 0..15 {
        sender.send(Bytes::from_static(&[b'x'; MIN_RATE as usize])).await.expect("sent");
        tokio::time::sleep(MOMENT / 2).await;
    }
    drop(sender);
    let answer = timeout(DEADLINE, answer).await.expect("in time").expect("no panic").expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [].into());
}

#[tokio::test]
async fn client_that_sends_a_trickle_is_answered_like_a_stalled_one() {
    let backend = Backend::new("a").await;
    for protocol in ["http", "h2c"] {
        let front = with(&backend, protocol, Limits { body_timeout: MOMENT, ..Limits::default() }).await;
        let head = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 1000000\r\n\r\n");
        let (mut read, mut write) = begun(&front, &head).await.into_split();
        let drip = tokio::spawn(async move {
            while write.write_all(b"x").await.is_ok() {
                tokio::time::sleep(MOMENT / 4).await;
            }
        });
        let mut answer = Vec::new();
        let _ = timeout(DEADLINE, read.read_to_end(&mut answer)).await.expect("closed in time");
        assert!(answer.starts_with(b"HTTP/1.1 408"), "{protocol}: {}", String::from_utf8_lossy(&answer));
        drip.abort();
        let mut client = http2(&front).await;
        let (sender, body) = parts();
        let drip = tokio::spawn(async move {
            while sender.send(Bytes::from_static(b"x")).await.is_ok() {
                tokio::time::sleep(MOMENT / 4).await;
            }
        });
        let request = Request::post(format!("https://{NAME}/")).body(body).expect("a request");
        let answer = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("an answer");
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT, "{protocol}");
        drip.abort();
        assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [("Client", 2)].into(), "{protocol}");
        unblamed(&front);
    }
}

#[tokio::test]
async fn quiet_bidirectional_stream_stays_open() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "h2c", Limits { body_timeout: MOMENT, ..Limits::default() }).await;
    let mut client = http2(&front).await;
    let (sender, body) = parts();
    let request = Request::post(format!("https://{NAME}/stream")).body(body).expect("a request");
    let mut answer = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("an answer");
    // Three times the limit for a body without a response.
    for _ in 0..12 {
        sender.send(Bytes::from_static(b"x")).await.expect("sent");
        assert!(timeout(DEADLINE, answer.body_mut().frame()).await.expect("in time").expect("a frame").is_ok());
        tokio::time::sleep(MOMENT / 4).await;
    }
    assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [].into());
}

#[tokio::test]
async fn client_that_reads_a_trickle_is_disconnected() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http", Limits { body_timeout: MOMENT, ..Limits::default() }).await;
    let head = fields(&[(":method", "GET"), (":scheme", "http"), (":authority", NAME), (":path", "/drops")]);
    // A flow control window of zero that grows by one byte at a time.
    let request = [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), frame(HEADERS, WHOLE, 1, &head)].concat();
    let (mut read, mut write) = front.forwarded("svc:web", 80).await.expect("connected").into_split();
    let drip = tokio::spawn(async move {
        let mut next = [PREFACE, &request].concat();
        while write.write_all(&next).await.is_ok() {
            tokio::time::sleep(MOMENT / 6).await;
            next = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
        }
    });
    let mut bytes = 0;
    let reset = async {
        loop {
            let mut head = [0; 9];
            read.read_exact(&mut head).await.expect("a frame");
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            read.read_exact(&mut vec![0; length]).await.expect("its payload");
            match head[3] {
                DATA => bytes += length,
                RST_STREAM => return,
                _ => {}
            }
        }
    };
    timeout(DEADLINE, reset).await.expect("reset in time");
    drip.abort();
    assert!(bytes > 0, "nothing was taken");
    assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [("Client", 1)].into());
    unblamed(&front);
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http", Limits { body_timeout: MOMENT, ..Limits::default() }).await;
    let _silent = begun(&front, &format!("GET /endless HTTP/1.1\r\nHost: {NAME}\r\n\r\n")).await;
    until_async("the backend is asked", DEADLINE, async || backend.state.open() == 1).await;
    until_async("its connection is closed", DEADLINE, async || backend.state.open() == 0).await;
    until_async("the client's is, too", DEADLINE, async || *front.front_end.stats.open().borrow() == 0).await;
    assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [("Client", 1)].into());
    unblamed(&front);
}

#[tokio::test]
async fn unread_http2_stream_is_reset_alone() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http", Limits { body_timeout: MOMENT, ..Limits::default() }).await;
    let mut client = front.http2("svc:web", NAME).await;
    let unread =
        timeout(DEADLINE, client.send_request(get2(&format!("https://{NAME}/endless")))).await.expect("in time").expect("an answer");
    let (sender, body) = parts();
    let mut other = http2(&front).await;
    let request = Request::post(format!("https://{NAME}/stream")).body(body).expect("a request");
    let mut stream = timeout(DEADLINE, other.send_request(request)).await.expect("in time").expect("an answer");
    until_async("it is reset", DEADLINE, async || front.front_end.stats.sample()["svc:web"].aborted.contains_key("Client")).await;
    let mut unread = unread.into_body();
    let broken = async { while let Some(Ok(_)) = unread.frame().await {} };
    timeout(DEADLINE, broken).await.expect("reset in time");
    assert_eq!(got(client.send_request(get2(&format!("https://{NAME}/")))).await.status, StatusCode::OK, "on the same connection");
    // The other connection's client had the same time for its body, but no response to read.
    let _ = (sender, stream.body_mut());
    unblamed(&front);
}

#[tokio::test]
async fn answered_request_closes_despite_an_open_body() {
    let backend = Backend::new("a").await;
    let front = with(&backend, "http", Limits::default()).await;
    let mut client = http2(&front).await;
    let (sender, body) = parts();
    let request = Request::post(format!("https://{NAME}/some/204")).body(body).expect("a request");
    sender.send(Bytes::from_static(b"x")).await.expect("sent");
    let answer = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("an answer");
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    // Long before the client times out.
    timeout(
        Limits::default().body_timeout / 2,
        until_async("the backend's connection is closed", DEADLINE, async || backend.state.open() == 0),
    )
    .await
    .expect("in time");
    unblamed(&front);
}

#[tokio::test]
async fn silent_backend_times_out() {
    let backend = Backend::new("a").await;
    for protocol in ["http", "h2c"] {
        let front = with(&backend, protocol, Limits { answer_timeout: MOMENT, ..Limits::default() }).await;
        let url = format!("https://{NAME}/hold");
        let answer = got(front.http1("svc:web", NAME).await.send_request(get1(&url))).await;
        assert_eq!((answer.status, answer.text().as_str()), (StatusCode::GATEWAY_TIMEOUT, "backend response timeout\n"));
        // A response that has begun and stalls.
        let mut client = http2(&front).await;
        let (sender, body) = parts();
        let request = Request::post(format!("https://{NAME}/stream")).body(body).expect("a request");
        let mut answer = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("an answer");
        sender.send(Bytes::from_static(b"x")).await.expect("sent");
        assert!(timeout(DEADLINE, answer.body_mut().frame()).await.expect("in time").expect("a frame").is_ok(), "{protocol}");
        assert!(timeout(DEADLINE, answer.body_mut().frame()).await.expect("in time").is_none_or(|frame| frame.is_err()), "{protocol}");
        assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [("Backend", 2)].into(), "{protocol}");
    }
}

#[tokio::test]
async fn idle_tunnel_is_closed() {
    let backend = Backend::new("a").await;
    let limits = Limits { tunnel_timeout: MOMENT * 3, ..Limits::default() };
    let routes = json!({"svc:web": plain(NAME, &service(backend.address, "http"))});
    let front = Front::with(routes, Options { limits, ..Options::default() }).await;
    let mut tunnel = begun(&front, &format!("GET /ws HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")).await;
    assert!(received_head(&mut tunnel).await.starts_with("http/1.1 101"));
    for _ in 0..12 {
        tunnel.write_all(b"x").await.expect("sent");
        assert_eq!(timeout(DEADLINE, tunnel.read_u8()).await.expect("in time").expect("an echo"), b'x');
        tokio::time::sleep(MOMENT / 3).await;
    }
    assert_eq!(*front.front_end.stats.open().borrow(), 1);
    assert_eq!(rest(&mut tunnel).await, "");
    assert_eq!(front.front_end.stats.sample()["svc:web"].aborted, [("Tunnel", 1)].into());
    until_async("its place is free", DEADLINE, async || *front.front_end.stats.open().borrow() == 0).await;
}

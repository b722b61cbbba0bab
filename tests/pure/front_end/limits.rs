//! Limits of a client: time for each of its steps, and size of the request head.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tailyard::model::front_end::vhosts::shares::Shares;
use tailyard::proxy::front_end::{Closing, Limits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use kit::front_end::backend::Backend;
use kit::front_end::front::{CLIENT, DEADLINE, Front, Options, forwarded, forwarded_from, get1, get2, got, plain, service, site};
use kit::wait::until_async;

const NAME: &str = "web.tail.ts.net";

async fn with(backend: &Backend, limits: Limits) -> Front {
    Front::with(json!({"svc:web": site(NAME, &service(backend.address, "http"))}), Options { limits, ..Options::default() }).await
}

fn short() -> Limits {
    let moment = Duration::from_millis(300);
    Limits {
        proxy_header_timeout: moment,
        handshake_timeout: moment,
        first_request_timeout: moment,
        idle_timeout: moment,
        ..Limits::default()
    }
}

/// Waits until the other side has closed or reset the connection; returns the data before that.
async fn closed(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("closed in time");
    rest
}

#[tokio::test]
async fn silent_client_is_disconnected_at_every_step() {
    let backend = Backend::new("a").await;
    // Each limit alone, so that no other one has the same effect.
    let moment = Duration::from_millis(300);
    let front = with(&backend, Limits { proxy_header_timeout: moment, ..Limits::default() }).await;
    closed(TcpStream::connect(front.at("svc:web", 443)).await.expect("connected")).await;
    assert_eq!(front.front_end.stats.sample()["svc:web"].refused["Late"], 1);
    let front = with(&backend, Limits { handshake_timeout: moment, ..Limits::default() }).await;
    closed(front.forwarded("svc:web", 443).await.expect("connected")).await;
    assert_eq!(front.front_end.stats.sample()["svc:web"].handshakes["Deadline"], 1);
    let front = with(&backend, Limits { first_request_timeout: moment, ..Limits::default() }).await;
    closed(front.tls("svc:web", NAME, "http/1.1").await.expect("TLS")).await;
    closed(front.tls("svc:web", NAME, "h2").await.expect("TLS")).await;
    closed(front.forwarded("svc:web", 80).await.expect("connected")).await;
    let front = with(&backend, Limits { idle_timeout: moment, ..Limits::default() }).await;
    let mut client = front.http1("svc:web", NAME).await;
    assert_eq!(got(client.send_request(get1(&format!("https://{NAME}/")))).await.status, StatusCode::OK);
    until_async("an idle client is closed", DEADLINE, async || client.is_closed()).await;
}

#[tokio::test]
async fn slow_request_head_is_disconnected() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits { first_request_timeout: Duration::from_millis(300), ..Limits::default() }).await;
    let (read, mut write) = tokio::io::split(front.tls("svc:web", NAME, "http/1.1").await.expect("TLS"));
    let trickle = tokio::spawn(async move {
        write.write_all(b"GET / HTTP/1.1\r\nhost: web.tail.ts.net\r\nx: ").await.expect("written");
        while write.write_all(b"x").await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    closed(read).await;
    trickle.abort();
    assert_eq!(backend.state.requests(), 0);
}

#[tokio::test]
async fn request_in_progress_outlives_idle_limits() {
    let backend = Backend::new("a").await;
    let front = with(&backend, short()).await;
    for alpn in ["http/1.1", "h2"] {
        let served = backend.state.requests();
        let url = format!("https://{NAME}/hold");
        let pending = if alpn == "h2" {
            let mut client = front.http2("svc:web", NAME).await;
            tokio::spawn(async move { got(client.send_request(get2(&url))).await })
        } else {
            let mut client = front.http1("svc:web", NAME).await;
            tokio::spawn(async move { got(client.send_request(get1(&url))).await })
        };
        until_async("the backend is asked", DEADLINE, async || backend.state.requests() > served).await;
        // Every limit elapses completely meanwhile: each ends a connection that began after the request.
        closed(TcpStream::connect(front.at("svc:web", 443)).await.expect("connected")).await;
        closed(front.forwarded("svc:web", 443).await.expect("connected")).await;
        closed(front.tls("svc:web", NAME, alpn).await.expect("TLS")).await;
        let mut idle = front.http1("svc:web", NAME).await;
        assert_eq!(got(idle.send_request(get1(&format!("https://{NAME}/")))).await.status, StatusCode::OK, "{alpn}");
        until_async("an idle client is closed", DEADLINE, async || idle.is_closed()).await;
        assert!(!pending.is_finished(), "{alpn}: answered before the backend did");
        backend.state.go.notify_one();
        assert_eq!(timeout(DEADLINE, pending).await.expect("in time").expect("answered").text(), "held", "{alpn}");
    }
}

#[tokio::test]
async fn oversized_request_head_is_refused() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits { max_head_bytes: 16 << 10, ..Limits::default() }).await;
    let mut request = get1(&format!("https://{NAME}/"));
    request.headers_mut().insert("x", "x".repeat(20 << 10).parse().expect("a value"));
    let mut client = front.http1("svc:web", NAME).await;
    assert_eq!(got(client.send_request(request)).await.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(backend.state.requests(), 0);
}

#[tokio::test]
async fn connection_without_proxy_protocol_is_refused() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits::default()).await;
    let mut stream = TcpStream::connect(front.at("svc:web", 80)).await.expect("connected");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: web.tail.ts.net\r\n\r\n").await.expect("written");
    assert_eq!(closed(stream).await, b"", "not a word");
    assert_eq!(front.front_end.stats.sample()["svc:web"].refused["Signature"], 1);
    assert_eq!(backend.state.requests(), 0);
}

/// Sends a TLS `close_notify` and waits for that of the other side; returns the TCP stream.
async fn said_goodbye(mut client: TlsStream<TcpStream>) -> TcpStream {
    client.get_mut().1.send_close_notify();
    client.flush().await.expect("sent");
    assert_eq!(timeout(DEADLINE, client.read(&mut [0])).await.expect("in time").expect("a goodbye"), 0);
    client.into_inner().0
}

#[tokio::test]
async fn client_may_close_first_after_tls_within_a_limit() {
    let backend = Backend::new("a").await;
    for alpn in ["http/1.1", "h2"] {
        let front = with(&backend, Limits { linger_timeout: DEADLINE, ..Limits::default() }).await;
        let mut stream = said_goodbye(front.tls("svc:web", NAME, alpn).await.expect("TLS")).await;
        let open = || front.front_end.stats.sample()["svc:web"].open;
        until_async("it is no open connection any more", DEADLINE, async || open() == 0).await;
        assert!(timeout(Duration::from_millis(300), stream.read(&mut [0])).await.is_err(), "{alpn}: closed first");
        stream.shutdown().await.expect("closed");
        closed(stream).await;

        let front = with(&backend, Limits { linger_timeout: Duration::from_millis(300), ..Limits::default() }).await;
        closed(said_goodbye(front.tls("svc:web", NAME, alpn).await.expect("TLS")).await).await;
    }
}

#[tokio::test]
async fn parting_client_does_not_delay_listener_shutdown() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits { linger_timeout: 2 * DEADLINE, drain_timeout: 2 * DEADLINE, ..Limits::default() }).await;
    let stream = said_goodbye(front.tls("svc:web", NAME, "http/1.1").await.expect("TLS")).await;
    front.closing.send_replace(Closing::Closed);
    closed(stream).await;
    timeout(DEADLINE, front.work).await.expect("ended in time").expect("no panic");
}

/// Sites without TLS, with these shares of connections and requests.
async fn plain_sites(backend: &Backend, shares: Shares) -> Front {
    let backend = service(backend.address, "http");
    let routes = json!({"svc:web": plain(NAME, &backend), "svc:b": plain("b.tail.ts.net", &backend)});
    Front::with(routes, Options { limits: Limits { shares, ..Limits::default() }, ..Options::default() }).await
}

async fn ask(stream: &mut TcpStream, name: &str, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes()).await.expect("sent");
}

/// First line of the response; empty if there is none.
async fn answered(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while let Ok(byte) = timeout(DEADLINE, stream.read_u8()).await.expect("in time") {
        if byte == b'\r' {
            break;
        }
        line.push(byte);
    }
    String::from_utf8(line).expect("text")
}

#[tokio::test]
async fn connections_per_client_are_limited() {
    let backend = Backend::new("a").await;
    let front = plain_sites(&backend, Shares { source: 2, ..Shares::default() }).await;
    let at = front.at("svc:web", 80);
    let mut one = forwarded(at).await.expect("connected");
    let mut other = forwarded(front.at("svc:b", 80)).await.expect("connected");
    for (stream, name) in [(&mut one, NAME), (&mut other, "b.tail.ts.net")] {
        ask(stream, name, "/").await;
        assert_eq!(answered(stream).await, "HTTP/1.1 200 OK");
    }
    closed(forwarded(at).await.expect("connected")).await;
    assert_eq!(front.front_end.stats.sample()["svc:web"].refused, [("Source", 1)].into());
    let mut neighbour = forwarded_from("100.64.0.10:1", at).await.expect("connected");
    ask(&mut neighbour, NAME, "/").await;
    assert_eq!(answered(&mut neighbour).await, "HTTP/1.1 200 OK");
    // An upgraded connection keeps its place.
    let mut tunnel = forwarded_from("[2001:db8::1]:1", at).await.expect("connected");
    tunnel
        .write_all(format!("GET /ws HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").as_bytes())
        .await
        .expect("sent");
    assert!(answered(&mut tunnel).await.starts_with("HTTP/1.1 101"));
    let mut same = forwarded_from("[2001:db8::2]:1", at).await.expect("connected");
    ask(&mut same, NAME, "/").await;
    assert_eq!(answered(&mut same).await, "HTTP/1.1 200 OK");
    closed(forwarded_from("[2001:db8::ffff:3]:1", at).await.expect("connected")).await;
    drop((one, tunnel));
    until_async("places are free again", DEADLINE, async || {
        let mut free = [forwarded(at).await.expect("connected"), forwarded_from("[2001:db8::3]:1", at).await.expect("connected")];
        let mut answers = Vec::new();
        for stream in &mut free {
            let _ = stream.write_all(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).await;
            answers.push(answered(stream).await);
        }
        answers.iter().all(|answer| answer == "HTTP/1.1 200 OK")
    })
    .await;
}

#[tokio::test]
async fn full_site_leaves_room_for_others() {
    let backend = Backend::new("a").await;
    for shares in [Shares { site: 1, ..Shares::default() }, Shares { connections: 2, site: 1, ..Shares::default() }] {
        let front = plain_sites(&backend, shares).await;
        let mut first = front.forwarded("svc:web", 80).await.expect("connected");
        ask(&mut first, NAME, "/").await;
        assert_eq!(answered(&mut first).await, "HTTP/1.1 200 OK");
        let mut waiting = front.forwarded("svc:web", 80).await.expect("connected");
        ask(&mut waiting, NAME, "/").await;
        let mut other = front.forwarded("svc:b", 80).await.expect("connected");
        ask(&mut other, "b.tail.ts.net", "/").await;
        assert_eq!(answered(&mut other).await, "HTTP/1.1 200 OK", "another site is served");
        assert!(timeout(Duration::from_millis(200), waiting.read_u8()).await.is_err(), "waits");
        drop(first);
        assert_eq!(answered(&mut waiting).await, "HTTP/1.1 200 OK", "is served when there is room");
    }
}

#[tokio::test]
async fn full_process_delays_new_connections() {
    let backend = Backend::new("a").await;
    let front = plain_sites(&backend, Shares { connections: 1, ..Shares::default() }).await;
    let first = front.forwarded("svc:web", 80).await.expect("connected");
    let open = || front.front_end.stats.sample()["svc:web"].open;
    until_async("it is open", DEADLINE, async || open() == 1).await;
    let mut other = front.forwarded("svc:b", 80).await.expect("connected");
    ask(&mut other, "b.tail.ts.net", "/").await;
    assert!(timeout(Duration::from_millis(200), other.read_u8()).await.is_err(), "waits");
    drop(first);
    assert_eq!(answered(&mut other).await, "HTTP/1.1 200 OK");
    front.closing.send_replace(Closing::Closed);
    timeout(DEADLINE, front.work).await.expect("ended in time").expect("no panic");
}

#[tokio::test]
async fn request_over_the_limit_is_refused_without_ejection() {
    let backend = Backend::new("a").await;
    for (shares, failures) in [(Shares { requests: 1, ..Shares::default() }, 0), (Shares { upstream: 1, ..Shares::default() }, 1)] {
        let front = plain_sites(&backend, shares).await;
        front.answers(&[(backend.address, "a")]);
        let served = backend.state.requests();
        let (mut holds, mut late) =
            (front.forwarded("svc:web", 80).await.expect("connected"), front.forwarded("svc:b", 80).await.expect("connected"));
        ask(&mut holds, NAME, "/hold").await;
        until_async("the backend is asked", DEADLINE, async || backend.state.requests() > served).await;
        ask(&mut late, "b.tail.ts.net", "/").await;
        assert_eq!(answered(&mut late).await, "HTTP/1.1 503 Service Unavailable");
        let sample = &front.front_end.stats.sample()["svc:b"];
        assert_eq!((sample.aborted["Full"], sample.failures.get("Full").copied().unwrap_or_default()), (1, failures));
        assert!(front.front_end.sample().endpoints.values().all(|(_, ejected)| *ejected == 0));
        backend.state.go.notify_one();
        assert_eq!(answered(&mut holds).await, "HTTP/1.1 200 OK");
        let mut again = front.forwarded("svc:b", 80).await.expect("connected");
        ask(&mut again, "b.tail.ts.net", "/").await;
        assert_eq!(answered(&mut again).await, "HTTP/1.1 200 OK", "a connection that waits for nothing makes room");
        again
            .write_all(b"GET /ws HTTP/1.1\r\nHost: b.tail.ts.net\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await
            .expect("sent");
        let mut upgraded = Vec::new();
        while !upgraded.ends_with(b" 101 ") {
            upgraded.push(timeout(DEADLINE, again.read_u8()).await.expect("in time").expect("an answer"));
        }
        let mut last = front.forwarded("svc:web", 80).await.expect("connected");
        ask(&mut last, NAME, "/").await;
        assert_eq!(answered(&mut last).await, "HTTP/1.1 503 Service Unavailable", "one that became something else does not");
    }
}

#[tokio::test]
async fn requests_in_progress_per_client_are_limited() {
    let backend = Backend::new("a").await;
    let front = plain_sites(&backend, Shares { source_requests: 1, ..Shares::default() }).await;
    let at = front.at("svc:web", 80);
    let answer = async |client: &str| {
        let mut stream = forwarded_from(client, at).await.expect("connected");
        ask(&mut stream, NAME, "/").await;
        answered(&mut stream).await
    };
    for path in ["/hold", "/endless", "/ws"] {
        let before = backend.state.requests();
        let mut stream = forwarded(at).await.expect("connected");
        let upgrade = if path == "/ws" { "Connection: Upgrade\r\nUpgrade: websocket\r\n" } else { "" };
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\n{upgrade}\r\n").as_bytes()).await.expect("sent");
        until_async("the backend has the request", DEADLINE, async || backend.state.requests() > before).await;
        assert_eq!(answer(CLIENT).await, "HTTP/1.1 429 Too Many Requests", "{path}");
        assert_eq!(answer("100.64.0.10:1").await, "HTTP/1.1 200 OK", "{path}");
        drop(stream);
        until_async("there is room", DEADLINE, async || answer(CLIENT).await == "HTTP/1.1 200 OK").await;
    }
    assert!(front.front_end.stats.sample()["svc:web"].aborted["Source"] >= 3);
}

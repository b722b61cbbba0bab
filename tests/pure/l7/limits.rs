//! What a client may take: time for each thing that it has to do, and room for the head of a request.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tailyard::proxy::l7::{Closing, Limits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use kit::l7::backend::Backend;
use kit::l7::front::{DEADLINE, Front, Options, get1, get2, got, service, site};
use kit::wait::until_async;

const NAME: &str = "web.tail.ts.net";

async fn with(backend: &Backend, limits: Limits) -> Front {
    Front::with(json!({"svc:web": site(NAME, &service(backend.address, "http"))}), Options { limits, ..Options::default() }).await
}

fn short() -> Limits {
    let moment = Duration::from_millis(300);
    Limits { preamble: moment, handshake: moment, first: moment, idle: moment, ..Limits::default() }
}

/// Waits until the other side has closed; an end by reset is one too.
async fn closed(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("closed in time");
    rest
}

#[tokio::test]
async fn who_says_nothing_is_let_go_at_every_step() {
    let backend = Backend::new("a").await;
    // Each limit alone, so that no other can do its work.
    let moment = Duration::from_millis(300);
    let front = with(&backend, Limits { preamble: moment, ..Limits::default() }).await;
    closed(TcpStream::connect(front.at("svc:web", 443)).await.expect("connected")).await;
    assert_eq!(front.l7.stats.sample()["svc:web"].refused["Late"], 1);
    let front = with(&backend, Limits { handshake: moment, ..Limits::default() }).await;
    closed(front.forwarded("svc:web", 443).await.expect("connected")).await;
    assert_eq!(front.l7.stats.sample()["svc:web"].handshakes["Deadline"], 1);
    let front = with(&backend, Limits { first: moment, ..Limits::default() }).await;
    closed(front.tls("svc:web", NAME, "http/1.1").await.expect("TLS")).await;
    closed(front.tls("svc:web", NAME, "h2").await.expect("TLS")).await;
    closed(front.forwarded("svc:web", 80).await.expect("connected")).await;
    let front = with(&backend, Limits { idle: moment, ..Limits::default() }).await;
    let mut client = front.http1("svc:web", NAME).await;
    assert_eq!(got(client.send_request(get1(&format!("https://{NAME}/")))).await.status, StatusCode::OK);
    until_async("an idle client is told to go", DEADLINE, async || client.is_closed()).await;
}

#[tokio::test]
async fn who_says_it_slowly_is_let_go_too() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits { first: Duration::from_millis(300), ..Limits::default() }).await;
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
async fn request_under_way_outlives_every_limit() {
    let backend = Backend::new("a").await;
    let front = with(&backend, short()).await;
    for alpn in ["http/1.1", "h2"] {
        let asked = backend.state.requests();
        let url = format!("https://{NAME}/hold");
        let held = if alpn == "h2" {
            let mut client = front.http2("svc:web", NAME).await;
            tokio::spawn(async move { got(client.send_request(get2(&url))).await })
        } else {
            let mut client = front.http1("svc:web", NAME).await;
            tokio::spawn(async move { got(client.send_request(get1(&url))).await })
        };
        until_async("the backend is asked", DEADLINE, async || backend.state.requests() > asked).await;
        // Every limit passes meanwhile, from its beginning to its end: each ends a connection that began after the request.
        closed(TcpStream::connect(front.at("svc:web", 443)).await.expect("connected")).await;
        closed(front.forwarded("svc:web", 443).await.expect("connected")).await;
        closed(front.tls("svc:web", NAME, alpn).await.expect("TLS")).await;
        let mut idle = front.http1("svc:web", NAME).await;
        assert_eq!(got(idle.send_request(get1(&format!("https://{NAME}/")))).await.status, StatusCode::OK, "{alpn}");
        until_async("an idle client is closed", DEADLINE, async || idle.is_closed()).await;
        assert!(!held.is_finished(), "{alpn}: answered before the backend did");
        backend.state.go.notify_one();
        assert_eq!(timeout(DEADLINE, held).await.expect("in time").expect("answered").text(), "held", "{alpn}");
    }
}

#[tokio::test]
async fn heads_have_a_size() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits { head: 16 << 10, ..Limits::default() }).await;
    let mut request = get1(&format!("https://{NAME}/"));
    request.headers_mut().insert("x", "x".repeat(20 << 10).parse().expect("a value"));
    let mut client = front.http1("svc:web", NAME).await;
    assert_eq!(got(client.send_request(request)).await.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(backend.state.requests(), 0);
}

#[tokio::test]
async fn who_is_not_tailscaled_is_not_served() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits::default()).await;
    let mut stream = TcpStream::connect(front.at("svc:web", 80)).await.expect("connected");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: web.tail.ts.net\r\n\r\n").await.expect("written");
    assert_eq!(closed(stream).await, b"", "not a word");
    assert_eq!(front.l7.stats.sample()["svc:web"].refused["Signature"], 1);
    assert_eq!(backend.state.requests(), 0);
}

/// Says goodbye in TLS, and waits until the other side has said so too. What is left is TCP.
async fn said_goodbye(mut client: TlsStream<TcpStream>) -> TcpStream {
    client.get_mut().1.send_close_notify();
    client.flush().await.expect("sent");
    assert_eq!(timeout(DEADLINE, client.read(&mut [0])).await.expect("in time").expect("a goodbye"), 0);
    client.into_inner().0
}

#[tokio::test]
async fn after_tls_the_client_closes_first_and_has_a_limited_time_for_it() {
    let backend = Backend::new("a").await;
    for alpn in ["http/1.1", "h2"] {
        let front = with(&backend, Limits { parting: DEADLINE, ..Limits::default() }).await;
        let mut left = said_goodbye(front.tls("svc:web", NAME, alpn).await.expect("TLS")).await;
        let open = || front.l7.stats.sample()["svc:web"].open;
        until_async("it is no open connection any more", DEADLINE, async || open() == 0).await;
        assert!(timeout(Duration::from_millis(300), left.read(&mut [0])).await.is_err(), "{alpn}: closed first");
        left.shutdown().await.expect("closed");
        closed(left).await;

        let front = with(&backend, Limits { parting: Duration::from_millis(300), ..Limits::default() }).await;
        closed(said_goodbye(front.tls("svc:web", NAME, alpn).await.expect("TLS")).await).await;
    }
}

#[tokio::test]
async fn who_parts_does_not_hold_up_a_listener_that_closes() {
    let backend = Backend::new("a").await;
    let front = with(&backend, Limits { parting: 2 * DEADLINE, grace: 2 * DEADLINE, ..Limits::default() }).await;
    let left = said_goodbye(front.tls("svc:web", NAME, "http/1.1").await.expect("TLS")).await;
    front.closing.send_replace(Closing::Closed);
    closed(left).await;
    timeout(DEADLINE, front.work).await.expect("ended in time").expect("no panic");
}

//! Permitted upgrades: `WebSocket` and configured protocols, but never HTTP or TLS, in which requests would pass without inspection.

use http::StatusCode;
use serde_json::json;
use tailyard::model::front_end::vhosts::headers::Upgrades;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use kit::front_end::front::{DEADLINE, Front, Options, get1, got, plain, received_head, service, site};
use kit::front_end::scripted::Scripted;
use kit::wait::until_async;

const NAME: &str = "web.tail.ts.net";
/// Bytes that the backend receives if the tunnel is open.
const SECRET: &[u8] = b"bytes that nobody has looked at";

async fn with(backend: &Scripted, upgrades: Upgrades) -> Front {
    let routes = json!({"svc:web": plain(NAME, &service(backend.address, "http"))});
    Front::with(routes, Options { upgrades, ..Options::default() }).await
}

/// Requests an upgrade and sends some bytes with it; returns the connection and the head of the response.
async fn send_upgrade(front: &Front, protocol: &str, body: &str) -> (TcpStream, String) {
    let mut stream = front.forwarded("svc:web", 80).await.expect("connected");
    let head = format!(
        "GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n\
         HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n{body}"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(SECRET).await.expect("sent");
    let head = received_head(&mut stream).await;
    (stream, head)
}

#[tokio::test]
async fn upgrade_to_a_request_carrying_protocol_is_refused() {
    for protocol in ["h2c", "H2C", "HTTP/2.0", "TLS/1.2", "spdy/3.1", "h2c, TLS/1.0"] {
        // Hypercorn and others answer any request for h2c like this.
        let backend = Scripted::new("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n").await;
        let front = with(&backend, Upgrades::default()).await;
        let (_, answer) = send_upgrade(&front, protocol, "\r\n").await;
        assert!(answer.starts_with("http/1.1 502") && !answer.contains("upgrade"), "{protocol}: {answer}");
        let heard = backend.heard();
        assert!(
            !heard.contains("upgrade") && !heard.contains("http2-settings") && !heard.contains("nobody has looked"),
            "{protocol}: {heard}"
        );
        assert_eq!(front.front_end.stats.sample()["svc:web"].upgrades, 0, "{protocol}");
    }
}

#[tokio::test]
async fn mismatched_upgrade_response_is_a_bad_gateway() {
    for answered in ["Upgrade: h2c\r\n", "Upgrade: websocket, h2c\r\n", "Upgrade: websocket\r\nUpgrade: h2c\r\n", ""] {
        let text = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{answered}\r\n").leak();
        let backend = Scripted::new(text).await;
        let front = with(&backend, Upgrades::default()).await;
        let (_, answer) = send_upgrade(&front, "h2c, websocket", "\r\n").await;
        assert!(answer.starts_with("http/1.1 502"), "{answered:?}: {answer}");
        let heard = backend.heard();
        assert!(heard.contains("upgrade: websocket\r\n") && !heard.contains("h2c") && !heard.contains("nobody has looked"), "{heard}");
        assert_eq!(front.front_end.stats.sample()["svc:web"].failures["Upgrade"], 1);
    }
}

#[tokio::test]
async fn only_the_configured_protocol_is_upgraded() {
    let backend = Scripted::new("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nhello").await;
    let front = with(&backend, Upgrades::read("spdy/3.1").expect("a protocol")).await;
    let (mut stream, answer) = send_upgrade(&front, "SPDY/3.1", "\r\n").await;
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: spdy/3.1"), "{answer}");
    let mut hello = [0; 5];
    timeout(DEADLINE, stream.read_exact(&mut hello)).await.expect("in time").expect("read");
    assert_eq!(&hello, b"hello");
    until_async("bytes pass", DEADLINE, async || backend.heard().contains("nobody has looked")).await;
    let (_, answer) = send_upgrade(&front, "websocket", "\r\n").await;
    assert!(answer.starts_with("http/1.1 502"), "{answer}");
}

#[tokio::test]
async fn upgrade_with_body_or_other_http_version_is_a_plain_request() {
    let backend = Scripted::new("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let front = with(&backend, Upgrades::default()).await;
    let (_, answer) = send_upgrade(&front, "websocket", "Content-Length: 3\r\n\r\nabc").await;
    assert!(answer.starts_with("http/1.1 200") && !backend.heard().contains("upgrade"), "{answer} {}", backend.heard());
    let mut stream = front.forwarded("svc:web", 80).await.expect("connected");
    let old = format!("GET /old HTTP/1.0\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    stream.write_all(old.as_bytes()).await.expect("sent");
    until_async("it is asked", DEADLINE, async || backend.heard().contains("/old")).await;
    assert!(!backend.heard().contains("upgrade"), "{}", backend.heard());
    let routes = json!({"svc:web": site(NAME, &service(backend.address, "http"))});
    let front = Front::new(routes).await;
    let mut client = front.http1("svc:web", NAME).await;
    assert_eq!(got(client.send_request(get1(&format!("https://{NAME}/")))).await.status, StatusCode::OK);
}

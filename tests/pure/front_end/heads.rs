//! Heads of requests and responses as real servers send them: many headers, repeated lengths, paths with empty segments.

use http::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use kit::front_end::backend::Backend;
use kit::front_end::front::{DEADLINE, Front, get1, get2, got, service, site};
use kit::front_end::scripted::Scripted;

const NAME: &str = "web.tail.ts.net";

async fn before(address: std::net::SocketAddr, protocol: &str) -> Front {
    let front = Front::new(json!({"svc:web": site(NAME, &service(address, protocol))})).await;
    front.answers(&[(address, "a")]);
    front
}

/// Headers `x-0`, `x-1`, … with values of this length.
fn many(count: usize, length: usize) -> String {
    (0..count).map(|number| ["x-", &number.to_string(), ": ", &"v".repeat(length), "\r\n"].concat()).collect()
}

#[tokio::test]
async fn repeated_equal_content_length_reaches_the_client_once() {
    for lengths in ["Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nX: 1\r\nContent-Length: 5\r\nContent-Length: 5\r\n"]
    {
        let answer = Box::leak(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{lengths}\r\nhello").into_boxed_str());
        let backend = Scripted::new(&*answer).await;
        let front = before(backend.address, "http").await;
        let url = format!("https://{NAME}/");
        let one = got(front.http1("svc:web", NAME).await.send_request(get1(&url))).await;
        let two = got(front.http2("svc:web", NAME).await.send_request(get2(&url))).await;
        for answer in [one, two] {
            let lengths: Vec<_> = answer.headers.get_all("content-length").iter().map(|value| value.to_str().expect("text")).collect();
            assert_eq!((answer.status, lengths, answer.text().as_str()), (StatusCode::OK, vec!["5"], "hello"));
        }
    }
}

#[tokio::test]
async fn response_head_may_have_many_headers() {
    for (count, length) in [(200, 10), (1000, 40)] {
        let head = many(count, length);
        let answer = Box::leak(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{head}Content-Length: 5\r\n\r\nhello").into_boxed_str());
        let backend = Scripted::new(&*answer).await;
        let front = before(backend.address, "http").await;
        // The clients of this test accept fewer headers.
        let mut stream = front.tls("svc:web", NAME, "http/1.1").await.expect("TLS");
        let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut text = String::new();
        timeout(DEADLINE, stream.read_to_string(&mut text)).await.expect("in time").expect("closed");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("hello"), "{count}: {text}");
        assert_eq!(text.matches("\r\nx-").count(), count);
        if count == 200 {
            let two = got(front.http2("svc:web", NAME).await.send_request(get2(&format!("https://{NAME}/")))).await;
            assert_eq!((two.status, two.headers.contains_key("x-199")), (StatusCode::OK, true));
        }
    }
}

#[tokio::test]
async fn request_head_may_have_many_headers() {
    let backend = Scripted::new("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello").await;
    let front = before(backend.address, "http").await;
    let url = format!("https://{NAME}/");
    let one = (front.http1("svc:web", NAME).await, get1(&url));
    let two = (front.http2("svc:web", NAME).await, get2(&url));
    let with = |mut request: http::Request<_>| {
        request.headers_mut().extend((0..1000).map(|number| {
            let name: http::HeaderName = format!("x-{number}").parse().expect("a name");
            (name, http::HeaderValue::from_static("some value"))
        }));
        request
    };
    let (mut client1, mut client2) = (one.0, two.0);
    for answer in [got(client1.send_request(with(one.1))).await, got(client2.send_request(with(two.1))).await] {
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(backend.heard().matches("x-999: some value").count(), 2);
}

#[tokio::test]
async fn path_with_empty_segments_is_forwarded_as_received() {
    let backend = Scripted::new("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello").await;
    let front = before(backend.address, "http").await;
    for path in ["//a", "//a//b/?q=//", "///"] {
        let url = format!("https://{NAME}{path}");
        let one = got(front.http1("svc:web", NAME).await.send_request(get1(&url))).await;
        let two = got(front.http2("svc:web", NAME).await.send_request(get2(&url))).await;
        assert_eq!((one.status, two.status), (StatusCode::OK, StatusCode::OK), "{path}");
        assert_eq!(backend.heard().matches(&format!("get {path} http/1.1\r\n")).count(), 2, "{path}: {}", backend.heard());
    }
    let echo = Backend::new("a").await;
    let front = before(echo.address, "h2c").await;
    let answer = got(front.http2("svc:web", NAME).await.send_request(get2(&format!("https://{NAME}//a")))).await;
    assert_eq!(answer.echoed()["uri"], format!("http://{NAME}//a"), "HTTP/2 to the backend");
}

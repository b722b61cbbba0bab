//! Protocols on both sides: HTTP/1.1, HTTP/2, gRPC, WebSocket, TLS.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tailyard::model::front_end::vhosts::identity::{ClientIdentity, User};
use tailyard::model::front_end::vhosts::read;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use kit::front_end::backend::{Backend, header};
use kit::front_end::front::{CLIENT, DEADLINE, Front, Options, get1, get2, got, service, site};
use kit::front_end::refusing::{RefusedBy, Refusing};
use kit::wait::{eventually_async, until_async};

const NAME: &str = "web.tail.ts.net";

async fn one(backend: &Backend, protocol: &str) -> Front {
    Front::new(json!({"svc:web": site(NAME, &service(backend.address, protocol))})).await
}

#[tokio::test]
async fn tls_request_reaches_the_backend_and_is_answered() {
    let backend = Backend::new("a").await;
    let front = one(&backend, "http").await;
    let mut client = front.http1("svc:web", NAME).await;
    for _ in 0..3 {
        let mut request = get1(&format!("https://{NAME}/path?q=1"));
        request.headers_mut().insert("x-forwarded-for", "6.6.6.6".parse().expect("a value"));
        request.headers_mut().insert("tailscale-user-login", "root@example.com".parse().expect("a value"));
        client.ready().await.expect("ready");
        let answer = got(client.send_request(request)).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(
            (answer.headers.get("x-backend").map(http::HeaderValue::as_bytes), answer.headers.get("keep-alive")),
            (Some(&b"a"[..]), None)
        );
        let received = answer.echoed();
        assert_eq!((&received["uri"], &received["version"]), (&json!("/path?q=1"), &json!("HTTP/1.1")));
        let client_ip = CLIENT.split(':').next();
        assert_eq!((header(&received, "host"), header(&received, "x-forwarded-for")), (Some(NAME), client_ip));
        assert_eq!((header(&received, "x-forwarded-host"), header(&received, "x-forwarded-proto")), (Some(NAME), Some("https")));
        assert_eq!(header(&received, "tailscale-user-login"), None);
    }
    assert_eq!(backend.state.connections.load(std::sync::atomic::Ordering::SeqCst), 1, "connections to backends are kept");
}

#[tokio::test]
async fn request_that_an_http2_backend_has_not_processed_is_sent_to_the_next_one() {
    for by in [RefusedBy::Reset, RefusedBy::GoAway] {
        let backend = Backend::new("a").await;
        let server = Refusing::new(by, 9, backend.address).await;
        let front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, "h2c"))})).await;
        front.answers(&[(server.address, "a")]);
        let request = Request::post("/").header("host", NAME).body(Full::new(Bytes::from_static(b"abc"))).expect("a request");
        let answer = got(front.http1("svc:web", NAME).await.send_request(request)).await.echoed();
        assert_eq!((&answer["length"], &answer["method"]), (&json!(3), &json!("POST")), "{by:?}");
        assert_eq!(front.front_end.stats.sample()["svc:web"].failures, [("Refused", 1)].into());
    }
}

#[tokio::test]
async fn http2_requests_run_concurrently_on_an_http1_backend() {
    let backend = Backend::new("a").await;
    let front = one(&backend, "http").await;
    let client = front.http2("svc:web", NAME).await;
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..50 {
        let mut client = client.clone();
        asking.spawn(async move {
            let mut request = get2(&format!("https://{NAME}/{number}"));
            request.headers_mut().append("cookie", "a=1".parse().expect("a value"));
            request.headers_mut().append("cookie", "b=2".parse().expect("a value"));
            let received = got(client.send_request(request)).await.echoed();
            assert_eq!(
                (&received["uri"], header(&received, "host"), header(&received, "cookie")),
                (&json!(format!("/{number}")), Some(NAME), Some("a=1; b=2"))
            );
        });
    }
    asking.join_all().await;
    let posted = Request::post(format!("https://{NAME}/")).body(Full::new(Bytes::from(vec![7; 3 << 20]))).expect("a request");
    assert_eq!(got(client.clone().send_request(posted)).await.echoed()["length"], 3 << 20);
}

#[tokio::test]
async fn full_http2_connection_to_a_backend_delays_no_request() {
    // It permits 200 streams on a connection.
    let backend = Backend::new("a").await;
    let front = one(&backend, "h2c").await;
    let client = front.http2("svc:web", NAME).await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..250 {
        let mut client = client.clone();
        asking.spawn(async move { got(client.send_request(get2(&format!("https://{NAME}/hold")))).await });
    }
    until_async("all requests arrive", DEADLINE, async || backend.state.requests() == 250).await;
    backend.state.go.notify_waiters();
    assert!(asking.join_all().await.iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!(backend.state.connections.load(std::sync::atomic::Ordering::SeqCst), 3);
    assert_eq!(got(client.clone().send_request(get2(&format!("https://{NAME}/")))).await.status, StatusCode::OK);
    assert_eq!(backend.state.connections.load(std::sync::atomic::Ordering::SeqCst), 3, "connections with free streams are reused");
}

#[tokio::test]
async fn grpc_streams_both_ways_and_ends_with_trailers() {
    let backend = Backend::new("a").await;
    let front = one(&backend, "h2c").await;
    let stream = front.tls("svc:web", NAME, "h2").await.expect("TLS");
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let (sender, mut messages) = mpsc::channel::<Result<Frame<Bytes>, std::convert::Infallible>>(1);
    let body = StreamBody::new(futures_util::stream::poll_fn(move |cx| messages.poll_recv(cx)));
    let request = Request::post(format!("https://{NAME}/stream")).header("te", "trailers").header("content-type", "application/grpc");
    let talk = async {
        let mut answer = client.send_request(request.body(body).expect("a request")).await.expect("an answer");
        assert_eq!((answer.status(), answer.version()), (StatusCode::OK, Version::HTTP_2));
        for number in 0..5_u8 {
            sender.send(Ok(Frame::data(Bytes::from(vec![number; 1000])))).await.expect("sent");
            let echo = answer.body_mut().frame().await.expect("a frame").expect("read").into_data().expect("data");
            assert_eq!(echo[0], number, "each message is answered before the next is sent");
        }
        drop(sender);
        loop {
            match answer.body_mut().frame().await.expect("trailers").expect("read").into_trailers() {
                Ok(trailers) => break assert_eq!(trailers["grpc-status"], "0"),
                Err(_data) => {}
            }
        }
    };
    timeout(DEADLINE, talk).await.expect("in time");
}

#[tokio::test]
async fn websocket_is_tunnelled_in_both_directions() {
    let backend = Backend::new("a").await;
    for protocol in ["http", "h2c"] {
        let front = one(&backend, protocol).await;
        let mut client = front.http1("svc:web", NAME).await;
        let mut request = get1(&format!("https://{NAME}/ws"));
        request.headers_mut().insert("connection", "keep-alive, Upgrade".parse().expect("a value"));
        request.headers_mut().insert("upgrade", "websocket".parse().expect("a value"));
        let talk = async {
            let answer = client.send_request(request).await.expect("an answer");
            assert_eq!(
                (answer.status(), &answer.headers()["upgrade"]),
                (StatusCode::SWITCHING_PROTOCOLS, &http::HeaderValue::from_static("websocket")),
                "{protocol}"
            );
            let mut socket = TokioIo::new(hyper::upgrade::on(answer).await.expect("upgraded"));
            for text in ["one", "two"] {
                socket.write_all(text.as_bytes()).await.expect("written");
                socket.flush().await.expect("flushed");
                let mut echo = [0; 3];
                socket.read_exact(&mut echo).await.expect("read");
                assert_eq!(&echo, text.as_bytes(), "{protocol}");
            }
        };
        timeout(DEADLINE, talk).await.unwrap_or_else(|_| panic!("{protocol}: not in time"));
        assert_eq!(front.front_end.stats.sample()["svc:web"].upgrades, 1, "{protocol}");
    }
}

#[tokio::test]
async fn https_backends_use_the_negotiated_protocol() {
    for (alpn, version) in [(&["h2", "http/1.1"][..], "HTTP/2.0"), (&["http/1.1"], "HTTP/1.1"), (&[], "HTTP/1.1")] {
        let backend = Backend::over_tls("a", alpn).await;
        let front = one(&backend, "https").await;
        let received = front.get("svc:web", &format!("https://{NAME}/x")).await.echoed();
        assert_eq!((&received["version"], header(&received, "x-forwarded-proto")), (&json!(version), Some("https")), "{alpn:?}");
    }
}

#[tokio::test]
async fn identity_headers_reach_the_backend() {
    let backend = Backend::new("a").await;
    let alice = User { login: "alice@example.com".into(), name: "Älice".into(), picture: "https://example.com/a.png".into() };
    let identity = ClientIdentity { user: Some(alice), ..ClientIdentity::default() };
    let ask: tailyard::proxy::front_end::identify::WhoIsLookup = Arc::new(move |client| {
        assert_eq!(client.to_string(), CLIENT);
        let identity = identity.clone();
        Box::pin(async move { Ok((tokio::time::Instant::now(), Some(identity))) })
    });
    let routes = json!({"svc:web": site(NAME, &service(backend.address, "http"))});
    let front = Front::with(routes, Options { ask: Some(ask), ..Options::default() }).await;
    let received = front.get("svc:web", &format!("https://{NAME}/")).await.echoed();
    assert_eq!(header(&received, "tailscale-user-login"), Some("alice@example.com"));
    assert_eq!(header(&received, "tailscale-user-name"), Some("=?utf-8?q?=C3=84lice?="));
    assert_eq!(header(&received, "tailscale-user-profile-pic"), Some("https://example.com/a.png"));
}

/// Capabilities belong to the mount of each request, not to the connection.
#[tokio::test]
async fn requests_of_one_http2_connection_get_the_capabilities_of_their_mounts() {
    let backend = Backend::new("a").await;
    let caps = ["example.com/cap/a", "example.com/cap/b"].map(|name| (name.to_owned(), vec![json!(1)]));
    let identity = ClientIdentity { caps: caps.into(), ..ClientIdentity::default() };
    let ask: tailyard::proxy::front_end::identify::WhoIsLookup = Arc::new(move |_| {
        let identity = identity.clone();
        Box::pin(async move { Ok((tokio::time::Instant::now(), Some(identity))) })
    });
    let routes = json!({"svc:web": site(NAME, &service(backend.address, "http"))});
    let front = Front::with(routes, Options { ask: Some(ask), ..Options::default() }).await;
    let mount = |caps: &[&str]| json!({"Proxy": format!("http://{}/", backend.address), "AcceptAppCaps": caps});
    let handlers = json!({"/": mount(&[]), "/a": mount(&["example.com/cap/a"]), "/b": mount(&["example.com/cap/b"])});
    let web = json!({format!("{NAME}:443"): {"Handlers": handlers}});
    let serve = json!({"Services": {"svc:web": {"TCP": {"443": {"HTTPS": true}}, "Web": web}}}).to_string();
    front.sites.send_replace(Arc::new(read(None, Some(serve.as_bytes())).expect("readable").sites));
    let client = front.http2("svc:web", NAME).await;
    let received = async |path: &str| {
        let answer = got(client.clone().send_request(get2(&format!("https://{NAME}{path}")))).await.echoed();
        header(&answer, "tailscale-app-capabilities").map(str::to_owned)
    };
    eventually_async("the serve config is in force", DEADLINE, async || received("/a").await, Option::is_some).await;
    let expected = [("/a", Some(r#"{"example.com/cap/a":[1]}"#)), ("/b/x", Some(r#"{"example.com/cap/b":[1]}"#)), ("/", None)];
    let requests = expected.iter().cycle().take(30).map(async |(path, caps)| assert_eq!(received(path).await.as_deref(), *caps, "{path}"));
    futures_util::future::join_all(requests).await;
}

#[tokio::test]
async fn http_redirect_keeps_path_and_query() {
    let backend = Backend::new("a").await;
    let front = one(&backend, "http").await;
    for host in [NAME, "web"] {
        let stream = front.forwarded("svc:web", 80).await.expect("connected");
        let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let answer = got(client.send_request(get1(&format!("http://{host}/a?b=c")))).await;
        assert_eq!(
            (answer.status, answer.headers["location"].as_bytes()),
            (StatusCode::MOVED_PERMANENTLY, format!("https://{NAME}/a?b=c").as_bytes()),
            "{host}"
        );
    }
}

#[tokio::test]
async fn responses_without_body_have_none() {
    let backend = Backend::new("a").await;
    for protocol in ["http", "h2c"] {
        let mut routes = site(NAME, &service(backend.address, protocol));
        routes["routes"][0]["path"] = json!("/some");
        let front = Front::new(json!({"svc:web": routes})).await;
        for alpn in ["http/1.1", "h2"] {
            for (method, path, status) in
                [("HEAD", "/some/x", 200), ("HEAD", "/none", 404), ("GET", "/some/304", 304), ("GET", "/some/204", 204)]
            {
                let mut request =
                    if alpn == "h2" { get2(&format!("https://{NAME}{path}")) } else { get1(&format!("https://{NAME}{path}")) };
                *request.method_mut() = method.parse().expect("a method");
                let answer = if alpn == "h2" {
                    got(front.http2("svc:web", NAME).await.send_request(request)).await
                } else {
                    got(front.http1("svc:web", NAME).await.send_request(request)).await
                };
                assert_eq!((answer.status.as_u16(), answer.body.len()), (status, 0), "{protocol} {alpn} {method} {path}");
                let length =
                    answer.headers.get("content-length").map(|value| value.to_str().expect("text").parse::<u64>().expect("a number"));
                if path == "/some/x" {
                    assert!(length.is_some_and(|length| length > 100), "{protocol} {alpn}: Content-Length is present: {length:?}");
                } else if method != "HEAD" {
                    assert!(length.is_none_or(|length| length == 0), "{protocol} {alpn} {path}: {length:?}");
                }
            }
        }
    }
}

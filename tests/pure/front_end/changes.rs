//! Changes while clients are connected: certificates, routes, sites, shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tailyard::proxy::front_end::{Closing, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use kit::front_end::backend::Backend;
use kit::front_end::front::{DEADLINE, Front, Options, get1, get2, got, is_complete, service, site};
use kit::wait::until_async;

const NAME: &str = "web.tail.ts.net";
const URL: &str = "https://web.tail.ts.net/";

#[tokio::test]
async fn certificate_swap_under_load_fails_no_handshake() {
    let backend = Backend::new("a").await;
    let front = Arc::new(Front::new(json!({"svc:web": site(NAME, &service(backend.address, "http"))})).await);
    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (front, over) = (Arc::clone(&front), Arc::clone(&over));
            tokio::spawn(async move {
                let mut shown = std::collections::BTreeSet::new();
                while !over.load(Ordering::Relaxed) {
                    let stream = front.tls("svc:web", NAME, "http/1.1").await.expect("a handshake");
                    shown.insert(stream.get_ref().1.peer_certificates().expect("a chain")[0].to_vec());
                }
                shown
            })
        })
        .collect();
    for round in 1..=10 {
        let done = || front.front_end.stats.sample()["svc:web"].handshakes.get("ok").copied().unwrap_or_default();
        let before = done();
        until_async(&format!("round {round} of handshakes"), DEADLINE, async || done() >= before + 8).await;
        front.renew(NAME);
    }
    over.store(true, Ordering::Relaxed);
    for load in load {
        let shown = timeout(DEADLINE, load).await.expect("in time").expect("no handshake failed");
        assert!(shown.len() > 2, "only {} certificates were shown", shown.len());
    }
    assert_eq!(front.front_end.stats.sample()["svc:web"].handshakes.keys().collect::<Vec<_>>(), [&"ok"]);
}

#[tokio::test]
async fn name_without_certificate_is_reported_and_others_are_served() {
    let backend = Backend::new("a").await;
    let mut front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, "http"))})).await;
    let mut two = site(NAME, &service(backend.address, "http"));
    two["hosts"]["new.tail.ts.net"] = json!({"secret": "new", "issue": true});
    front.route(&json!({"svc:web": two}));
    let placed = front.placed("svc:web", |placed| !is_complete(placed)).await;
    assert_eq!(placed.missing.iter().collect::<Vec<_>>(), ["new.tail.ts.net"]);
    assert!(placed.certified, "the other name is reached");
    assert!(front.tls("svc:web", "new.tail.ts.net", "h2").await.is_err());
    assert_eq!(front.get("svc:web", URL).await.status, StatusCode::OK);
    front.renew("new.tail.ts.net");
    front.placed("svc:web", is_complete).await;
    assert_eq!(front.get("svc:web", "https://new.tail.ts.net/").await.status, StatusCode::OK);
    front.route(&json!({"svc:web": two, "svc:late": site("late.tail.ts.net", &service(backend.address, "http"))}));
    let placed = front.placed("svc:late", |placed| !placed.ports.is_empty()).await;
    assert!(!placed.certified, "none of its names has one: {placed:?}");
}

#[tokio::test]
async fn sni_and_host_of_another_service_are_refused() {
    let (a, b) = (Backend::new("a").await, Backend::new("b").await);
    let sites = json!({"svc:a": site("a.ts.net", &service(a.address, "http")), "svc:b": site("b.ts.net", &service(b.address, "http"))});
    let front = Front::new(sites).await;
    assert!(front.tls("svc:a", "b.ts.net", "h2").await.is_err());
    until_async("the refusal is counted", DEADLINE, async || {
        front.front_end.stats.sample()["svc:a"].handshakes.contains_key("UnknownName")
    })
    .await;
    let mut client = front.http1("svc:a", "a.ts.net").await;
    assert_eq!(got(client.send_request(get1("https://b.ts.net/"))).await.status, StatusCode::MISDIRECTED_REQUEST);
    client.ready().await.expect("ready");
    assert_eq!(got(client.send_request(get1("https://a.ts.net/"))).await.echoed()["name"], "a");
    assert_eq!(b.state.requests(), 0);
}

#[tokio::test]
async fn new_routes_apply_to_the_next_request_of_an_open_connection() {
    let (a, b) = (Backend::new("a").await, Backend::new("b").await);
    let front = Front::new(json!({"svc:web": site(NAME, &service(a.address, "http"))})).await;
    let client = front.http2("svc:web", NAME).await;
    assert_eq!(got(client.clone().send_request(get2(URL))).await.echoed()["name"], "a");
    let mut other = site(NAME, &service(a.address, "http"));
    other["routes"] = json!([{"path": "/b", "backend": service(b.address, "http")}]);
    front.route(&json!({"svc:web": other}));
    let get = async |path: &str| got(client.clone().send_request(get2(&format!("https://{NAME}{path}")))).await;
    until_async("the new route is taken", DEADLINE, async || get("/b/x").await.status == StatusCode::OK).await;
    assert_eq!(get("/b/x").await.echoed()["name"], "b");
    assert_eq!(get("/").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn removed_site_finishes_requests_and_accepts_no_more() {
    let backend = Backend::new("a").await;
    let mut front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, "http"))})).await;
    let at = front.at("svc:web", 443);
    let mut client = front.http1("svc:web", NAME).await;
    let pending = tokio::spawn(got(client.send_request(get1(&format!("https://{NAME}/hold")))));
    until_async("the backend is asked", DEADLINE, async || backend.state.requests() == 1).await;
    front.route(&json!({}));
    timeout(DEADLINE, front.front_end.in_place.wait_for(|sites| sites.is_empty())).await.expect("in time").expect("a terminator");
    until_async("the listener is closed", DEADLINE, async || tokio::net::TcpStream::connect(at).await.is_err()).await;
    backend.state.go.notify_one();
    assert_eq!(timeout(DEADLINE, pending).await.expect("in time").expect("answered").text(), "held");
    until_async("the last connection has ended", DEADLINE, async || *front.front_end.stats.open().borrow() == 0).await;
}

#[tokio::test]
async fn drain_finishes_requests_and_closes_connections() {
    let backend = Backend::new("a").await;
    let front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, "http"))})).await;
    let at = front.at("svc:web", 443);
    let url = format!("https://{NAME}/hold");
    let mut idle = front.http1("svc:web", NAME).await;
    assert_eq!(got(idle.send_request(get1(URL))).await.status, StatusCode::OK);
    let mut one = front.http1("svc:web", NAME).await;
    let mut two = front.http2("svc:web", NAME).await;
    let pending = [tokio::spawn(got(one.send_request(get1(&url)))), tokio::spawn(got(two.send_request(get2(&url))))];
    until_async("the backend is asked", DEADLINE, async || backend.state.requests() == 3).await;
    front.closing.send_replace(Closing::Closed);
    until_async("the listener is closed", DEADLINE, async || tokio::net::TcpStream::connect(at).await.is_err()).await;
    until_async("an idle client is closed", DEADLINE, async || idle.is_closed()).await;
    assert!(!front.work.is_finished(), "requests are still being answered");
    for _ in 0..2 {
        backend.state.go.notify_one();
    }
    let [one_held, two_held] = pending.map(|pending| timeout(DEADLINE, pending));
    let answer = one_held.await.expect("in time").expect("answered");
    assert_eq!((answer.text().as_str(), answer.headers["connection"].as_bytes()), ("held", &b"close"[..]));
    assert_eq!(two_held.await.expect("in time").expect("answered").text(), "held");
    until_async("the HTTP/2 client is closed", DEADLINE, async || two.is_closed()).await;
    timeout(DEADLINE, front.work).await.expect("in time").expect("ended in order");
    assert_eq!(*front.front_end.stats.open().borrow(), 0);
}

#[tokio::test]
async fn draining_connection_gets_one_more_response_with_close() {
    let backend = Backend::new("a").await;
    let front = Front::new(json!({"svc:web": site(NAME, &service(backend.address, "http"))})).await;
    let mut idle = front.http1("svc:web", NAME).await;
    assert_eq!(got(idle.send_request(get1(URL))).await.status, StatusCode::OK);
    let (silent, mut two) = (front.http1("svc:web", NAME).await, front.http2("svc:web", NAME).await);
    front.closing.send_replace(Closing::Draining);
    until_async("an idle client is closed", DEADLINE, async || idle.is_closed()).await;
    let late = front.http1("svc:web", NAME).await;
    for mut client in [silent, late] {
        let answer = timeout(DEADLINE, got(client.send_request(get1(URL)))).await.expect("in time");
        assert_eq!((answer.status, answer.headers["connection"].as_bytes()), (StatusCode::OK, &b"close"[..]));
        until_async("the client is closed", DEADLINE, async || client.is_closed()).await;
    }
    assert_eq!(timeout(DEADLINE, got(two.send_request(get2(URL)))).await.expect("in time").status, StatusCode::OK);
    until_async("the HTTP/2 client is closed", DEADLINE, async || two.is_closed()).await;
    until_async("the last connection has ended", DEADLINE, async || *front.front_end.stats.open().borrow() == 0).await;
    assert!(!front.work.is_finished(), "it listens until it is closed");
}

#[tokio::test]
async fn connections_outliving_the_grace_period_are_closed() {
    let backend = Backend::new("a").await;
    let limits = Limits::of(Duration::from_millis(900));
    assert!(
        limits.drain_timeout < Duration::from_millis(900) && Limits::of(Duration::from_mins(5)).drain_timeout > Duration::from_mins(4),
        "of the drain"
    );
    let routes = json!({"svc:web": site(NAME, &service(backend.address, "http"))});
    let front = Front::with(routes, Options { limits, ..Options::default() }).await;
    let mut client = front.http1("svc:web", NAME).await;
    let mut request = get1(&format!("https://{NAME}/ws"));
    request.headers_mut().insert("connection", "Upgrade".parse().expect("a value"));
    request.headers_mut().insert("upgrade", "websocket".parse().expect("a value"));
    let answer = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("an answer");
    let mut socket = TokioIo::new(hyper::upgrade::on(answer).await.expect("upgraded"));
    let mut talk = async |text: &[u8]| {
        socket.write_all(text).await?;
        socket.flush().await?;
        let mut echo = vec![0; text.len()];
        socket.read_exact(&mut echo).await.map(|_| echo)
    };
    assert_eq!(timeout(DEADLINE, talk(b"before")).await.expect("in time").expect("an echo"), b"before");
    front.closing.send_replace(Closing::Closed);
    timeout(DEADLINE, front.work).await.expect("in time").expect("ended in order");
    assert!(timeout(DEADLINE, talk(b"after")).await.expect("in time").is_err());
    until_async("the last connection has ended", DEADLINE, async || *front.front_end.stats.open().borrow() == 0).await;
}

//! Load balancing: endpoints of the own zone, other endpoints, the `ClusterIP`; and the effect of a failed endpoint on clients.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use kit::front_end::backend::Backend;
use kit::front_end::front::{DEADLINE, Front, Options, get2, got, service, site};
use kit::wait::until_async;

const NAME: &str = "web.tail.ts.net";
const URL: &str = "https://web.tail.ts.net/";

async fn in_zone_a(cluster_ip: SocketAddr) -> Front {
    Front::with(
        json!({"svc:web": site(NAME, &service(cluster_ip, "http"))}),
        Options { node: Some("node-a".to_owned()), ..Options::default() },
    )
    .await
}

/// An address without a listener.
async fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("an address")
}

/// Names of the backends that answer this many requests, none of which may fail.
async fn who(front: &Front, requests: usize) -> BTreeSet<String> {
    let client = front.http2("svc:web", NAME).await;
    let mut names = BTreeSet::new();
    for _ in 0..requests {
        let answer = got(client.clone().send_request(get2(URL))).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        names.insert(answer.echoed()["name"].as_str().expect("a name").to_owned());
    }
    names
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn own_zone_endpoints_share_requests_and_others_take_over() {
    let (near, other, far, ip) =
        (Backend::new("near").await, Backend::new("other").await, Backend::new("far").await, Backend::new("ip").await);
    let front = in_zone_a(ip.address).await;
    assert_eq!(who(&front, 3).await, names(&["ip"]), "as long as no endpoint is known");
    let (at_near, at_other) = (near.address, other.address);
    front.answers(&[(at_near, "a"), (at_other, "a"), (far.address, "b")]);
    assert_eq!(who(&front, 60).await, names(&["near", "other"]));
    near.stop().await;
    assert_eq!(who(&front, 20).await, names(&["other"]));
    other.stop().await;
    assert_eq!(who(&front, 20).await, names(&["far"]));
    far.stop().await;
    assert_eq!(who(&front, 20).await, names(&["ip"]));
    let sample = &front.front_end.stats.sample()["svc:web"];
    assert!(sample.fallbacks >= 20 && sample.failures.contains_key("Connect"), "{sample:?}");
    assert_eq!(front.front_end.sample().endpoints.values().collect::<Vec<_>>(), [&(3, 3)], "all three are left alone");
    let _back = Backend::at(at_near, "back", None).await;
    until_async("who was left alone is tried again", DEADLINE, async || who(&front, 5).await == names(&["back"])).await;
}

#[tokio::test]
async fn restarted_backend_loses_no_request() {
    let first = Backend::new("first").await;
    let address = first.address;
    let front = in_zone_a(unused_address().await).await;
    front.answers(&[(address, "a")]);
    assert_eq!(who(&front, 5).await, names(&["first"]));
    first.stop().await;
    let _second = Backend::at(address, "second", None).await;
    assert_eq!(who(&front, 5).await, names(&["second"]), "the kept connection is gone, and no request failed");
}

#[tokio::test]
async fn safe_requests_are_retried_and_others_are_not() {
    let breaking = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = breaking.local_addr().expect("an address");
    let good = Backend::new("good").await;
    let front = in_zone_a(unused_address().await).await;
    front.answers(&[(at, "a"), (good.address, "b")]);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = breaking.accept().await {
            let _ = stream.read(&mut [0; 64]).await;
        }
    });
    assert_eq!(who(&front, 5).await, names(&["good"]));
    let post = Request::post(URL).body(Full::new(Bytes::from_static(b"once"))).expect("a request");
    assert_eq!(got(front.http2("svc:web", NAME).await.send_request(post)).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(front.front_end.stats.sample()["svc:web"].failures["Broken"], 6);
}

#[tokio::test]
async fn unreachable_backend_is_a_bad_gateway() {
    let front = in_zone_a(unused_address().await).await;
    let answer = front.get("svc:web", URL).await;
    assert_eq!((answer.status, answer.text().as_str()), (StatusCode::BAD_GATEWAY, "cannot connect to the backend\n"));
}

//! Clients of the cluster at the Pod's addresses.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use kit::front_end::backend::{Backend, header};
use kit::front_end::front::{DEADLINE, Front, Options, forwarded_from, get1, got, service, site};
use kit::wait::until_async;

const NAME: &str = "web.tail.ts.net";
/// Unprivileged; other tests use free ports of 127.0.0.1.
const PORT: u16 = 24_443;

fn routes(backend: &Backend) -> Value {
    let mut site = site(NAME, &service(backend.address, "http"));
    site["listeners"] = json!({PORT.to_string(): "https"});
    json!({"svc:web": site})
}

#[tokio::test]
async fn clients_of_the_cluster_are_served_without_identity() {
    let backend = Backend::new("a").await;
    let pod: IpAddr = "127.44.0.1".parse().expect("an address");
    let ask = Arc::new(|client| panic!("the address {client} may be that of a tailnet client, too"));
    let options = Options { ask: Some(ask), pod_addresses: [pod].into(), ..Options::default() };
    let front = Front::with(routes(&backend), options).await;
    let stream = TcpStream::connect((pod, PORT)).await.expect("connected");
    let stream = front.secure(stream, NAME, "http/1.1").await.expect("TLS");
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let mut request = get1(&format!("https://{NAME}/path"));
    request.headers_mut().insert("tailscale-user-login", "root@example.com".parse().expect("a value"));
    let received = got(client.send_request(request)).await.echoed();
    assert_eq!((header(&received, "x-forwarded-for"), header(&received, "tailscale-user-login")), (Some("127.0.0.1"), None));
    let stream = forwarded_from("100.64.0.1:1", (pod, PORT).into()).await.expect("connected");
    assert!(front.secure(stream, NAME, "http/1.1").await.is_err(), "a PROXY header names no client there");
}

#[tokio::test]
async fn occupied_port_of_the_pod_stops_no_tailnet_listener() {
    let backend = Backend::new("a").await;
    let pod: IpAddr = "127.44.0.2".parse().expect("an address");
    let occupied = TcpListener::bind((pod, PORT)).await.expect("a free port");
    let mut front = Front::with(routes(&backend), Options { pod_addresses: [pod].into(), ..Options::default() }).await;
    let status = front.placed("svc:web", |status| status.ports.len() == 1).await;
    assert!(status.faults[&PORT].contains("127.44.0.2"), "it is reported: {status:?}");
    front.forwarded("svc:web", PORT).await.expect("connected");
    drop(occupied);
    until_async("the retry", DEADLINE, async || TcpStream::connect((pod, PORT)).await.is_ok()).await;
    front.placed("svc:web", |status| status.faults.is_empty()).await;
}

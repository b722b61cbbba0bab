use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::runtime::tasks::Tasks;

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

async fn start(routes: Routes, limits: Limits) -> Running {
    let server = AdminServer::bind("127.0.0.1:0".parse().expect("an address"), routes, limits).await.expect("a free port");
    let (stop, stopped) = oneshot::channel();
    let address = server.address();
    let done = tokio::spawn(server.serve(async { drop(stopped.await) }));
    Running { address, stop, done }
}

/// Sends these bytes and returns everything that the server sends until it closes.
async fn say(address: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(bytes.as_bytes()).await.expect("sent");
    let mut response = Vec::new();
    timeout(Duration::from_secs(10), stream.read_to_end(&mut response)).await.expect("an end").expect("read");
    String::from_utf8(response).expect("text")
}

/// A GET on a connection of its own.
async fn get(address: SocketAddr, path: &str) -> String {
    say(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
}

/// Routes whose path `/wait` answers once the second signal is given; the first signals that the request has begun.
fn gated() -> (Routes, Arc<Notify>, Arc<Notify>) {
    let (inside, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (entered, gate) = (Arc::clone(&inside), Arc::clone(&go));
    let routes = routes().with("/wait", move |_| {
        let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
        async move {
            entered.notify_one();
            gate.notified().await;
            text(StatusCode::OK, "done")
        }
    });
    (routes, inside, go)
}

fn routes() -> Routes {
    Routes::default().with("/hello", |ask| async move { text(StatusCode::OK, format!("hello {}", ask.query)) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn liveness_fails_while_a_task_is_blocked_and_names_it() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let mut tasks = Tasks::default();
    let heartbeats = tasks.heartbeats();
    tasks.run_forever("blocked", async move {
        let _ = blocked.recv();
    });
    let routes = Routes::default().with("/livez", move |_| std::future::ready(liveness(&heartbeats, Duration::from_secs(2))));
    let server = start(routes, Limits::default()).await;
    let ask = || get(server.address, "/livez");
    assert!(ask().await.starts_with("HTTP/1.1 200"));
    let failed = timeout(Duration::from_secs(20), async {
        loop {
            let answer = ask().await;
            if !answer.starts_with("HTTP/1.1 200") {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let answer = failed.await.expect("noticed");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("tasks that have not run for 2s: blocked\n"), "{answer}");
    drop(release);
    drop(tasks.run(Duration::from_secs(1)).await);
    assert!(ask().await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let server = start(routes(), Limits::default()).await;
    let response = get(server.address, "/hello?you").await;
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("\r\n\r\nhello you"), "{response}");
    let response = get(server.address, "/other").await;
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    let response = say(server.address, "DELETE /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 405") && response.contains("allow: GET, HEAD"), "{response}");
}

#[tokio::test]
async fn request_with_body_is_refused_unread() {
    let server = start(routes(), Limits::default()).await;
    let response = say(server.address, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\nab").await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

#[tokio::test]
async fn client_without_a_complete_head_is_disconnected() {
    let limits = Limits { header: Duration::from_millis(50), ..Limits::default() };
    let server = start(routes(), limits).await;
    let response = say(server.address, "GET /hello HTTP/1.1\r\nHost:").await;
    assert!(!response.contains("200"), "{response}");
    // A kept connection without a further request ends the same way.
    let response = say(server.address, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let limits = Limits { stall: Duration::from_millis(100), drain: Duration::from_hours(1), ..Limits::default() };
    let large = Bytes::from(vec![b'x'; 32 << 20]);
    let inside = Arc::new(Notify::new());
    let entered = Arc::clone(&inside);
    let routes = routes().with("/large", move |_| {
        entered.notify_one();
        std::future::ready(text(StatusCode::OK, large.clone()))
    });
    let server = start(routes, limits).await;
    let mut deaf = TcpStream::connect(server.address).await.expect("a connection");
    deaf.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    inside.notified().await;
    // The client keeps its side open; the server would wait for it.
    server.stop.send(()).expect("running");
    timeout(Duration::from_secs(10), server.done).await.expect("the connection is closed").expect("served");
}

/// Opens connections from a loopback address that send nothing.
async fn silent(from: [u8; 4], to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from((from, 0))).expect("an address of the loopback network");
        open.push(socket.connect(to).await.expect("a connection"));
    }
    open
}

#[tokio::test]
async fn silent_connections_do_not_delay_a_request() {
    // Neither the header timeout nor a closed connection frees a slot.
    let server = start(routes(), Limits { header: Duration::from_hours(1), ..Limits::default() }).await;
    for sources in [1, 200] {
        let mut open = Vec::new();
        for source in 0..sources {
            open.extend(silent([127, 0, 1, source], server.address, 400 / usize::from(sources)).await);
        }
        let before = Instant::now();
        let answer = get(server.address, "/hello").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(before.elapsed() < Duration::from_secs(1), "{sources} sources: {:?}", before.elapsed());
    }
}

#[tokio::test]
async fn silent_client_is_disconnected_within_the_head_timeout() {
    let server = start(routes(), Limits::default()).await;
    let mut open = silent([127, 0, 0, 1], server.address, 1).await;
    let read = timeout(Duration::from_secs(5), open[0].read(&mut [0; 1])).await;
    assert_eq!(read.expect("an end").ok(), Some(0));
}

#[tokio::test]
async fn oldest_idle_connection_makes_room_and_a_request_in_progress_goes_on() {
    let (routes, inside, go) = gated();
    let limits = Limits { connections: 4, per_source: 2, header: Duration::from_hours(1), ..Limits::default() };
    let server = start(routes, limits).await;
    let waiting = tokio::spawn(get(server.address, "/wait"));
    inside.notified().await;
    let mut own = silent([127, 0, 0, 1], server.address, 2).await;
    let closed = timeout(Duration::from_secs(10), own[0].read(&mut [0; 1])).await.expect("closed for the next of the same source");
    assert_eq!(closed.ok(), Some(0));
    let others = silent([127, 0, 0, 2], server.address, 2).await;
    let _more = silent([127, 0, 0, 3], server.address, 1).await;
    let closed = timeout(Duration::from_secs(10), own[1].read(&mut [0; 1])).await.expect("closed for the fifth of all");
    assert_eq!(closed.ok(), Some(0));
    assert!(others.iter().all(|other| other.try_read(&mut [0; 1]).is_err()), "newer ones stay open");
    go.notify_one();
    assert!(waiting.await.expect("asked").ends_with("done"));
}

#[tokio::test]
async fn open_requests_finish_when_the_server_ends() {
    let (routes, inside, go) = gated();
    let server = start(routes, Limits::default()).await;
    let request = tokio::spawn(say(server.address, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    inside.notified().await;
    server.stop.send(()).expect("running");
    go.notify_one();
    assert!(request.await.expect("asked").ends_with("done"));
    server.done.await.expect("served");
    assert!(TcpStream::connect(server.address).await.is_err(), "still listening");
}

#[tokio::test]
async fn request_that_does_not_finish_is_cut_off_after_the_drain_time() {
    let drain = Duration::from_millis(50);
    let (routes, inside, _never) = gated();
    let server = start(routes, Limits { drain, ..Limits::default() }).await;
    let request = tokio::spawn(say(server.address, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"));
    inside.notified().await;
    let before = Instant::now();
    server.stop.send(()).expect("running");
    // The request never ends by itself: the end of the server aborts it.
    timeout(Duration::from_secs(30), server.done).await.expect("an end").expect("served");
    assert!(before.elapsed() >= drain, "not before its time: {:?}", before.elapsed());
    assert_eq!(request.await.expect("asked"), "", "closed without an answer");
}

#[tokio::test]
async fn address_in_use_is_a_typed_error() {
    let server = start(routes(), Limits::default()).await;
    let error = AdminServer::bind(server.address, routes(), Limits::default()).await.err().expect("taken");
    assert_eq!(error.reason(), "AddressInUse");
}

//! HTTP backends: each echoes its name and the request, streams the request body, or switches protocols.

use super::front::DEADLINE;
use crate::wait::until_async;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::copy;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

type Body = BoxBody<Bytes, hyper::Error>;

/// A running backend.
pub struct Backend {
    pub address: SocketAddr,
    pub state: Arc<State>,
    tasks: JoinSet<()>,
}

/// Counters of a backend, and the release of its delayed responses.
#[derive(Default)]
pub struct State {
    name: String,
    pub requests: AtomicUsize,
    pub connections: AtomicUsize,
    /// The paths of the requests.
    pub paths: Mutex<Vec<String>>,
    /// Held by every connection that is open.
    open: Arc<()>,
    /// Releases requests to `/hold`.
    pub go: Notify,
}

impl State {
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }
}

impl Backend {
    /// A backend with HTTP/1.1 and HTTP/2 in clear text.
    pub async fn new(name: &str) -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address"), name, None).await
    }

    /// A backend with both over TLS, with an untrusted certificate.
    pub async fn over_tls(name: &str, alpn: &[&str]) -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address"), name, Some(Self::untrusted(alpn))).await
    }

    /// TLS with an untrusted certificate.
    pub fn untrusted(alpn: &[&str]) -> TlsAcceptor {
        let made = rcgen::generate_simple_self_signed(vec!["backend".to_owned()]).expect("a certificate");
        let chain = CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
        let mut config = builder.with_no_client_auth().with_single_cert(vec![chain], key).expect("a config");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config).into()
    }

    /// Ends it with all its connections.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        until_async("its connections are closed", DEADLINE, async || self.state.open() == 0).await;
    }

    pub async fn at(address: SocketAddr, name: &str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State { name: name.to_owned(), ..State::default() });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state), tls));
        Self { address, state, tasks }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        state.connections.fetch_add(1, Ordering::SeqCst);
        let (state, tls, open) = (Arc::clone(&state), tls.clone(), Arc::clone(&state.open));
        let service = service_fn(move |request| {
            let state = Arc::clone(&state);
            async move { Ok::<_, Infallible>(answer(&state, request).await) }
        });
        connections.spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            // Errors of a connection are left to the other side.
            let _ = match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await,
                    Err(_) => Ok(()),
                },
                None => builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await,
            };
            drop(open);
        });
    }
}

async fn answer(state: &State, mut request: Request<Incoming>) -> Response<Body> {
    state.requests.fetch_add(1, Ordering::SeqCst);
    state.paths.lock().expect("no panic").push(request.uri().path().to_owned());
    match request.uri().path() {
        // As a kubelet: sessions of `exec` echo what they receive, or send bytes until they are closed.
        path if path == "/ws" || path.ends_with("/exec") || path.starts_with("/exec/") => upgrade(&mut request),
        // As gRPC does it: every message comes back, and the status is a trailer.
        "/stream" => {
            let (sender, mut frames) = mpsc::channel::<Result<Frame<Bytes>, hyper::Error>>(8);
            tokio::spawn(async move {
                while let Some(Ok(frame)) = request.body_mut().frame().await {
                    let _ = sender.send(Ok(frame)).await;
                }
                let trailers: HeaderMap = [("grpc-status".parse().expect("a name"), "0".parse().expect("a value"))].into_iter().collect();
                let _ = sender.send(Ok(Frame::trailers(trailers))).await;
            });
            let stream = futures_util::stream::poll_fn(move |cx| frames.poll_recv(cx));
            Response::builder().header("content-type", "application/grpc").body(BodyExt::boxed(StreamBody::new(stream))).expect("an answer")
        }
        "/some/304" => Response::builder().status(StatusCode::NOT_MODIFIED).header("etag", "x").body(whole("")).expect("an answer"),
        "/some/204" => Response::builder().status(StatusCode::NO_CONTENT).body(whole("")).expect("an answer"),
        // As much as the client reads, without an end.
        "/endless" => {
            let chunk = futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10]))));
            Response::new(BodyExt::boxed(StreamBody::new(chunk)))
        }
        // The same, a byte at a time.
        "/drops" => {
            let chunk = futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(b"x"))));
            Response::new(BodyExt::boxed(StreamBody::new(chunk)))
        }
        "/hold" => {
            state.go.notified().await;
            Response::new(whole("held"))
        }
        _ => {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap_or_default();
            let trailers: Vec<_> = body.trailers().into_iter().flat_map(HeaderMap::keys).map(http::HeaderName::to_string).collect();
            let body = body.to_bytes();
            let headers: Vec<_> =
                parts.headers.iter().map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()))).collect();
            let echo = json!({"name": state.name, "method": parts.method.as_str(), "uri": parts.uri.to_string(),
                "version": format!("{:?}", parts.version), "headers": headers, "trailers": trailers, "length": body.len()});
            let answer = Response::builder().header("keep-alive", "timeout=5").header("x-backend", &state.name);
            if parts.method == Method::HEAD {
                return answer.header("content-length", echo.to_string().len()).body(whole("")).expect("an answer");
            }
            answer.body(whole(echo.to_string())).expect("an answer")
        }
    }
}

/// Begins a session of an upgraded connection.
fn upgrade(request: &mut Request<Incoming>) -> Response<Body> {
    let is_endless = request.uri().query().is_some_and(|query| query.contains("command=endless"));
    assert!(request.headers()[CONNECTION].to_str().is_ok_and(|value| value.eq_ignore_ascii_case("upgrade")));
    let protocol = request.headers()[UPGRADE].clone();
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded.await.expect("upgraded")));
        if is_endless {
            let _ = copy(&mut tokio::io::repeat(b'x'), &mut write).await;
        } else {
            let _ = copy(&mut read, &mut write).await;
        }
    });
    let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header(CONNECTION, "Upgrade");
    answer.header(UPGRADE, protocol).body(whole("")).expect("an answer")
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

/// The value of a header that a backend was sent (see [`answer`]).
pub fn header<'a>(echo: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let headers = echo["headers"].as_array().expect("headers");
    let mut found = headers.iter().filter(|header| header[0] == name);
    let value = found.next().and_then(|header| header[1].as_str());
    assert!(found.next().is_none(), "{name} was sent twice");
    value
}

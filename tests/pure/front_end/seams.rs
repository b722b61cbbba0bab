//! Another service behind the front end than virtual hosts: its routes, rights, credentials and responses, and its hook in tunnels.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tailyard::api::routes;
use tailyard::edge::files::replace;
use tailyard::model::front_end::vhosts::Vhost;
use tailyard::model::front_end::vhosts::headers::Upgrades;
use tailyard::proxy::front_end::client::ClientConnection;
use tailyard::proxy::front_end::credentials::UpstreamCredentials;
use tailyard::proxy::front_end::seams::{HttpService, OwnResponse, UpstreamTarget};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use kit::front_end::backend::{Backend, header};
use kit::front_end::front::{Authority, CLIENT, DEADLINE, Front, Options, ReceivedResponse, get1, get2, got, received_head, service, site};
use kit::wait::{eventually_async, until_async};

const NAME: &str = "api.tail.ts.net";
/// TLS server name of the backend of [`service`].
const SERVER: &str = "web.ns.svc";
/// Header of clients that have the right to the service.
const RIGHT: HeaderName = HeaderName::from_static("x-right");
/// Header by which the service names the client.
const USER: HeaderName = HeaderName::from_static("impersonate-user");
/// Header with the number of the request on its connection.
const NUMBER: HeaderName = HeaderName::from_static("x-number");

/// A service like a proxy of the API server.
#[derive(Debug)]
struct Guarded {
    credentials: UpstreamCredentials,
    revoked: watch::Receiver<bool>,
    log: Log,
}

/// Observations of a service.
#[derive(Debug, Clone, Default)]
struct Log {
    /// Path and status of each routed request.
    answered: Arc<Mutex<Vec<(String, u16)>>>,
    /// Bytes of clients in tunnels.
    recorded: Arc<Mutex<Vec<u8>>>,
}

struct GuardedRoute {
    backend: Arc<routes::Backend>,
    host: HeaderValue,
    path: PathAndQuery,
}

impl HttpService for Guarded {
    type Route = GuardedRoute;
    type Caller = AtomicUsize;

    fn route(
        &self,
        client: &ClientConnection<AtomicUsize>,
        site: &Vhost,
        request: &Parts,
        host: &HeaderValue,
        target: &PathAndQuery,
    ) -> Result<GuardedRoute, Box<OwnResponse>> {
        assert_eq!((client.service(), request.uri.path()), ("svc:api", target.path()));
        assert_eq!(client.over_tls(), client.port() == 443);
        let Some(path) = target.as_str().strip_prefix("/base").filter(|path| path.starts_with('/')) else {
            return Err(Box::new(own(StatusCode::NOT_FOUND, "no such path")));
        };
        let backend = Arc::clone(site.backends().next().expect("a backend"));
        Ok(GuardedRoute { backend, host: host.clone(), path: path.parse().expect("a path") })
    }

    async fn authorize(
        &self,
        client: &ClientConnection<AtomicUsize>,
        _route: &mut GuardedRoute,
        headers: &mut HeaderMap,
    ) -> Result<(), Box<OwnResponse>> {
        // As a lookup of the client does.
        tokio::task::yield_now().await;
        if headers.remove(RIGHT).is_none() {
            return Err(Box::new(own(StatusCode::FORBIDDEN, "no right")));
        }
        let address = client.tailnet_client().expect("a client of the tailnet").ip();
        headers.insert(USER, address.to_string().try_into().expect("a value"));
        headers.insert(NUMBER, client.caller.fetch_add(1, Ordering::Relaxed).into());
        Ok(())
    }

    fn upstream<'a>(&'a self, route: &'a GuardedRoute, headers: &mut HeaderMap) -> Result<UpstreamTarget<'a>, Box<OwnResponse>> {
        let unready = || Box::new(own(StatusCode::SERVICE_UNAVAILABLE, "no token"));
        headers.insert(AUTHORIZATION, self.credentials.authorization().ok_or_else(unready)?);
        Ok(UpstreamTarget { backend: &route.backend, tls: &self.credentials.tls, host: &route.host, path: &route.path })
    }

    fn respond(&self, _client: &ClientConnection<AtomicUsize>, status: StatusCode, message: &str) -> OwnResponse {
        own(status, message)
    }

    fn trailers(&self, _route: &GuardedRoute) -> fn(&mut HeaderMap) {
        HeaderMap::clear
    }

    fn answered(&self, _client: &ClientConnection<AtomicUsize>, route: &GuardedRoute, status: StatusCode, waited: Duration) {
        assert!(waited < DEADLINE);
        self.log.answered.lock().expect("no panic").push((route.path.path().to_owned(), status.as_u16()));
    }

    async fn tunnel<C, U>(&self, route: GuardedRoute, client: C, upstream: U)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
        U: AsyncRead + AsyncWrite + Unpin + Send,
    {
        assert_eq!(route.path, "/ws");
        let ((mut from_client, mut to_client), (mut from_upstream, mut to_upstream)) = (split(client), split(upstream));
        let up = async {
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
                self.log.recorded.lock().expect("no panic").extend_from_slice(&bytes[..read]);
                to_upstream.write_all(&bytes[..read]).await.expect("written");
            }
        };
        tokio::select! {
            () = up => {}
            _ = copy(&mut from_upstream, &mut to_client) => {}
        }
    }

    async fn revoked(&self, _client: &ClientConnection<AtomicUsize>) {
        let _ = self.revoked.clone().wait_for(|revoked| *revoked).await;
    }
}

fn own(status: StatusCode, message: &str) -> OwnResponse {
    let body = json!({"kind": "Status", "code": status.as_u16(), "message": message}).to_string();
    Response::builder().status(status).header(CONTENT_TYPE, "application/json").body(body.into()).expect("a response")
}

/// A front end with this service, its backend, and the files of its credentials.
struct Stage {
    front: Front,
    backend: Backend,
    files: TempDir,
    log: Log,
    revoked: watch::Sender<bool>,
}

/// A backend with a certificate of an authority, for clients with another certificate of it.
async fn backend(address: &str, authority: &Authority, alpn: &[&str]) -> Backend {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("a certificate")).expect("added");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build().expect("a verifier");
    let pair = authority.pair(SERVER);
    let chain = CertificateDer::from_pem_slice(&pair.chain).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(&pair.key).expect("a key");
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_client_cert_verifier(verifier).with_single_cert(vec![chain], key).expect("a config");
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Backend::at(address.parse().expect("an address"), "a", Some(Arc::new(config).into())).await
}

/// Replaces the CA bundle and the client certificate.
fn trust(files: &Path, authority: &Authority) {
    let own = authority.pair("proxy");
    for (name, content) in [("tls.crt", &*own.chain), ("tls.key", &*own.key), ("ca.crt", authority.pem().as_bytes())] {
        replace(&files.join(name), content).expect("written");
    }
}

impl Stage {
    async fn new(authority: &Authority, alpn: &[&str]) -> Self {
        let backend = backend("127.0.0.1:0", authority, alpn).await;
        let files = TempDir::new().expect("a directory");
        trust(files.path(), authority);
        replace(&files.path().join("token"), b"one\n").expect("written");
        let (credentials, work) = UpstreamCredentials::follow(files.path().to_owned()).expect("set up");
        tokio::spawn(work);
        let (revoked, revocation) = watch::channel(false);
        let log = Log::default();
        let guarded = Guarded { credentials: credentials.clone(), revoked: revocation, log: log.clone() };
        let mut site = site(NAME, &service(backend.address, "https"));
        site["listeners"] = json!({"443": "https", "80": "http"});
        let options = Options { upgrades: Upgrades::read("spdy/3.1").expect("a protocol"), ..Options::default() };
        let front = Front::serving(json!({"svc:api": site}), options, guarded).await;
        until_async("the token is read", DEADLINE, async || credentials.authorization().is_some()).await;
        Self { front, backend, files, log, revoked }
    }

    /// A GET of a client that has the right, with more headers.
    async fn get(&self, path: &str, headers: &[(&'static str, &'static str)]) -> ReceivedResponse {
        let mut request = get1(&format!("https://{NAME}{path}"));
        request.headers_mut().insert(RIGHT, HeaderValue::from_static("1"));
        for &(name, value) in headers {
            request.headers_mut().append(name, HeaderValue::from_static(value));
        }
        got(self.front.http1("svc:api", NAME).await.send_request(request)).await
    }

    /// A connection without TLS after this request head, and the response head in lower case.
    async fn raw(&self, head: &str) -> (TcpStream, String) {
        let mut stream = self.front.forwarded("svc:api", 80).await.expect("connected");
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.expect("sent");
        let head = received_head(&mut stream).await;
        (stream, head)
    }

    /// An open tunnel.
    async fn tunnel(&self) -> TcpStream {
        let (stream, answer) = self.raw(&upgrade_to("SPDY/3.1")).await;
        assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: spdy/3.1"), "{answer}");
        stream
    }
}

fn upgrade_to(protocol: &str) -> String {
    format!("GET /base/ws HTTP/1.1\r\nHost: {NAME}\r\nX-Right: 1\r\nConnection: Upgrade\r\nUpgrade: {protocol}")
}

/// Code of a response that the service composed.
fn code(answer: &ReceivedResponse) -> Value {
    assert_eq!(answer.headers[CONTENT_TYPE], "application/json");
    let status: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(answer.status.as_u16())));
    assert!(status["message"].as_str().is_some_and(|message| !message.is_empty() && message.trim() == message), "{status}");
    status["code"].clone()
}

#[tokio::test]
async fn service_routes_authorizes_and_names_the_upstream() {
    for alpn in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        let stage = Stage::new(&Authority::new(), alpn).await;
        let claims = [
            ("connection", "impersonate-user, authorization, x-number"),
            ("impersonate-user", "root"),
            ("authorization", "Bearer stolen"),
            ("x-number", "7"),
        ];
        let answer = stage.get("/base/x//y?z=%2f", &claims).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let received = answer.echoed();
        let version = if alpn.contains(&"h2") { "HTTP/2.0" } else { "HTTP/1.1" };
        assert_eq!(received["version"], version);
        assert!(received["uri"].as_str().is_some_and(|uri| uri.ends_with("/x//y?z=%2f") && !uri.contains("base")), "{received}");
        let client = CLIENT.split(':').next();
        for (name, expected) in [("impersonate-user", client), ("authorization", Some("Bearer one")), ("x-number", Some("0"))] {
            assert_eq!(header(&received, name), expected, "{name}");
        }
        assert_eq!((header(&received, "x-right"), header(&received, "x-forwarded-for")), (None, None));
        assert_eq!(*stage.log.answered.lock().expect("no panic"), [("/x//y".to_owned(), 200)]);
    }
}

#[tokio::test]
async fn state_of_a_connection_is_shared_by_its_requests() {
    let stage = Stage::new(&Authority::new(), &["http/1.1"]).await;
    for _ in 0..2 {
        let client = stage.front.http2("svc:api", NAME).await;
        for number in ["0", "1", "2"] {
            let mut request = get2(&format!("https://{NAME}/base/"));
            request.headers_mut().insert(RIGHT, HeaderValue::from_static("1"));
            assert_eq!(header(&got(client.clone().send_request(request)).await.echoed(), "x-number"), Some(number));
        }
    }
}

#[tokio::test]
async fn refused_request_reaches_no_upstream_and_own_responses_are_of_the_service() {
    let stage = Stage::new(&Authority::new(), &["http/1.1"]).await;
    let mut client = stage.front.http1("svc:api", NAME).await;
    let refused = got(client.send_request(get1(&format!("https://{NAME}/base/x")))).await;
    assert_eq!(code(&refused), 403);
    assert_eq!(code(&stage.get("/nowhere", &[]).await), 404);
    assert_eq!(code(&stage.get("/base/x", &[("host", "another.ts.net")]).await), 400);
    let (_, answer) = stage.raw(&format!("CONNECT {NAME}:443 HTTP/1.1\r\nHost: {NAME}:443")).await;
    assert!(answer.starts_with("http/1.1 405") && answer.contains("application/json"), "{answer}");
    assert_eq!(stage.backend.state.requests(), 0);
    stage.backend.stop().await;
    let mut request = get1(&format!("https://{NAME}/base/y"));
    request.headers_mut().insert(RIGHT, HeaderValue::from_static("1"));
    client.ready().await.expect("the connection stays open after a refusal");
    assert_eq!(code(&got(client.send_request(request)).await), 502);
    let answered = [("/x".to_owned(), 403), ("/y".to_owned(), 502)];
    assert_eq!(*stage.log.answered.lock().expect("no panic"), answered);
    let counts = stage.front.front_end.stats.sample()["svc:api"].codes;
    assert_eq!(counts, [0, 0, 0, 4, 1], "of the listener");
}

#[tokio::test]
async fn replaced_token_and_certificates_are_used_without_a_restart() {
    let (old, new) = (Authority::new(), Authority::new());
    let mut stage = Stage::new(&old, &["h2", "http/1.1"]).await;
    // Requests to endpoints are repeated if a pooled connection breaks.
    stage.front.answers(&[(stage.backend.address, "a")]);
    assert_eq!(stage.get("/base/", &[]).await.status, StatusCode::OK);
    replace(&stage.files.path().join("token"), b"two").expect("written");
    let token = async || header(&stage.get("/base/", &[]).await.echoed(), "authorization").map(str::to_owned);
    eventually_async("the new token", DEADLINE, token, |token| token.as_deref() == Some("Bearer two")).await;
    std::fs::remove_file(stage.files.path().join("tls.key")).expect("removed");
    for (name, content) in [("ca.crt", "none"), ("token", "three")] {
        replace(&stage.files.path().join(name), content.as_bytes()).expect("written");
    }
    let token = async || header(&stage.get("/base/", &[]).await.echoed(), "authorization").map(str::to_owned);
    eventually_async("the new files", DEADLINE, token, |token| token.as_deref() == Some("Bearer three")).await;
    let address = stage.backend.address.to_string();
    stage.backend.stop().await;
    stage.backend = backend(&address, &old, &["h2", "http/1.1"]).await;
    assert_eq!(stage.get("/base/", &[]).await.status, StatusCode::OK, "a broken bundle and a certificate without key change nothing");
    stage.backend.stop().await;
    stage.backend = backend(&address, &new, &["h2", "http/1.1"]).await;
    assert_eq!(code(&stage.get("/base/", &[]).await), 502, "the server is not trusted");
    assert_eq!(stage.backend.state.requests(), 0);
    trust(stage.files.path(), &new);
    let status = async || stage.get("/base/", &[]).await.status;
    eventually_async("the new authority", DEADLINE, status, |status| *status == StatusCode::OK).await;
}

#[tokio::test]
async fn certificate_of_the_client_is_the_one_of_the_files() {
    let authority = Authority::new();
    let stage = Stage::new(&authority, &["http/1.1"]).await;
    assert_eq!(stage.get("/base/", &[]).await.status, StatusCode::OK);
    for name in ["tls.crt", "tls.key"] {
        std::fs::remove_file(stage.files.path().join(name)).expect("removed");
    }
    // The backend requires one, and the connection of the former one is not used.
    let status = async || stage.get("/base/", &[]).await.status;
    eventually_async("no certificate", DEADLINE, status, |status| *status == StatusCode::BAD_GATEWAY).await;
    let before = stage.backend.state.requests();
    assert_eq!(code(&stage.get("/base/", &[]).await), 502);
    assert_eq!(stage.backend.state.requests(), before);
    trust(stage.files.path(), &authority);
    let status = async || stage.get("/base/", &[]).await.status;
    eventually_async("the new certificate", DEADLINE, status, |status| *status == StatusCode::OK).await;
}

#[tokio::test]
async fn server_with_the_name_of_another_service_is_refused() {
    let stage = Stage::new(&Authority::new(), &["http/1.1"]).await;
    assert_eq!(stage.get("/base/", &[]).await.status, StatusCode::OK);
    let renamed = json!({"svc:api": site(NAME, &json!({"namespace": "ns", "service": "other", "portName": "http",
        "address": stage.backend.address.to_string(), "protocol": "https"}))});
    stage.front.route(&renamed);
    let status = async || stage.get("/base/", &[]).await.status;
    eventually_async("the certificate is not for it", DEADLINE, status, |status| *status == StatusCode::BAD_GATEWAY).await;
    assert!(stage.front.front_end.stats.sample()["svc:api"].failures["Tls"] > 0);
}

#[tokio::test]
async fn bytes_of_a_tunnel_pass_the_service() {
    let stage = Stage::new(&Authority::new(), &["h2", "http/1.1"]).await;
    let mut tunnel = stage.tunnel().await;
    for part in ["one ", "two"] {
        tunnel.write_all(part.as_bytes()).await.expect("sent");
        let mut echo = vec![0; part.len()];
        timeout(DEADLINE, tunnel.read_exact(&mut echo)).await.expect("in time").expect("an echo");
        assert_eq!(echo, part.as_bytes());
    }
    assert_eq!(*stage.log.recorded.lock().expect("no panic"), b"one two");
    drop(tunnel);
    until_async("the connection ends", DEADLINE, async || *stage.front.front_end.stats.open().borrow() == 0).await;
    let (_, answer) = stage.raw(&upgrade_to("websocket")).await;
    assert!(answer.starts_with("http/1.1 502") && answer.contains("application/json"), "not permitted: {answer}");
    assert_eq!(stage.log.answered.lock().expect("no panic").iter().map(|(_, status)| *status).collect::<Vec<_>>(), [101, 502]);
}

#[tokio::test]
async fn revocation_closes_connections_with_requests_and_tunnels() {
    let stage = Stage::new(&Authority::new(), &["http/1.1"]).await;
    let mut tunnel = stage.tunnel().await;
    let mut client = stage.front.http1("svc:api", NAME).await;
    let mut request = get1(&format!("https://{NAME}/base/endless"));
    request.headers_mut().insert(RIGHT, HeaderValue::from_static("1"));
    let answer = client.send_request(request).await.expect("a response");
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(*stage.front.front_end.stats.open().borrow(), 2);
    stage.revoked.send_replace(true);
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, tunnel.read_to_end(&mut rest)).await.expect("the tunnel ends");
    until_async("all connections end", DEADLINE, async || *stage.front.front_end.stats.open().borrow() == 0).await;
}

#[tokio::test]
async fn trailers_pass_the_filter_of_the_service() {
    let stage = Stage::new(&Authority::new(), &["h2", "http/1.1"]).await;
    let stream = stage.front.tls("svc:api", NAME, "h2").await.expect("TLS");
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let trailers: HeaderMap = [(USER, HeaderValue::from_static("root")), (NUMBER, HeaderValue::from_static("7"))].into_iter().collect();
    let frames = [Frame::data(Bytes::from_static(b"abc")), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let request = Request::post(format!("https://{NAME}/base/")).header(RIGHT, "1").body(body).expect("a request");
    let received = got(client.send_request(request)).await.echoed();
    assert_eq!((&received["trailers"], &received["length"]), (&json!([]), &json!(3)));
}

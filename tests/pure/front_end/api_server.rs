//! API server proxy: identity, attackers, credentials, streams, failures and revocation, with a scripted API server and WhoIs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tailyard::api::whois::WhoIs;
use tailyard::edge::files::replace;
use tailyard::edge::localapi::LocalApiError;
use tailyard::model::api_server::base_path::BasePath;
use tailyard::model::api_server::request_info::StreamKind;
use tailyard::model::base::netmap::{NetMap, SelfNode};
use tailyard::model::front_end::vhosts::shares::Shares;
use tailyard::model::settings::{Flags, Settings};
use tailyard::proxy::api_server::ApiServerService;
use tailyard::proxy::api_server::callers::Callers;
use tailyard::proxy::api_server::stats::ApiServerStats;
use tailyard::proxy::front_end::Limits;
use tailyard::proxy::front_end::credentials::UpstreamCredentials;
use tailyard::proxy::front_end::identify::WhoIsLookup;
use tailyard::proxy::front_end::vhosts::VhostService;
use tailyard::proxy::ingress::services::SiteService;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use kit::front_end::backend::{Backend, header};
use kit::front_end::front::{
    Authority, CLIENT, DEADLINE, Front, Options, ReceivedResponse, forwarded_from, get1, get2, got, received_head, site,
};
use kit::front_end::refusing::{RefusedBy, Refusing};
use kit::wait::{eventually_async, until_async};

use super::messages;

mod attackers;

const NAME: &str = "kube.tail.ts.net";
/// Address of the API server, for which its certificate is.
const SERVER: &str = "127.0.0.1";
/// A client on a tagged node.
const TAGGED: &str = "100.64.0.8:50000";
/// A client that tailscaled does not know.
const STRANGER: &str = "100.64.0.7:50000";
/// A client for which tailscaled does not answer.
const HANGING: &str = "100.64.0.6:50000";
const BOB: &str = "100.64.0.5:50000";
const PODS: &str = "/api/v1/namespaces/ns/pods";
const EXEC: &str = "/api/v1/namespaces/ns/pods/p/exec";
const ALPN: &[&str] = &["h2", "http/1.1"];

/// Headers by which a client names another user, brings credentials or claims another address.
const CLAIMS: [(&str, &str); 14] = [
    ("authorization", "Bearer stolen"),
    ("impersonate-user", "root"),
    ("impersonate-group", "system:masters"),
    ("impersonate-uid", "0"),
    ("impersonate-extra-scopes", "all"),
    ("impersonate-extra-tailyard.io%2fnode", "other"),
    ("impersonate_user", "root"),
    ("impersonate.group", "system:masters"),
    ("x-remote-user", "root"),
    ("x_remote_group", "system:masters"),
    ("x-remote-extra-scopes", "all"),
    ("tailscale-user-login", "root"),
    ("x-forwarded-for", "10.0.0.1"),
    ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.c3RvbGVu, v5.channel.k8s.io"),
];

type Answers = Arc<Mutex<BTreeMap<IpAddr, Value>>>;

struct Stage {
    front: Front,
    backend: Backend,
    authority: Authority,
    files: TempDir,
    /// Response of WhoIs by address.
    whois: Answers,
    lookups: Arc<AtomicUsize>,
    netmap: watch::Sender<Option<Arc<NetMap>>>,
    stats: ApiServerStats,
}

fn user(login: &str, rules: &Value) -> Value {
    json!({"Node": {"Name": "laptop.tail.ts.net."}, "UserProfile": {"LoginName": login}, "CapMap": {"tailscale.com/cap/kubernetes": rules}})
}

/// A netmap that equals none before.
fn new_netmap() -> Arc<NetMap> {
    let node = SelfNode { name: "kube-0.tail.ts.net.".to_owned(), ..SelfNode::default() };
    Arc::new(NetMap { node: Some(node), ..NetMap::default() })
}

fn groups(groups: &[&str]) -> Value {
    json!([{"impersonate": {"groups": groups}}])
}

fn address(client: &str) -> IpAddr {
    client.parse::<SocketAddr>().expect("an address").ip()
}

/// An API server with a certificate of the authority.
async fn api_server(at: &str, authority: &Authority, alpn: &[&str]) -> Backend {
    let pair = authority.pair(SERVER);
    let chain = CertificateDer::from_pem_slice(&pair.chain).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(&pair.key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_no_client_auth().with_single_cert(vec![chain], key).expect("a config");
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Backend::at(at.parse().expect("an address"), "a", Some(Arc::new(config).into())).await
}

fn sites(settings: &Value, upstream: SocketAddr, protocol: &str) -> Value {
    let backend = json!({"address": upstream.to_string(), "protocol": protocol});
    json!({"svc:kube": {"hosts": {NAME: {"secret": NAME, "issue": true}}, "listeners": {"443": "https", "80": "http", "81": "redirect"},
        "routes": [{"path": "/", "backend": backend}], "apiServer": settings}})
}

impl Stage {
    async fn new() -> Self {
        Self::with(&json!({"mode": "auth"}), ALPN).await
    }

    async fn with(settings: &Value, alpn: &[&str]) -> Self {
        let authority = Authority::new();
        let backend = api_server("127.0.0.1:0", &authority, alpn).await;
        let upstream = backend.address;
        Self::at(&sites(settings, upstream, "https"), authority, backend).await
    }

    async fn at(sites: &Value, authority: Authority, backend: Backend) -> Self {
        Self::opened(sites, authority, backend, Options::default()).await
    }

    /// With the base path of the replica's variable.
    async fn below(path: &str, alpn: &[&str]) -> Self {
        let authority = Authority::new();
        let backend = api_server("127.0.0.1:0", &authority, alpn).await;
        let url = format!("https://{}{path}", backend.address);
        let env = [("KUBERNETES_SERVICE_HOST", "10.96.0.1".to_owned()), ("TAILYARD_API_SERVER_URL", url)];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let upstream = Settings::read(&env, &Flags::proxy()).expect("settings").api_server.expect("an API server");
        assert_eq!(upstream.backend.address, backend.address.to_string());
        let sites = sites(&json!({"mode": "auth"}), backend.address, "https");
        Self::set(&sites, authority, backend, Options::default(), (upstream.base, true)).await
    }

    async fn opened(sites: &Value, authority: Authority, backend: Backend, options: Options) -> Self {
        Self::set(sites, authority, backend, options, (BasePath::default(), true)).await
    }

    async fn set(
        sites: &Value,
        authority: Authority,
        backend: Backend,
        options: Options,
        (base, end_revoked_streams): (BasePath, bool),
    ) -> Self {
        let files = TempDir::new().expect("a directory");
        replace(&files.path().join("ca.crt"), authority.pem().as_bytes()).expect("written");
        replace(&files.path().join("token"), b"one\n").expect("written");
        let (credentials, work) = UpstreamCredentials::follow(files.path().to_owned()).expect("set up");
        tokio::spawn(work);
        let whois = Answers::default();
        whois.lock().expect("no panic").extend([
            (address(CLIENT), user("alice@example.com", &groups(&["dev", "ops"]))),
            (address(BOB), user("bob@example.com", &groups(&["qa"]))),
            (
                address(TAGGED),
                json!({"Node": {"Name": "ci.tail.ts.net.", "Tags": ["tag:ci"]}, "UserProfile": {"LoginName": "alice@example.com"}}),
            ),
            (address(HANGING), Value::Null),
        ]);
        let lookups = Arc::new(AtomicUsize::new(0));
        let lookup: WhoIsLookup<WhoIs> = {
            let (whois, lookups) = (Arc::clone(&whois), Arc::clone(&lookups));
            Arc::new(move |client: SocketAddr| {
                lookups.fetch_add(1, Ordering::SeqCst);
                let answer = whois.lock().expect("no panic").get(&client.ip()).cloned();
                Box::pin(async move {
                    match answer {
                        Some(Value::Null) => Err(LocalApiError::Deadline { call: "whois", after: Duration::ZERO }),
                        answer => {
                            let whois = answer.map(|answer| serde_json::from_value(answer).expect("an answer"));
                            Ok((tokio::time::Instant::now(), whois))
                        }
                    }
                })
            })
        };
        let (netmap, netmap_seen) = watch::channel(Some(new_netmap()));
        let api_server = ApiServerService::new(
            Callers::new(Box::new(move |_| Arc::clone(&lookup)), netmap_seen),
            credentials.clone(),
            base,
            end_revoked_streams,
        );
        let stats = api_server.stats();
        let service = SiteService { vhosts: VhostService::new(None).expect("set up"), api_server };
        let front = Front::serving(sites.clone(), options, service).await;
        until_async("the token is read", DEADLINE, async || credentials.authorization().is_some()).await;
        Self { front, backend, authority, files, whois, lookups, netmap, stats }
    }

    /// The response to a request without TLS for this host, at this port.
    async fn plain(&self, port: u16, host: &str) -> String {
        let mut stream = self.front.forwarded("svc:kube", port).await.expect("connected");
        let request = format!("GET {PODS} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("in time").expect("a response");
        answer
    }

    fn knows(&self, client: &str, answer: Value) {
        self.whois.lock().expect("no panic").insert(address(client), answer);
        self.netmap.send_replace(Some(new_netmap()));
    }

    async fn stream(&self, client: &str, alpn: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let stream = forwarded_from(client, self.front.at("svc:kube", 443)).await.expect("connected");
        self.front.secure(stream, NAME, alpn).await.expect("TLS")
    }

    async fn http1(&self, client: &str) -> http1::SendRequest<Full<Bytes>> {
        let (sender, connection) = http1::handshake(TokioIo::new(self.stream(client, "http/1.1").await)).await.expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    async fn http2(&self, client: &str) -> http2::SendRequest<Full<Bytes>> {
        let stream = self.stream(client, "h2").await;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    /// A GET on a connection of its own.
    async fn get(&self, client: &str, path: &str, headers: &[(&str, &str)]) -> ReceivedResponse {
        let mut request = get1(&format!("https://{NAME}{path}"));
        for (name, value) in headers {
            request.headers_mut().append(name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"));
        }
        got(self.http1(client).await.send_request(request)).await
    }

    /// A TLS connection after these bytes, and the response head in lower case.
    async fn raw(&self, client: &str, bytes: &str) -> (tokio_rustls::client::TlsStream<TcpStream>, String) {
        let mut stream = self.stream(client, "http/1.1").await;
        stream.write_all(bytes.as_bytes()).await.expect("sent");
        let head = received_head(&mut stream).await;
        (stream, head)
    }

    /// An open session.
    async fn exec(&self, protocol: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let head = format!("POST {EXEC}?command=sh HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
        let (stream, answer) = self.raw(CLIENT, &head).await;
        assert!(answer.starts_with("http/1.1 101") && answer.contains(&protocol.to_ascii_lowercase()), "{answer}");
        stream
    }
}

/// All that a connection returns to these bytes, until it is closed.
async fn exchange(stream: impl AsyncRead + AsyncWrite, bytes: &[u8]) -> String {
    let (mut read, mut write) = tokio::io::split(stream);
    let mut answer = Vec::new();
    // The other side may close before it has read everything.
    let _ = timeout(DEADLINE, async { tokio::join!(write.write_all(bytes), read.read_to_end(&mut answer)) }).await.expect("closed in time");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Message of a response of the proxy itself.
fn status(answer: &ReceivedResponse, code: u16) -> String {
    assert_eq!((answer.status.as_u16(), answer.headers.get(CONTENT_TYPE)), (code, Some(&"application/json".parse().expect("a value"))));
    let status: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!((&status["kind"], &status["status"], &status["code"]), (&json!("Status"), &json!("Failure"), &json!(code)), "{status}");
    assert_eq!(answer.headers.contains_key(RETRY_AFTER), matches!(code, 429 | 503));
    status["message"].as_str().expect("a message").to_owned()
}

/// Users, groups and credentials of a request as the API server received it.
fn identity(received: &Value) -> (Vec<&str>, Vec<&str>, Vec<&str>) {
    let values = |name: &str| -> Vec<&str> {
        let headers = received["headers"].as_array().expect("headers").iter();
        headers.filter(|header| header[0] == name).filter_map(|header| header[1].as_str()).collect()
    };
    (values("impersonate-user"), values("impersonate-group"), values("authorization"))
}

#[tokio::test]
async fn identity_of_the_connection_replaces_every_claim_in_both_versions_of_http() {
    for alpn in [ALPN, &["http/1.1"], &[]] {
        let stage = Stage::with(&json!({"mode": "auth", "sendExtra": true}), alpn).await;
        let over_http1 = [&CLAIMS[..], &[("connection", "impersonate-user, impersonate-group, authorization, x-forwarded-for")]].concat();
        let first = stage.get(CLIENT, &format!("{PODS}?watch=0;x"), &over_http1).await;
        let mut request = get2(&format!("https://{NAME}{PODS}?watch=0;x"));
        for (name, value) in CLAIMS {
            request.headers_mut().append(name, HeaderValue::from_static(value));
        }
        let second = got(stage.http2(CLIENT).await.send_request(request)).await;
        for received in [first.echoed(), second.echoed()] {
            let expected = (vec!["alice@example.com"], vec!["dev", "ops"], vec!["Bearer one"]);
            assert_eq!(identity(&received), expected, "{received}");
            let text = received.to_string();
            for stolen in ["stolen", "root", "masters", "scopes", "c3RvbGVu", "10.0.0.1", "other"] {
                assert!(!text.contains(stolen), "{stolen}: {text}");
            }
            assert_eq!(header(&received, "impersonate-extra-tailyard.io%2fnode"), Some("laptop.tail.ts.net"));
            assert_eq!(header(&received, "sec-websocket-protocol"), Some("v5.channel.k8s.io"));
            assert_eq!(header(&received, "x-forwarded-for"), CLIENT.split(':').next());
            assert_eq!(header(&received, "x-forwarded-host"), Some(NAME));
            let authority = stage.backend.address.to_string();
            let is_sent_to_itself =
                header(&received, "host").map_or(received["uri"].to_string().contains(&authority), |host| host == authority);
            assert!(is_sent_to_itself, "{received}");
            assert!(received["uri"].as_str().is_some_and(|uri| uri.ends_with(&format!("{PODS}?watch=0;x"))), "{received}");
            assert_eq!(received["version"], if alpn.contains(&"h2") { "HTTP/2.0" } else { "HTTP/1.1" });
        }
    }
}

#[tokio::test]
async fn requests_that_servers_frame_differently_reach_no_api_server() {
    let stage = Stage::new().await;
    let post = format!("POST {PODS} HTTP/1.1\r\nHost: {NAME}\r\n");
    for head in [
        format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde"),
        format!("{post}Content-Length: +5\r\n\r\nabcde"),
        format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Host: other\r\n\r\n"),
        format!("GET https://{NAME}{PODS} HTTP/1.1\r\nHost: {NAME}\r\n\r\n"),
        format!("TRACE / HTTP/1.1\r\nHost: {NAME}\r\n\r\n"),
        format!("CONNECT {NAME}:443 HTTP/1.1\r\nHost: {NAME}:443\r\n\r\n"),
        format!("OPTIONS * HTTP/1.1\r\nHost: {NAME}\r\n\r\n"),
    ] {
        let (_, answer) = stage.raw(CLIENT, &head).await;
        assert!(answer.starts_with("http/1.1 40"), "{head}: {answer}");
    }
    assert_eq!(stage.backend.state.requests(), 0);
    // Chunks alone frame the body (RFC 9112, 6.1), and the connection ends.
    let both =
        format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let (mut stream, _) = stage.raw(CLIENT, &both).await;
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("the connection ends");
    assert_eq!(*stage.backend.state.paths.lock().expect("no panic"), [PODS]);
}

#[tokio::test]
async fn no_request_passes_by_an_upgrade_to_http() {
    let stage = Stage::new().await;
    let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";
    let (_, answer) = stage.raw(CLIENT, &format!("GET {PODS} HTTP/1.1\r\nHost: {NAME}\r\n{upgrade}\r\n")).await;
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("upgrade"), "{answer}");
    assert_eq!(stage.stats.sample().requests, [(("list", "pods", 200), 1)].into());
}

#[tokio::test]
async fn identity_in_trailers_is_removed() {
    const NAMES: [&str; 6] =
        ["impersonate-user", "impersonate_group", "impersonate-extra-scopes", "x-remote-user", "authorization", "x-harmless"];
    // HTTP/1.1 sends only the trailers that the header `Trailer` announces, and this proxy announces none.
    for (alpn, expected) in [(ALPN, json!(["x-harmless"])), (&["http/1.1"], json!([]))] {
        let stage = Stage::with(&json!({"mode": "auth"}), alpn).await;
        let stream = stage.stream(CLIENT, "h2").await;
        let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let trailers: HeaderMap = NAMES.map(|name| (HeaderName::from_static(name), HeaderValue::from_static("root"))).into_iter().collect();
        let frames = [Frame::data(Bytes::from_static(b"abc")), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let request = Request::post(format!("https://{NAME}{PODS}")).body(body).expect("a request");
        let over_http2 = got(client.send_request(request)).await.echoed();
        let fields = NAMES.map(|name| format!("{name}: root\r\n")).concat();
        let head =
            format!("POST {PODS} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close, TE\r\nTE: trailers\r\nTrailer: {}\r\n", NAMES.join(", "));
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{fields}\r\n");
        let over_http1 = messages::echo(exchange(stage.stream(CLIENT, "http/1.1").await, chunked.as_bytes()).await.as_bytes());
        for received in [over_http2, over_http1] {
            assert_eq!((&received["trailers"], &received["length"]), (&expected, &json!(3)), "{alpn:?}: {received}");
            assert_eq!(identity(&received), (vec!["alice@example.com"], vec!["dev", "ops"], vec!["Bearer one"]), "{alpn:?}");
            assert!(!received.to_string().contains("root"), "{received}");
        }
    }
}

#[tokio::test]
async fn tagged_node_is_no_user_whatever_it_claims() {
    let stage = Stage::new().await;
    let received = stage.get(TAGGED, PODS, &[("impersonate-user", "alice@example.com")]).await.echoed();
    assert_eq!(identity(&received), (vec!["ci.tail.ts.net"], vec!["tag:ci"], vec!["Bearer one"]));
    for name in ["alice@example.com.", "alice"] {
        let rules = &groups(&["dev"])[0];
        stage.knows(TAGGED, json!({"Node": {"Name": name, "Tags": ["tag:ci"]}, "CapMap": {"tailscale.com/cap/kubernetes": [rules]}}));
        assert!(status(&stage.get(TAGGED, PODS, &[]).await, 403).contains("a user and of a device alike"), "{name}");
    }
    assert_eq!(stage.backend.state.requests(), 1);
}

#[tokio::test]
async fn clients_without_identity_or_with_a_void_grant_get_a_status_with_the_cause() {
    let stage = Stage::new().await;
    assert!(status(&stage.get(STRANGER, PODS, &[]).await, 401).contains("unknown"));
    assert!(status(&stage.get(HANGING, PODS, &[]).await, 503).contains("tailscaled did not answer"));
    stage.knows(BOB, user("bob@example.com", &json!([{}, {"impersonate": {"groups": ["dev", 5]}}])));
    let message = status(&stage.get(BOB, PODS, &[]).await, 403);
    assert!(message.contains("rule 2 of tailscale.com/cap/kubernetes: impersonate.groups[1] must be a string"), "{message}");
    stage.knows(BOB, user("bob@example.com", &groups(&["system:masters"])));
    assert!(status(&stage.get(BOB, PODS, &[]).await, 403).contains("system:masters"));
    assert_eq!(stage.backend.state.requests(), 0);
    let refusals = stage.stats.sample().refusals;
    assert_eq!(refusals, [("Grants", 1), ("Subject", 1), ("Unidentified", 1), ("UnknownClient", 1)].into());
}

#[tokio::test]
async fn names_of_kubernetes_itself_pass_if_the_site_permits_them() {
    let stage = Stage::with(&json!({"mode": "auth", "permitSystem": ["system:masters"]}), ALPN).await;
    stage.knows(BOB, user("bob@example.com", &groups(&["system:masters"])));
    assert_eq!(identity(&stage.get(BOB, PODS, &[]).await.echoed()).1, ["system:masters"]);
    stage.knows(BOB, user("bob@example.com", &groups(&["system:masters", "system:nodes"])));
    assert!(status(&stage.get(BOB, PODS, &[]).await, 403).contains("system:nodes"));
}

#[tokio::test]
async fn sessions_under_an_enforced_recorder_are_refused() {
    let stage = Stage::new().await;
    stage.knows(CLIENT, user("alice@example.com", &json!([{"recorder": ["tag:rec"], "enforceRecorder": true}])));
    assert_eq!(stage.get(CLIENT, PODS, &[]).await.status, StatusCode::OK);
    for path in [EXEC, "/api/v1/namespaces/ns/pods/p/%65xec", "/api/v1/namespaces/ns/pods/x/../p/exec", "/api/v1/nodes/n/proxy/exec/ns/p/c"]
    {
        assert!(status(&stage.get(CLIENT, path, &[]).await, 403).contains("recorded"), "{path}");
    }
    let upgrade = format!("GET {PODS} HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert!(stage.raw(CLIENT, &upgrade).await.1.starts_with("http/1.1 403"));
    assert_eq!(stage.backend.state.requests(), 1);
}

#[tokio::test]
async fn mode_noauth_passes_the_credentials_of_the_client_and_no_others() {
    let stage = Stage::with(&json!({"mode": "noauth"}), ALPN).await;
    let own = [("authorization", "Bearer mine"), ("impersonate-user", "carol"), ("x-remote-user", "root")];
    let received = stage.get(CLIENT, PODS, &own).await.echoed();
    assert_eq!(identity(&received), (vec!["carol"], vec![], vec!["Bearer mine"]));
    assert_eq!(header(&received, "x-remote-user"), None);
    assert_eq!(identity(&stage.get(CLIENT, PODS, &[]).await.echoed()), (vec![], vec![], vec![]));
    assert_eq!(status(&stage.get(STRANGER, PODS, &own).await, 401), "the client's address is unknown in the tailnet");
}

#[tokio::test]
async fn pages_of_other_sites_use_no_identity_of_the_browser() {
    let stage = Stage::new().await;
    let origin = format!("https://{NAME}");
    assert_eq!(stage.get(CLIENT, PODS, &[("origin", origin.as_str())]).await.status, StatusCode::OK);
    for page in [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
        assert!(status(&stage.get(CLIENT, PODS, &[page]).await, 403).contains("another site"), "{page:?}");
    }
    // A page that a Pod serves would have the origin of the API server.
    for page in [("origin", origin.as_str()), ("sec-fetch-site", "none")] {
        let of_a_pod = stage.get(CLIENT, "/api/v1/namespaces/ns/services/s/proxy/", &[page]).await;
        assert!(status(&of_a_pod, 403).contains("another site"), "{page:?}");
    }
    let answer = stage.plain(80, "rebound.example").await;
    assert!(answer.starts_with("HTTP/1.1 421") && answer.contains("\"Status\""), "{answer}");
    assert_eq!(stage.backend.state.requests(), 1);
}

/// Over HTTP no browser sends `Sec-Fetch-Site`, nor an `Origin` in a GET request.
#[tokio::test]
async fn pages_of_pods_run_no_script_in_browsers_that_are_not_recognized() {
    const PAGES: [&str; 4] = [
        "/api/v1/namespaces/ns/services/s/proxy/",
        "/api/v1/namespaces/ns/pods/https:p:8443/proxy/page",
        "/api/v1/namespaces/ns/pods/p/%70roxy/page",
        "/api/v1/nodes/n/proxy/logs/",
    ];
    let is_sandboxed = async |stage: &Stage, path: &str| {
        let answer = stage.get(CLIENT, path, &[]).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        answer.headers.get_all("content-security-policy").iter().any(|policy| policy == "sandbox")
    };
    let stage = Stage::new().await;
    for page in PAGES {
        assert!(is_sandboxed(&stage, page).await, "{page}");
    }
    assert!(!is_sandboxed(&stage, PODS).await);
    let without_identity = Stage::with(&json!({"mode": "noauth"}), ALPN).await;
    assert!(!is_sandboxed(&without_identity, PAGES[0]).await, "the page has no credentials");
}

#[tokio::test]
async fn site_without_tls_is_served_under_its_names() {
    let stage = Stage::with(&json!({"mode": "auth", "names": ["plain.example"]}), ALPN).await;
    for (host, status) in [("plain.example", 200), ("Plain.example:80", 200), (NAME, 200), ("other.example", 421)] {
        let answer = stage.plain(80, host).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn port_that_redirects_sends_clients_to_https() {
    let stage = Stage::new().await;
    let answer = stage.plain(81, NAME).await;
    assert!(answer.starts_with("HTTP/1.1 301") && answer.contains(&format!("https://{NAME}{PODS}")), "{answer}");
}

#[tokio::test]
async fn replaced_token_and_authority_are_used_without_a_restart() {
    let mut stage = Stage::new().await;
    assert_eq!(identity(&stage.get(CLIENT, PODS, &[]).await.echoed()).2, ["Bearer one"]);
    replace(&stage.files.path().join("token"), b"two\n").expect("written");
    let token = async || stage.get(CLIENT, PODS, &[]).await.text();
    eventually_async("the new token", DEADLINE, token, |text| text.contains("Bearer two")).await;
    let (address, new) = (stage.backend.address.to_string(), Authority::new());
    stage.backend.stop().await;
    stage.backend = api_server(&address, &new, ALPN).await;
    assert_eq!(status(&stage.get(CLIENT, PODS, &[]).await, 503), "cannot connect to the API server", "it is not trusted");
    assert_eq!(stage.backend.state.requests(), 0);
    replace(&stage.files.path().join("ca.crt"), new.pem().as_bytes()).expect("written");
    let code = async || stage.get(CLIENT, PODS, &[]).await.status;
    eventually_async("the new authority", DEADLINE, code, |code| *code == StatusCode::OK).await;
    stage.authority = new;
}

#[tokio::test]
async fn connection_of_a_former_authority_gets_no_further_request() {
    for alpn in [ALPN, &["http/1.1"]] {
        let stage = Stage::with(&json!({"mode": "auth"}), alpn).await;
        assert_eq!(stage.get(CLIENT, PODS, &[]).await.status, StatusCode::OK);
        replace(&stage.files.path().join("ca.crt"), Authority::new().pem().as_bytes()).expect("written");
        let code = async || stage.get(CLIENT, PODS, &[]).await.status;
        eventually_async("no connection is trusted", DEADLINE, code, |code| *code == StatusCode::SERVICE_UNAVAILABLE).await;
        replace(&stage.files.path().join("ca.crt"), stage.authority.pem().as_bytes()).expect("written");
        eventually_async("a new connection", DEADLINE, code, |code| *code == StatusCode::OK).await;
    }
}

#[tokio::test]
async fn connection_of_a_virtual_host_whose_server_is_not_verified_is_none_to_the_api_server() {
    let unverified = Authority::new();
    let backend = api_server("127.0.0.1:0", &unverified, ALPN).await;
    let mut both = sites(&json!({"mode": "auth"}), backend.address, "https");
    both["svc:web"] = site("web.tail.ts.net", &both["svc:kube"]["routes"][0]["backend"]);
    let stage = Stage::at(&both, Authority::new(), backend).await;
    assert_eq!(stage.front.get("svc:web", "https://web.tail.ts.net/").await.status, StatusCode::OK);
    status(&stage.get(CLIENT, PODS, &[]).await, 503);
    assert_eq!(stage.backend.state.requests(), 1);
}

#[tokio::test]
async fn requests_discovery_and_sessions_go_below_the_base_path_of_the_api_server() {
    for alpn in [ALPN, &["http/1.1"]] {
        let stage = Stage::below("/k8s/clusters/c-1/", alpn).await;
        for path in
            ["/api", "/apis", "/openapi/v3/api/v1?hash=1", &format!("{PODS}?watch=1"), "/api/v1/namespaces/ns/services/s/proxy//a%2Fb"]
        {
            let first = stage.get(CLIENT, path, &[]).await.echoed();
            let second = got(stage.http2(CLIENT).await.send_request(get2(&format!("https://{NAME}{path}")))).await.echoed();
            for received in [first, second] {
                assert!(received["uri"].as_str().is_some_and(|uri| uri.ends_with(&format!("/k8s/clusters/c-1{path}"))), "{received}");
                assert_eq!(identity(&received).0, ["alice@example.com"]);
            }
        }
        for protocol in ["SPDY/3.1", "websocket"] {
            let mut session = stage.exec(protocol).await;
            session.write_all(b"echo me").await.expect("sent");
            let mut echo = [0; 7];
            timeout(DEADLINE, session.read_exact(&mut echo)).await.expect("in time").expect("an echo");
            let paths = stage.backend.state.paths.lock().expect("no panic").clone();
            assert_eq!((paths.last().map(String::as_str), &echo), (Some(&*format!("/k8s/clusters/c-1{EXEC}")), b"echo me"));
        }
        let outside = stage.get(CLIENT, "/..%2fc-2/api", &[]).await;
        assert_eq!(outside.status, StatusCode::BAD_REQUEST, "{outside:?}");
        assert!(stage.backend.state.paths.lock().expect("no panic").iter().all(|path| path.starts_with("/k8s/clusters/c-1/")));
        assert_eq!(stage.stats.sample().requests[&("watch", "pods", 200)], 2, "facts are those below the base path");
    }
}

#[tokio::test]
async fn sessions_of_both_protocols_pass() {
    for alpn in [ALPN, &["http/1.1"]] {
        let stage = Stage::with(&json!({"mode": "auth"}), alpn).await;
        for protocol in ["SPDY/3.1", "websocket"] {
            let mut session = stage.exec(protocol).await;
            session.write_all(b"echo me").await.expect("sent");
            let mut echo = [0; 7];
            timeout(DEADLINE, session.read_exact(&mut echo)).await.expect("in time").expect("an echo");
            assert_eq!(&echo, b"echo me");
            let open = || (stage.stats.sample().streams[&StreamKind::Exec], *stage.front.front_end.stats.long_running().borrow());
            assert_eq!(open(), (1, 1), "a drain waits for it");
            drop(session);
            until_async("the stream ends", DEADLINE, async || open() == (0, 0)).await;
        }
        assert_eq!(stage.stats.sample().requests, [(("create", "pods", 101), 2)].into());
    }
}

/// An API server in clear text that closes its first connections after a request head, and answers later ones. Returns the requests.
async fn breaking(count: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, requests) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            if counted.fetch_add(1, Ordering::SeqCst) >= count {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
            }
        }
    });
    (address, requests)
}

#[tokio::test]
async fn safe_request_is_sent_once_more_if_the_connection_breaks_and_others_are_not() {
    for (method, breaks, code, sent) in [("GET", 1, 200, 2), ("GET", 9, 502, 2), ("POST", 1, 502, 1), ("DELETE", 1, 502, 1)] {
        let (address, requests) = breaking(breaks).await;
        let backend = Backend::new("unused").await;
        let stage = Stage::at(&sites(&json!({"mode": "auth"}), address, "http"), Authority::new(), backend).await;
        let mut request = get1(&format!("https://{NAME}{PODS}"));
        *request.method_mut() = method.parse().expect("a method");
        let answer = got(stage.http1(CLIENT).await.send_request(request)).await;
        assert_eq!((answer.status.as_u16(), requests.load(Ordering::SeqCst)), (code, sent), "{method} {breaks}");
        if code == 502 {
            assert_eq!(status(&answer, 502), "the connection to the API server broke");
        }
    }
}

#[tokio::test]
async fn request_that_the_api_server_has_not_processed_is_sent_again_with_any_method() {
    let cases = [
        ("GET", 0, 1, 200),
        ("POST", 0, 1, 200),
        ("POST", 10, 1, 200),
        ("DELETE", 0, 1, 200),
        ("PATCH", 15_000, 1, 200),
        ("GET", 0, 6, 200),
        ("POST", 10, 2, 200),
        ("POST", 15_000, 6, 200),
        // More than is stored, or refused again and again: clients repeat it.
        ("POST", 200_000, 1, 503),
        ("POST", 10, 9, 503),
    ];
    for (by, (method, length, refusals, code)) in
        [RefusedBy::Reset, RefusedBy::GoAway].into_iter().flat_map(|by| cases.map(|case| (by, case)))
    {
        let backend = Backend::new("a").await;
        let server = Refusing::new(by, refusals, backend.address).await;
        let stage = Stage::at(&sites(&json!({"mode": "auth"}), server.address, "h2c"), Authority::new(), backend).await;
        let body = Bytes::from(vec![b'x'; length]);
        let request = Request::builder().method(method).uri(PODS).header("host", NAME).body(Full::new(body)).expect("a request");
        let answer = got(stage.http1(CLIENT).await.send_request(request)).await;
        let case = format!("{by:?} {method} {length} {refusals}");
        assert_eq!(
            (answer.status.as_u16(), server.connections.load(Ordering::SeqCst)),
            (code, if length > 100_000 { 1 } else { refusals.min(6) + 1 }),
            "{case}"
        );
        if code == 200 {
            assert_eq!((&answer.echoed()["length"], &answer.echoed()["method"]), (&json!(length), &json!(method)), "{case}");
        } else {
            assert!(status(&answer, 503).contains("refused the request"), "{case}");
        }
        assert_eq!(stage.backend.state.requests(), usize::from(code == 200), "{case}");
    }
    // Names the request as one that may have been processed.
    let backend = Backend::new("a").await;
    let server = Refusing::new(RefusedBy::Processed, 1, backend.address).await;
    let stage = Stage::at(&sites(&json!({"mode": "auth"}), server.address, "h2c"), Authority::new(), backend).await;
    let request = Request::post(PODS).header("host", NAME).body(Full::default()).expect("a request");
    status(&got(stage.http1(CLIENT).await.send_request(request)).await, 502);
    assert_eq!(stage.backend.state.requests(), 0);
}

#[tokio::test]
async fn unreachable_api_server_is_a_503_that_clients_repeat() {
    let mut stage = Stage::new().await;
    let address = stage.backend.address.to_string();
    std::mem::replace(&mut stage.backend, Backend::new("unused").await).stop().await;
    for method in ["GET", "POST"] {
        let mut request = get1(&format!("https://{NAME}{PODS}"));
        *request.method_mut() = method.parse().expect("a method");
        let answer = got(stage.http1(CLIENT).await.send_request(request)).await;
        assert_eq!(status(&answer, 503), "cannot connect to the API server");
    }
    stage.backend = api_server(&address, &stage.authority, ALPN).await;
    assert_eq!(stage.get(CLIENT, PODS, &[]).await.status, StatusCode::OK, "at once");
}

#[tokio::test]
async fn client_at_its_limit_gets_a_429_that_it_repeats_and_takes_nothing_from_others() {
    let authority = Authority::new();
    let backend = api_server("127.0.0.1:0", &authority, ALPN).await;
    let sites = sites(&json!({"mode": "auth"}), backend.address, "https");
    let limits = Limits { shares: Shares { source_requests: 20, ..Shares::default() }, ..Limits::default() };
    let stage = Stage::opened(&sites, authority, backend, Options { limits, ..Options::default() }).await;
    let watch = get2(&format!("https://{NAME}/endless"));
    let (mut first, mut second, mut watches) = (stage.http2(CLIENT).await, stage.http2(CLIENT).await, Vec::new());
    for number in 0..20 {
        let client = if number % 2 == 0 { &mut first } else { &mut second };
        watches.push(client.send_request(watch.clone()).await.expect("a response"));
    }
    assert!(watches.iter().all(|watch| watch.status() == StatusCode::OK));
    assert!(status(&stage.get(CLIENT, PODS, &[]).await, 429).contains("too many concurrent requests"));
    assert_eq!(stage.get(BOB, PODS, &[]).await.status, StatusCode::OK);
    assert_eq!(stage.stats.sample().requests[&("list", "pods", 429)], 1);
    drop(watches.pop());
    until_async("there is room", DEADLINE, async || stage.get(CLIENT, PODS, &[]).await.status == StatusCode::OK).await;
}

#[tokio::test]
async fn requests_do_not_wait_for_each_others_attempts_to_reach_a_silent_api_server() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let upstream = silent.local_addr().expect("an address");
    let stage = Stage::at(&sites(&json!({"mode": "auth"}), upstream, "https"), Authority::new(), Backend::new("unused").await).await;
    let client = stage.http2(CLIENT).await;
    let requests = (0..20).map(|_| {
        let mut client = client.clone();
        async move { got(client.send_request(get2(&format!("https://{NAME}{PODS}")))).await }
    });
    let answers = timeout(Duration::from_secs(15), join_all(requests)).await.expect("two attempts of 3 s at most");
    assert!(answers.iter().all(|answer| status(answer, 503).contains("timed out")));
}

#[tokio::test]
async fn users_of_one_pool_never_mix() {
    let stage = Stage::new().await;
    let (alice, bob) = (stage.http2(CLIENT).await, stage.http2(BOB).await);
    for _ in 0..5 {
        let requests = (0..60).map(|number| {
            let (client, user) = if number % 2 == 0 { (&alice, "alice@example.com") } else { (&bob, "bob@example.com") };
            let (mut client, request) = (client.clone(), get2(&format!("https://{NAME}{PODS}?user={user}")));
            async move { (user, got(client.send_request(request)).await.echoed()) }
        });
        for (user, received) in join_all(requests).await {
            assert!(received["uri"].as_str().is_some_and(|uri| uri.ends_with(user)), "{received}");
            let groups = if user.starts_with("alice") { vec!["dev", "ops"] } else { vec!["qa"] };
            assert_eq!(identity(&received), (vec![user], groups, vec!["Bearer one"]));
        }
    }
    assert_eq!(stage.lookups.load(Ordering::SeqCst), 2, "one for each user");
    assert_eq!(stage.backend.state.connections.load(Ordering::SeqCst), 1, "one connection has room for all of them");
}

#[tokio::test]
async fn identity_is_looked_up_again_after_a_change_of_the_netmap() {
    let stage = Stage::new().await;
    let mut client = stage.http1(CLIENT).await;
    let mut groups_of = async || {
        client.ready().await.expect("an open connection");
        let received = got(client.send_request(get1(&format!("https://{NAME}{PODS}")))).await.echoed();
        identity(&received).1.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(groups_of().await, ["dev", "ops"]);
    assert_eq!(groups_of().await, ["dev", "ops"]);
    assert_eq!(stage.lookups.load(Ordering::SeqCst), 1);
    stage.knows(CLIENT, user("alice@example.com", &groups(&["dev", "ops", "new"])));
    assert_eq!(groups_of().await, ["dev", "ops", "new"]);
    assert_eq!(stage.lookups.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn connections_of_an_address_share_a_lookup() {
    let stage = Stage::new().await;
    let mut clients = join_all((0..12).map(|_| stage.http2(CLIENT))).await;
    for round in 1..4 {
        let requests = clients.iter_mut().map(|client| client.send_request(get2(&format!("https://{NAME}{PODS}"))));
        assert!(join_all(requests).await.into_iter().all(|answer| answer.expect("a response").status() == StatusCode::OK));
        assert_eq!(stage.lookups.load(Ordering::SeqCst), round);
        stage.netmap.send_replace(Some(new_netmap()));
    }
}

#[tokio::test]
async fn lost_right_closes_the_connection_with_its_streams() {
    let stage = Stage::new().await;
    let client = stage.http2(CLIENT).await;
    let watch = client.clone().send_request(get2(&format!("https://{NAME}/endless"))).await.expect("a response");
    assert_eq!(watch.status(), StatusCode::OK);
    stage.knows(CLIENT, user("alice@example.com", &groups(&["dev"])));
    // The response to this request may be lost with the connection.
    let _ = client.clone().send_request(get2(&format!("https://{NAME}{PODS}"))).await;
    until_async("the connection ends", DEADLINE, async || *stage.front.front_end.stats.open().borrow() == 0).await;
}

#[tokio::test]
async fn open_stream_outlives_a_lost_right_if_the_setting_says_so_and_no_request_does() {
    let authority = Authority::new();
    let backend = api_server("127.0.0.1:0", &authority, ALPN).await;
    let sites = sites(&json!({"mode": "auth"}), backend.address, "https");
    let stage = Stage::set(&sites, authority, backend, Options::default(), (BasePath::default(), false)).await;
    let client = stage.http2(CLIENT).await;
    let request = |path: &str| client.clone().send_request(get2(&format!("https://{NAME}{path}")));
    let mut watch = request("/endless").await.expect("a response").into_body();
    stage.knows(CLIENT, user("alice@example.com", &groups(&["dev"])));
    assert_eq!(identity(&got(request(PODS)).await.echoed()).1, ["dev"], "on the connection of the stream");
    stage.whois.lock().expect("no panic").remove(&address(CLIENT));
    stage.netmap.send_replace(Some(new_netmap()));
    status(&got(request(PODS)).await, 401);
    for _ in 0..100 {
        let next = timeout(DEADLINE, watch.frame()).await.expect("in time").expect("no end");
        assert!(next.is_ok_and(|frame| frame.is_data()));
    }
    assert_eq!(*stage.front.front_end.stats.open().borrow(), 1);
}

#[tokio::test]
async fn session_ends_when_the_right_is_lost_and_not_when_tailscaled_does_not_answer() {
    let stage = Stage::new().await;
    let mut session = stage.exec("SPDY/3.1").await;
    stage.knows(CLIENT, Value::Null);
    let mut bytes = [0; 1];
    let quiet = timeout(Duration::from_secs(13), session.read_exact(&mut bytes)).await;
    assert!(quiet.is_err() && stage.lookups.load(Ordering::SeqCst) == 2, "{quiet:?}");
    stage.whois.lock().expect("no panic").remove(&address(CLIENT));
    stage.netmap.send_replace(Some(new_netmap()));
    let ended = timeout(DEADLINE, session.read_exact(&mut bytes)).await.expect("in time");
    assert!(ended.is_err(), "{ended:?}");
}

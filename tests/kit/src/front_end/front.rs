//! A terminator with certificates of an authority of the test, and clients that come as tailscaled forwards them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tailyard::model::front_end::endpoints::{Endpoint, EndpointTopology, ServicePort};
use tailyard::model::front_end::proxy_protocol;
use tailyard::model::front_end::vhosts::headers::Upgrades;
use tailyard::model::front_end::vhosts::{Vhosts, read};
use tailyard::model::ingress::certificate::Pair;
use tailyard::model::tailnet::advertise::SiteStatus;
use tailyard::proxy::front_end::endpoints::UpstreamEndpoints;
use tailyard::proxy::front_end::identify::WhoIsLookup;
use tailyard::proxy::front_end::seams::HttpService;
use tailyard::proxy::front_end::vhosts::VhostService;
use tailyard::proxy::front_end::{self, Closing, FrontEnd, Inputs, Limits, Loopback};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Upper bound of every wait.
pub const DEADLINE: Duration = Duration::from_mins(1);
/// Where all clients come from.
pub const CLIENT: &str = "100.64.0.9:51234";

/// Every port of a site is listened on for the tailnet, and each of its names has its certificate.
#[must_use]
pub fn is_complete(status: &SiteStatus) -> bool {
    status.missing.is_empty() && status.faults.keys().all(|port| status.ports.contains_key(port))
}

/// An authority that clients trust.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    http1: TlsConnector,
    http2: TlsConnector,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let [http1, http2] = ["http/1.1", "h2"].map(|alpn| client(&pem, alpn));
        Self { pem, issuer: Issuer::new(params, key), http1, http2 }
    }

    /// A certificate for a name.
    pub fn pair(&self, name: &str) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        let chain = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Pair { chain: chain.into_bytes().into(), key: key.serialize_pem().into_bytes().into() }
    }

    /// Its own certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A TLS client that trusts only this CA.
    pub fn client(&self, alpn: &str) -> &TlsConnector {
        if alpn == "h2" { &self.http2 } else { &self.http1 }
    }
}

/// A client that trusts these certificates alone, and makes every handshake in full.
pub fn client(authorities: &str, alpn: &str) -> TlsConnector {
    use rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore::empty();
    for certificate in rustls::pki_types::CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(certificate.expect("a certificate")).expect("added");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config).into()
}

/// A running terminator.
pub struct Front {
    pub front_end: FrontEnd,
    pub sites: watch::Sender<Arc<Vhosts>>,
    pub certificates: watch::Sender<Arc<BTreeMap<String, Pair>>>,
    pub endpoints: watch::Sender<Arc<UpstreamEndpoints>>,
    pub closing: watch::Sender<Closing>,
    pub authority: Authority,
    pub work: JoinHandle<()>,
}

/// Options of a terminator.
#[derive(Default)]
pub struct Options {
    pub limits: Limits,
    pub upgrades: Upgrades,
    pub ask: Option<WhoIsLookup>,
    pub node: Option<String>,
    pub pod_addresses: BTreeSet<IpAddr>,
    pub kernel_tcp: bool,
}

impl Front {
    /// One that serves these sites (our routes, as JSON), with a certificate for every name of theirs.
    pub async fn new(routes: Value) -> Self {
        Self::with(routes, Options::default()).await
    }

    pub async fn with(routes: Value, mut options: Options) -> Self {
        let service = VhostService::<()>::new(options.ask.take()).expect("set up");
        Self::serving(routes, options, service).await
    }

    /// One that serves the names, ports and backends of these sites by another service; `ask` of the options has no effect.
    pub async fn serving(routes: Value, options: Options, service: impl HttpService) -> Self {
        let (sites, sites_seen) = watch::channel(Arc::default());
        let (certificates, certificates_seen) = watch::channel(Arc::default());
        let (endpoints, endpoints_seen) = watch::channel(Arc::default());
        let (closing, closing_seen) = watch::channel(Closing::default());
        let inputs = Inputs {
            sites: sites_seen,
            certificates: certificates_seen,
            endpoints: endpoints_seen,
            closing: closing_seen,
            node: options.node,
            loopback: Loopback::Any,
            kernel_tcp: options.kernel_tcp,
            pod_addresses: options.pod_addresses,
            limits: options.limits,
            upgrades: options.upgrades,
        };
        let (front_end, work) = front_end::create(inputs, service).expect("set up");
        let mut front = Self { front_end, sites, certificates, endpoints, closing, authority: Authority::new(), work: tokio::spawn(work) };
        front.route(&routes);
        let names: Vec<String> = front.sites.borrow().values().flat_map(|site| site.hosts.keys().cloned()).collect();
        let pairs = names.into_iter().map(|name| (name.clone(), front.authority.pair(&name))).collect();
        front.certificates.send_replace(Arc::new(pairs));
        let services: Vec<String> = front.sites.borrow().keys().cloned().collect();
        for service in services {
            front.placed(&service, is_complete).await;
        }
        front
    }

    /// Replaces the sites.
    pub fn route(&self, routes: &Value) {
        let read = read(Some(routes.to_string().as_bytes()), None).expect("readable");
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.sites.send_replace(Arc::new(read.sites));
    }

    /// Replaces the certificate of a name.
    pub fn renew(&self, name: &str) {
        let pair = self.authority.pair(name);
        self.certificates.send_modify(|pairs| drop(Arc::make_mut(pairs).insert(name.to_owned(), pair)));
    }

    /// Sets the endpoints of the port `http` of Service `ns/web`: address and zone; the node of zone `a` is `node-a`.
    pub fn answers(&self, addresses: &[(SocketAddr, &str)]) {
        let port = ServicePort { namespace: "ns".into(), service: "web".into(), port: "http".into() };
        let endpoint = |(address, zone): &(SocketAddr, &str)| Endpoint {
            address: *address,
            topology: Arc::new(EndpointTopology { zone: Some((*zone).to_owned()), node: Some(format!("node-{zone}")), hints: Vec::new() }),
        };
        let endpoints = addresses.iter().map(endpoint).collect();
        self.endpoints.send_replace(Arc::new(UpstreamEndpoints { endpoints: [(port, endpoints)].into(), ..UpstreamEndpoints::default() }));
    }

    /// Waits for a status of a site.
    pub async fn placed(&mut self, service: &str, so: impl Fn(&SiteStatus) -> bool) -> SiteStatus {
        let wait = self.front_end.in_place.wait_for(|sites| sites.get(service).is_some_and(&so));
        timeout(DEADLINE, wait).await.expect("in time").expect("a terminator")[service].clone()
    }

    /// Where a port of a site is listened on.
    pub fn at(&self, service: &str, port: u16) -> SocketAddr {
        self.front_end.in_place.borrow()[service].ports[&port]
    }

    /// A connection as tailscaled forwards it.
    pub async fn forwarded(&self, service: &str, port: u16) -> std::io::Result<TcpStream> {
        forwarded(self.at(service, port)).await
    }

    /// A TLS connection for a name, speaking `h2` or `http/1.1`.
    pub async fn tls(&self, service: &str, name: &str, alpn: &str) -> std::io::Result<TlsStream<TcpStream>> {
        self.secure(self.forwarded(service, 443).await?, name, alpn).await
    }

    /// TLS on a connection.
    pub async fn secure(&self, stream: TcpStream, name: &str, alpn: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        timeout(DEADLINE, self.authority.client(alpn).connect(name, stream)).await.expect("a handshake in time")
    }

    /// A client of HTTP/1.1.
    pub async fn http1(&self, service: &str, name: &str) -> http1::SendRequest<Full<Bytes>> {
        let stream = self.tls(service, name, "http/1.1").await.expect("TLS");
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection.with_upgrades());
        sender
    }

    /// A client of HTTP/2.
    pub async fn http2(&self, service: &str, name: &str) -> http2::SendRequest<Full<Bytes>> {
        let stream = self.tls(service, name, "h2").await.expect("TLS");
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    /// One request on a connection of its own.
    pub async fn get(&self, service: &str, url: &str) -> ReceivedResponse {
        let name = url.parse::<http::Uri>().expect("a URL").host().expect("a host").to_owned();
        let mut client = self.http1(service, &name).await;
        got(client.send_request(get1(url))).await
    }
}

/// A connection as tailscaled forwards it, from [`CLIENT`].
pub async fn forwarded(at: SocketAddr) -> std::io::Result<TcpStream> {
    forwarded_from(CLIENT, at).await
}

/// A connection as tailscaled forwards it, from this address.
pub async fn forwarded_from(client: &str, at: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(&proxy_protocol::header(client.parse().expect("an address"), at)).await?;
    Ok(stream)
}

/// The head of the next response on a connection, in lower case. What follows it stays unread.
pub async fn received_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a response"));
        }
    };
    timeout(DEADLINE, read).await.expect("a response in time");
    String::from_utf8_lossy(&head).to_ascii_lowercase()
}

/// A complete HTTP response.
#[derive(Debug)]
pub struct ReceivedResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl ReceivedResponse {
    /// The request as the backend echoes it (see [`super::backend`]).
    pub fn echoed(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub async fn got(answer: impl Future<Output = hyper::Result<Response<Incoming>>>) -> ReceivedResponse {
    let whole = async {
        let (parts, body) = answer.await.expect("an answer").into_parts();
        ReceivedResponse { status: parts.status, headers: parts.headers, body: body.collect().await.expect("a body").to_bytes() }
    };
    timeout(DEADLINE, whole).await.expect("an answer in time")
}

/// A GET of HTTP/1.1.
pub fn get1(url: &str) -> Request<Full<Bytes>> {
    let uri: http::Uri = url.parse().expect("a URL");
    let path = uri.path_and_query().expect("a path").as_str().to_owned();
    Request::get(path).header("host", uri.host().expect("a host")).body(Full::default()).expect("a request")
}

/// A GET of HTTP/2.
pub fn get2(url: &str) -> Request<Full<Bytes>> {
    Request::get(url).body(Full::default()).expect("a request")
}

/// A site with one backend for every path.
pub fn site(name: &str, backend: &Value) -> Value {
    json!({"hosts": {name: {"secret": name, "issue": true}}, "listeners": {"443": "https", "80": "redirect"},
        "routes": [{"path": "/", "backend": backend}]})
}

/// The same, served without TLS.
pub fn plain(name: &str, backend: &Value) -> Value {
    let mut site = site(name, backend);
    site["listeners"] = json!({"80": "http"});
    site
}

/// The Service `ns/web` behind this address.
pub fn service(address: SocketAddr, protocol: &str) -> Value {
    json!({"namespace": "ns", "service": "web", "portName": "http", "address": address.to_string(), "protocol": protocol})
}

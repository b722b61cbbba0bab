//! One request: route, upstream request and response.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, EXPECT, HOST, HeaderValue, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, sleep_until};

use crate::api::routes::BackendProtocol;
use crate::model::front_end::vhosts::headers::{self, RequestInfo};
use crate::model::front_end::vhosts::Proxied;

use super::ListenerPort;
use super::activity::{InFlight, InFlightGuard, Progress};
use super::body::{ClientFault, Download, ProxiedResponse, ResponseGuard, Upload, Uploading};
use super::client::{ClientConnection, ClientNetwork};
use super::dial::DialError;
use super::pool::Pool;
use super::tunnel;
use super::upstream::{SendError, Upstream, UpstreamRequest};
use super::vhosts::{decided, text};

/// Handles a request of this connection.
pub(super) async fn answer(connection: Arc<ClientConnection>, in_flight: InFlight, request: Request<Incoming>) -> ProxiedResponse {
    let began = Instant::now();
    let head = request.method() == Method::HEAD;
    let mut answer = routed(&connection, in_flight, request).await;
    if head {
        answer = answer.map(Download::unsaid);
    }
    connection.port.counts.answered(answer.status().as_u16(), began.elapsed());
    answer
}

async fn routed(connection: &Arc<ClientConnection>, in_flight: InFlight, request: Request<Incoming>) -> ProxiedResponse {
    let port = &connection.port;
    let site = Arc::clone(&port.served.read().site);
    if request.method() == Method::CONNECT {
        return text(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported\n");
    }
    let Some(host) = named(&request) else { return text(StatusCode::BAD_REQUEST, "the request must name exactly one host\n") };
    let Some(target) = target(&request) else { return text(StatusCode::BAD_REQUEST, "invalid request target\n") };
    let name = host.to_str().unwrap_or_default();
    let (proxied, path) = match decided(&site, port, name, &target) {
        Ok(decided) => decided,
        Err(answer) => return *answer,
    };
    let over_tls = proxied.backend.protocol == BackendProtocol::Https;
    // An upgrade requires HTTP/1.1 (RFC 9110, 7.8), and its data must be distinguishable from a body.
    let may_upgrade = request.version() == Version::HTTP_11 && request.body().is_end_stream();
    let upgrade = if may_upgrade { port.shared.upgrades.wanted(request.headers()) } else { None };
    let aim = UpstreamRequest { host: host.clone(), path, over_tls, from: request.version(), upgrade: upgrade.is_some() };
    proxy(UpstreamRoute { connection, port, proxied, aim, name, upgrade }, in_flight, request).await
}

/// Path and query of a request, or `*`; `None` if missing or `*` is not permitted.
fn target(request: &Request<Incoming>) -> Option<PathAndQuery> {
    let uri = request.uri();
    // Only CONNECT has an authority alone.
    if uri.authority().is_some() && uri.scheme().is_none() {
        return None;
    }
    let target = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let fits = target.as_str().starts_with(['/', '?']) || (target.as_str() == "*" && request.method() == Method::OPTIONS);
    fits.then_some(target)
}

/// Route of a request to a backend.
struct UpstreamRoute<'a> {
    connection: &'a Arc<ClientConnection>,
    port: &'a ListenerPort,
    proxied: &'a Proxied,
    aim: UpstreamRequest,
    name: &'a str,
    upgrade: Option<HeaderValue>,
}

async fn proxy(way: UpstreamRoute<'_>, in_flight: InFlight, mut request: Request<Incoming>) -> ProxiedResponse {
    let (shared, client) = (&way.port.shared, way.connection.client);
    let Ok(room) = Arc::clone(&shared.requests).try_acquire_owned() else { return way.end(Unanswered::Full) };
    // In the cluster a client may have the address of a tailnet client.
    let identity = match client.filter(|_| way.port.network == ClientNetwork::Tailnet) {
        Some(client) => shared.identify.who(client).await,
        None => None,
    };
    let about = RequestInfo {
        client: client.map(|client| client.ip()),
        host: way.name,
        over_tls: way.port.over_tls,
        identity: identity.as_deref(),
        app_caps: &way.proxied.app_caps,
    };
    let theirs = way.upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let (body, uploading) = Upload::new(body, in_flight.0.clone(), shared.limits.body_timeout);
    let mut sent = Request::new(body);
    *sent.method_mut() = parts.method;
    *sent.headers_mut() = parts.headers;
    headers::forward(sent.headers_mut(), about);
    // The body is read on demand, which also sends 100 Continue.
    sent.headers_mut().remove(EXPECT);
    if let Some(protocol) = &way.upgrade {
        sent.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        sent.headers_mut().insert(UPGRADE, protocol.clone());
    }
    let pool = shared.pools.of(&way.proxied.backend);
    let response = in_time(&in_flight.0, shared.limits.answer_timeout, ask(&way, &pool, sent, &uploading)).await;
    let (answer, busy) = match response.unwrap_or(Err(Unanswered::Late)) {
        Ok(answered) => answered,
        Err(unanswered) => return way.end(unanswered),
    };
    let guard = ResponseGuard { in_flight, _busy: busy, _uploading: uploading, _room: room };
    match (&way.upgrade, theirs) {
        _ if answer.status() != StatusCode::SWITCHING_PROTOCOLS => passed(answer, guard),
        (Some(protocol), Some(theirs)) if headers::upgrades_to(protocol, answer.headers()) => {
            tunnel::join(way.connection, answer, theirs, guard)
        }
        _ => {
            way.port.counts.failed("Upgrade");
            text(StatusCode::BAD_GATEWAY, "the backend switched to a protocol that was not requested\n")
        }
    }
}

impl UpstreamRoute<'_> {
    /// Response in place of a backend's.
    fn end(&self, unanswered: Unanswered) -> ProxiedResponse {
        if let Some(reason) = unanswered.reason() {
            self.port.counts.aborted(reason);
        }
        unanswered.answer()
    }
}

/// Why there is no response of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unanswered {
    /// The request's body was aborted.
    Client(ClientFault),
    /// No endpoint is reachable, or the connection broke.
    Unreachable,
    /// No endpoint is reachable in time.
    Deadline,
    /// Timeout of the backend.
    Late,
    /// The limit of upstream connections is reached.
    Full,
}

impl Unanswered {
    fn answer(self) -> ProxiedResponse {
        match self {
            Self::Client(ClientFault::Broken) => text(StatusCode::BAD_REQUEST, "malformed or incomplete request body\n"),
            Self::Client(ClientFault::Stalled) => text(StatusCode::REQUEST_TIMEOUT, "request body timeout\n"),
            Self::Unreachable => text(StatusCode::BAD_GATEWAY, "cannot connect to the backend\n"),
            Self::Deadline => text(StatusCode::GATEWAY_TIMEOUT, "connecting to the backend timed out\n"),
            Self::Late => text(StatusCode::GATEWAY_TIMEOUT, "backend response timeout\n"),
            Self::Full => text(StatusCode::SERVICE_UNAVAILABLE, "too many connections; try again later\n"),
        }
    }

    /// Label of the counter of aborted requests.
    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Client(ClientFault::Stalled) => Some("Client"),
            Self::Late => Some("Backend"),
            Self::Full => Some("Full"),
            Self::Client(ClientFault::Broken) | Self::Unreachable | Self::Deadline => None,
        }
    }
}

/// Waits for a response head, with a deadline after the client's last data.
async fn in_time<T>(progress: &Progress, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let until = progress.since()? + limit;
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = sleep_until(until) => if progress.since()? + limit <= Instant::now() {
                return None;
            },
        }
    }
}

/// Tries endpoints in order as long as nothing was sent, then the `ClusterIP`.
async fn ask(
    way: &UpstreamRoute<'_>,
    pool: &Arc<Pool>,
    request: Request<Upload>,
    uploading: &Uploading,
) -> Result<(Response<Incoming>, InFlightGuard), Unanswered> {
    let (pools, counts) = (&way.port.shared.pools, &way.port.counts);
    let dialer = pools.dialer(pool);
    let mut request = Box::new(request);
    let again = repeatable(&request);
    for peer in pools.choices(pool) {
        match peer.send(*request, &way.aim, &dialer).await {
            Ok(answered) => {
                pools.note(&peer, true);
                return Ok(answered);
            }
            Err(SendError::Unsent(unsent, error)) => {
                failed(way, &peer, &error)?;
                request = unsent;
            }
            Err(SendError::Sent(error)) => {
                let unanswered = broken(way, &peer, &error, uploading.fault());
                // Safe to repeat: the method is idempotent.
                *request = again.as_ref().map(copy).ok_or(unanswered)?;
            }
        }
    }
    let peer = pool.fallback().await.map_err(|error| {
        counts.failed(error.reason());
        Unanswered::Unreachable
    })?;
    counts.fell_back();
    match peer.send(*request, &way.aim, &dialer).await {
        Ok(answered) => Ok(answered),
        Err(SendError::Unsent(_, error)) => {
            failed(way, &peer, &error)?;
            Err(if matches!(error, DialError::Deadline(_)) { Unanswered::Deadline } else { Unanswered::Unreachable })
        }
        Err(SendError::Sent(error)) => Err(broken(way, &peer, &error, uploading.fault())),
    }
}

/// Evaluates a sent request without response: fault of client or backend.
fn broken(way: &UpstreamRoute<'_>, peer: &Upstream, error: &hyper::Error, by_client: Option<ClientFault>) -> Unanswered {
    let service = &way.port.service;
    if let Some(fault) = by_client {
        tracing::debug!(service, ?fault, %error, "client aborted the request");
        return Unanswered::Client(fault);
    }
    way.port.counts.failed("Broken");
    tracing::debug!(service, address = %peer.address, %error, "upstream connection reset");
    Unanswered::Unreachable
}

/// Records an unreachable endpoint. Fails if it is not the endpoint's fault.
fn failed(way: &UpstreamRoute<'_>, peer: &Upstream, error: &DialError) -> Result<(), Unanswered> {
    way.port.counts.failed(error.reason());
    tracing::debug!(service = way.port.service, reason = error.reason(), "cannot connect to an endpoint: {error}");
    if matches!(error, DialError::Full) {
        return Err(Unanswered::Full);
    }
    way.port.shared.pools.note(peer, false);
    Ok(())
}

/// Copy of a request that may be repeated: safe method, no body.
fn repeatable(request: &Request<Upload>) -> Option<Request<()>> {
    let asks_only = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let plain = asks_only && request.body().is_empty() && !request.headers().contains_key(UPGRADE);
    plain.then(|| copied(request, ()))
}

fn copy(request: &Request<()>) -> Request<Upload> {
    copied(request, Upload::empty())
}

fn copied<A, B>(request: &Request<A>, body: B) -> Request<B> {
    let mut copy = Request::new(body);
    copy.method_mut().clone_from(request.method());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Converts a backend's response for the client.
fn passed(answer: Response<Incoming>, guard: ResponseGuard) -> ProxiedResponse {
    let (mut parts, body) = answer.into_parts();
    headers::end_to_end(&mut parts.headers);
    headers::single_length(&mut parts.headers);
    parts.version = Version::default();
    parts.extensions.clear();
    guard.in_flight.awaits_backend();
    Response::from_parts(parts, Download::stream(body, guard))
}

/// Host of a request: from its URI, as always in HTTP/2, else from the header. `None` if missing or ambiguous (RFC 9112, 3.2; RFC 9113,
/// 8.3.1).
fn named(request: &Request<Incoming>) -> Option<HeaderValue> {
    let mut headers = request.headers().get_all(HOST).iter();
    let header = headers.next().filter(|host| !host.is_empty());
    if headers.next().is_some() {
        return None;
    }
    let Some(authority) = request.uri().authority() else { return header.cloned() };
    let differs = |host: &HeaderValue| !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
    if request.version() == Version::HTTP_2 && header.is_some_and(differs) {
        return None;
    }
    HeaderValue::from_str(authority.as_str()).ok()
}

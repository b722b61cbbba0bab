//! One request: route, upstream request and response.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, EXPECT, HOST, HeaderValue, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, sleep, sleep_until};

use crate::api::routes::BackendProtocol;
use crate::model::front_end::vhosts::headers;

use super::ListenerPort;
use super::activity::{InFlight, InFlightGuard, Progress};
use super::body::{ClientFault, Download, ProxiedResponse, ResponseGuard, Upload, Uploading};
use super::client::ClientConnection;
use super::dial::DialError;
use super::seams::{HttpService, OwnResponse};
use super::sources::SourceFull;
use super::tunnel::{self, Halves};
use super::upstream::{SendError, Upstream, UpstreamRequest};

/// Maximum number of times that a request is sent again because a server has not processed it.
const MAX_REFUSALS: u32 = 6;
/// Maximum delay before a request is sent again, for each time that it was sent again before.
const REFUSAL_DELAY: Duration = Duration::from_millis(40);

/// A routed request.
struct RoutedRequest<R> {
    route: R,
    request: Request<Upload>,
    uploading: Uploading,
    from: Version,
    /// Protocol of a permitted upgrade, and the client's side of it.
    upgrade: Option<(HeaderValue, OnUpgrade)>,
}

/// Handles a request of this connection.
pub(super) async fn answer<S: HttpService>(
    service: Arc<S>,
    connection: Arc<ClientConnection<S::Caller>>,
    in_flight: InFlight,
    request: Request<Incoming>,
) -> ProxiedResponse {
    let began = Instant::now();
    let head = request.method() == Method::HEAD;
    let mut answer = match route_request(&*service, &connection, &in_flight, request) {
        Ok(routed) => forward_request(service, &connection, in_flight, routed, began).await,
        Err(answer) => (*answer).map(Download::Text),
    };
    if head {
        answer = answer.map(Download::unsaid);
    }
    connection.port.counts.answered(answer.status().as_u16(), began.elapsed());
    answer
}

/// Routes a request, and removes its hop-by-hop headers. An error is the response.
fn route_request<S: HttpService>(
    service: &S,
    connection: &ClientConnection<S::Caller>,
    in_flight: &InFlight,
    mut request: Request<Incoming>,
) -> Result<RoutedRequest<S::Route>, Box<OwnResponse>> {
    let shared = &connection.port.shared;
    let respond = |status, message| Box::new(service.respond(connection, status, message));
    let refused = |message| respond(StatusCode::BAD_REQUEST, message);
    if request.method() == Method::CONNECT {
        return Err(respond(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported"));
    }
    let host = named(&request).ok_or_else(|| refused("the request must name exactly one host"))?;
    let target = target(&request).ok_or_else(|| refused("invalid request target"))?;
    // An upgrade requires HTTP/1.1 (RFC 9110, 7.8), and its data must be distinguishable from a body.
    let may_upgrade = request.version() == Version::HTTP_11 && request.body().is_end_stream();
    let site = connection.site();
    let upgrades = service.upgrades(&site).unwrap_or(&shared.upgrades);
    let protocol = if may_upgrade { upgrades.wanted(request.headers()) } else { None };
    let upgrade = protocol.map(|protocol| (protocol, hyper::upgrade::on(&mut request)));
    let (parts, body) = request.into_parts();
    let route = service.route(connection, &site, &parts, &host, &target)?;
    let (body, uploading) = Upload::new(body, in_flight.0.clone(), shared.limits.body_timeout, service.trailers(&route));
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.headers_mut() = parts.headers;
    headers::end_to_end(request.headers_mut());
    // The body is read on demand, which also sends 100 Continue.
    request.headers_mut().remove(EXPECT);
    Ok(RoutedRequest { route, request, uploading, from: parts.version, upgrade })
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

/// Sends a routed request to its upstream. After an upgrade, a task transfers the bytes.
async fn forward_request<S: HttpService>(
    service: Arc<S>,
    connection: &Arc<ClientConnection<S::Caller>>,
    in_flight: InFlight,
    routed: RoutedRequest<S::Route>,
    began: Instant,
) -> ProxiedResponse {
    let RoutedRequest { mut route, mut request, mut uploading, from, upgrade } = routed;
    let proxied = async {
        let port = &connection.port;
        let slot = connection.slot.request().map_err(|full| too_many(connection, full).end(&*service, connection, &route))?;
        let room = Arc::clone(&port.shared.requests).try_acquire_owned();
        let room = room.map_err(|_| Unanswered::Full.end(&*service, connection, &route))?;
        service.authorize(connection, &mut route, request.headers_mut()).await?;
        let ended = |unanswered: Unanswered| unanswered.end(&*service, connection, &route);
        let target = service.upstream(&route, request.headers_mut())?;
        let long_running = service.is_long_running(&route).then(|| port.shared.stats.began());
        if let Some((protocol, _)) = &upgrade {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            request.headers_mut().insert(UPGRADE, protocol.clone());
        }
        let aim = UpstreamRequest { target, from, upgrade: upgrade.is_some() };
        let response = in_time(&in_flight.0, port.shared.limits.answer_timeout, ask(port, &aim, request, &mut uploading)).await;
        let (mut answer, busy) = response.unwrap_or(Err(Unanswered::Late)).map_err(ended)?;
        service.restrict(&route, answer.headers_mut());
        uploading.settle();
        let guard = ResponseGuard { in_flight, _busy: busy, _uploading: uploading, _room: room, _slot: slot, _long_running: long_running };
        match upgrade {
            _ if answer.status() != StatusCode::SWITCHING_PROTOCOLS => Ok((passed(answer, guard), None)),
            Some((protocol, theirs)) if headers::upgrades_to(&protocol, answer.headers()) => {
                let (answer, halves) = tunnel::join(answer, theirs, guard);
                Ok((answer, Some(halves)))
            }
            _ => {
                port.counts.failed("Upgrade");
                Err(Unanswered::Protocol.end(&*service, connection, &route))
            }
        }
    };
    let proxied: Result<(ProxiedResponse, Option<Halves>), Box<OwnResponse>> = proxied.await;
    let (answer, halves) = proxied.unwrap_or_else(|answer| ((*answer).map(Download::Text), None));
    service.answered(connection, &route, answer.status(), began.elapsed());
    if let Some(halves) = halves {
        connection.port.counts.upgraded();
        tokio::spawn(tunnel::run(service, Arc::clone(connection), route, halves));
    }
    answer
}

/// Why there is no response of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unanswered {
    /// The request's body was aborted.
    Client(ClientFault),
    /// No endpoint is reachable.
    Unreachable,
    /// The backend did not process the request.
    Refused,
    /// The connection broke.
    Broken,
    /// The backend switched to another protocol.
    Protocol,
    /// No endpoint is reachable in time.
    Deadline,
    /// Timeout of the backend.
    Late,
    /// The limit of requests or upstream connections is reached.
    Full,
    /// The client's limit of requests is reached.
    Source,
}

impl Unanswered {
    /// Response in place of a backend's.
    fn end<S: HttpService>(self, service: &S, client: &ClientConnection<S::Caller>, route: &S::Route) -> Box<OwnResponse> {
        if let Some(reason) = self.reason() {
            client.port.counts.aborted(reason);
        }
        let (status, message) = self.answer(service.upstream_name(route));
        let is_unsent = matches!(self, Self::Unreachable | Self::Refused | Self::Deadline);
        let status = if is_unsent { service.unreachable(route, status) } else { status };
        Box::new(service.respond(client, status, &message))
    }

    /// Status and message; `upstream` is the name of the upstream.
    fn answer(self, upstream: &str) -> (StatusCode, Cow<'static, str>) {
        match self {
            Self::Client(ClientFault::Broken) => (StatusCode::BAD_REQUEST, "malformed or incomplete request body".into()),
            Self::Client(ClientFault::Stalled) => (StatusCode::REQUEST_TIMEOUT, "request body timeout".into()),
            Self::Unreachable => (StatusCode::BAD_GATEWAY, format!("cannot connect to the {upstream}").into()),
            Self::Refused => (StatusCode::BAD_GATEWAY, format!("the {upstream} refused the request without processing it").into()),
            Self::Broken => (StatusCode::BAD_GATEWAY, format!("the connection to the {upstream} broke").into()),
            Self::Protocol => (StatusCode::BAD_GATEWAY, format!("the {upstream} switched to a protocol that was not requested").into()),
            Self::Deadline => (StatusCode::GATEWAY_TIMEOUT, format!("connecting to the {upstream} timed out").into()),
            Self::Late => (StatusCode::GATEWAY_TIMEOUT, format!("{upstream} response timeout").into()),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "too many connections; try again later".into()),
            Self::Source => (StatusCode::TOO_MANY_REQUESTS, "too many concurrent requests of this client; try again later".into()),
        }
    }

    /// Label of the counter of aborted requests.
    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Client(ClientFault::Stalled) => Some("Client"),
            Self::Late => Some("Backend"),
            Self::Full => Some("Full"),
            Self::Source => Some("Source"),
            Self::Client(ClientFault::Broken) | Self::Unreachable | Self::Refused | Self::Broken | Self::Protocol | Self::Deadline => None,
        }
    }
}

/// Logs that a client is at its limit of requests.
fn too_many<C>(connection: &ClientConnection<C>, full: SourceFull) -> Unanswered {
    if let Some(client) = connection.address.filter(|_| full.is_logged) {
        let (service, most) = (connection.service(), connection.port.shared.limits.shares.source_requests);
        tracing::warn!(service, %client, most, "rejecting requests of a client at its limit of concurrent requests; check the client, or raise --max-connections");
    }
    Unanswered::Source
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

/// A request that may have to be sent again after it was sent without a response.
struct Repeats {
    /// `None` if no error permits another attempt.
    head: Option<Request<()>>,
    /// Method without effect, and no body.
    is_safe: bool,
    /// Times that a server has not processed the request.
    refusals: u32,
}

impl Repeats {
    /// Only HTTP/2 reports that a request was not processed, so that a request with effect to an HTTP/1.1 backend is not copied.
    fn new(request: &Request<Upload>, protocol: BackendProtocol) -> Self {
        let is_safe_method = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let is_safe = is_safe_method && request.body().is_empty() && !request.headers().contains_key(UPGRADE);
        let is_repeatable = is_safe || protocol != BackendProtocol::Http;
        Self { head: is_repeatable.then(|| copied(request, ())), is_safe, refusals: 0 }
    }

    /// The request, if it has no effect.
    fn safe(&self) -> Option<Request<Upload>> {
        self.head.as_ref().filter(|_| self.is_safe).map(|head| copied(head, Upload::empty()))
    }

    /// The request, with any method, after a server has not processed it: at once the first time, then after a short delay, as a GOAWAY
    /// refuses all requests that are on their way, which would be sent again together.
    async fn unprocessed(&mut self, uploading: &mut Uploading) -> Option<Request<Upload>> {
        let delay = REFUSAL_DELAY.mul_f64(fastrand::f64()) * self.refusals;
        self.refusals += 1;
        let body = (self.refusals <= MAX_REFUSALS).then(|| uploading.reclaim())??;
        sleep(delay).await;
        Some(copied(self.head.as_ref()?, body))
    }
}

/// Tries endpoints in order as long as nothing was processed, then the `ClusterIP`.
async fn ask(
    port: &ListenerPort,
    aim: &UpstreamRequest<'_>,
    request: Request<Upload>,
    uploading: &mut Uploading,
) -> Result<(Response<Incoming>, InFlightGuard), Unanswered> {
    let (pools, counts) = (&port.shared.pools, &port.counts);
    let pool = pools.of(aim.target.backend);
    let dialer = pools.dialer(&pool, aim.target.tls);
    let mut request = Box::new(request);
    let mut repeats = Repeats::new(&request, aim.target.backend.protocol);
    for peer in pools.choices(&pool) {
        match peer.send(*request, aim, &dialer).await {
            Ok(answered) => {
                pools.note(&peer, true);
                return Ok(answered);
            }
            Err(SendError::Unsent(unsent, error)) => {
                failed(port, &peer, &error)?;
                request = unsent;
            }
            Err(SendError::Unprocessed(error)) => {
                let unanswered = refused(port, &peer, &error, uploading.fault());
                *request = repeats.unprocessed(uploading).await.ok_or(unanswered)?;
            }
            Err(SendError::Sent(error)) => {
                let unanswered = broken(port, &peer, &error, uploading.fault());
                *request = repeats.safe().ok_or(unanswered)?;
            }
        }
    }
    let peer = pool.fallback().await.map_err(|error| {
        counts.failed(error.reason());
        Unanswered::Unreachable
    })?;
    counts.fell_back();
    loop {
        match peer.send(*request, aim, &dialer).await {
            Ok(answered) => return Ok(answered),
            Err(SendError::Unsent(_, error)) => {
                failed(port, &peer, &error)?;
                return Err(if matches!(error, DialError::Deadline(_)) { Unanswered::Deadline } else { Unanswered::Unreachable });
            }
            Err(SendError::Unprocessed(error)) => {
                let unanswered = refused(port, &peer, &error, uploading.fault());
                *request = repeats.unprocessed(uploading).await.ok_or(unanswered)?;
            }
            Err(SendError::Sent(error)) => {
                let unanswered = broken(port, &peer, &error, uploading.fault());
                *request = repeats.safe().ok_or(unanswered)?;
                // Once, as the address may be that of several servers.
                repeats.is_safe = false;
            }
        }
    }
}

/// Evaluates a sent request without response: fault of client or backend.
fn broken(port: &ListenerPort, peer: &Upstream, error: &hyper::Error, by_client: Option<ClientFault>) -> Unanswered {
    let service = &port.service;
    if let Some(fault) = by_client {
        tracing::debug!(service, ?fault, %error, "client aborted the request");
        return Unanswered::Client(fault);
    }
    port.counts.failed("Broken");
    tracing::debug!(service, address = %peer.address, %error, "upstream connection reset");
    Unanswered::Broken
}

/// Records that a server has not processed a request.
fn refused(port: &ListenerPort, peer: &Upstream, error: &hyper::Error, by_client: Option<ClientFault>) -> Unanswered {
    port.counts.failed("Refused");
    tracing::debug!(service = port.service, address = %peer.address, %error, "upstream refused a request without processing it");
    by_client.map_or(Unanswered::Refused, Unanswered::Client)
}

/// Records an unreachable endpoint. Fails if it is not the endpoint's fault.
fn failed(port: &ListenerPort, peer: &Upstream, error: &DialError) -> Result<(), Unanswered> {
    port.counts.failed(error.reason());
    tracing::debug!(service = port.service, reason = error.reason(), "cannot connect to an endpoint: {error}");
    if matches!(error, DialError::Full) {
        return Err(Unanswered::Full);
    }
    port.shared.pools.note(peer, false);
    Ok(())
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

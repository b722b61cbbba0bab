//! One upstream address: open connections, load and health.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use http::{Request, Response, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use crate::api::routes::BackendProtocol;
use crate::edge::tls::TlsClient;
use crate::model::front_end::load_balancer::EndpointHealth;
use crate::model::front_end::vhosts::headers::join_cookies;

use super::activity::InFlightGuard;
use super::body::Upload;
use super::dial::{CONNECT_TIMEOUT, ConnectionPermits, DialError, Dialer, MAX_STREAMS, Sender};
use super::seams::UpstreamTarget;

/// Idle timeout of pooled connections, shorter than that of usual servers.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// Maximum idle connections per endpoint.
const MAX_IDLE_PER_UPSTREAM: usize = 128;

/// One address.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    pub(super) near: bool,
    /// Running requests, including their response bodies.
    busy: Arc<AtomicUsize>,
    health: Mutex<EndpointHealth>,
    http1: Mutex<Vec<IdleConnection>>,
    http2: Mutex<Vec<MultiplexedConnection>>,
    /// Serializes opening of an HTTP/2 connection, which then serves all waiters.
    opening: tokio::sync::Mutex<()>,
    /// The last TLS connection for several requests negotiated HTTP/1.1.
    is_http1: AtomicBool,
}

#[derive(Debug)]
struct IdleConnection {
    sender: http1::SendRequest<Upload>,
    tls: TlsClient,
    used: Instant,
}

#[derive(Debug)]
struct MultiplexedConnection {
    sender: http2::SendRequest<Upload>,
    tls: TlsClient,
    /// Running requests have clones of it.
    streams: Arc<()>,
    used: Instant,
}

/// Properties of an upstream request, for every HTTP version.
#[derive(Debug)]
pub(super) struct UpstreamRequest<'a> {
    pub(super) target: UpstreamTarget<'a>,
    pub(super) from: Version,
    pub(super) upgrade: bool,
}

pub(super) enum SendError {
    /// Not sent: may be sent to another endpoint.
    Unsent(Box<Request<Upload>>, DialError),
    /// Not processed by the server, which refused the request or closes the connection.
    Unprocessed(hyper::Error),
    /// Sent, at least in part.
    Sent(hyper::Error),
}

impl Upstream {
    pub(super) fn new(address: SocketAddr, near: bool) -> Self {
        Self {
            address,
            near,
            busy: Arc::default(),
            health: Mutex::default(),
            http1: Mutex::default(),
            http2: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            is_http1: AtomicBool::default(),
        }
    }

    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn health(&self) -> MutexGuard<'_, EndpointHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has connections or requests.
    pub(super) fn is_used(&self) -> bool {
        self.busy() > 0 || !self.idle_now().is_empty() || !self.multiplexed().is_empty()
    }

    /// Closes connections that have been idle for `idle` or are closed.
    pub(super) fn sweep(&self, idle: Duration) {
        self.idle_now()
            .retain(|connection| !connection.sender.is_closed() && (!connection.sender.is_ready() || connection.used.elapsed() < idle));
        self.multiplexed()
            .retain(|connection| !connection.sender.is_closed() && (connection.streams() > 0 || connection.used.elapsed() < idle));
    }

    /// Sends a request; [`InFlightGuard`] counts it until its response body is sent.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<Upload>,
        aim: &UpstreamRequest<'_>,
        dialer: &Dialer<'_, impl ConnectionPermits>,
    ) -> Result<(Response<Incoming>, InFlightGuard), SendError> {
        let mut busy = InFlightGuard::new(&self.busy);
        loop {
            let (sender, reused) = match self.sender(aim, dialer, &mut busy).await {
                Ok(sender) => sender,
                Err(error) => return Err(SendError::Unsent(Box::new(request), error)),
            };
            let (error, back) = match sender {
                Sender::Http1(mut sender) => {
                    shape(&mut request, aim, false);
                    match sender.try_send_request(request).await {
                        Ok(answer) => {
                            if !aim.upgrade {
                                self.keep(sender, &dialer.tls);
                            }
                            return Ok((answer, busy));
                        }
                        Err(mut failed) => (failed.take_message(), failed.into_error()),
                    }
                }
                Sender::Http2(mut sender, stream) => {
                    busy.stream = Some(stream);
                    shape(&mut request, aim, true);
                    request.body().record();
                    match sender.try_send_request(request).await {
                        Ok(answer) => return Ok((answer, busy)),
                        Err(mut failed) => (failed.take_message(), failed.into_error()),
                    }
                }
            };
            match error {
                // A pooled connection that the endpoint has just closed is no failure.
                Some(unsent) if reused => {
                    self.multiplexed().clear();
                    request = unsent;
                }
                Some(unsent) => {
                    let error = DialError::Http { address: self.address, source: back };
                    return Err(SendError::Unsent(Box::new(unsent), error));
                }
                None if is_unprocessed(&back) => {
                    // The connection gets no further requests.
                    let stream = busy.stream.as_ref();
                    self.multiplexed().retain(|connection| stream.is_none_or(|stream| !Arc::ptr_eq(&connection.streams, stream)));
                    return Err(SendError::Unprocessed(back));
                }
                None => return Err(SendError::Sent(back)),
            }
        }
    }

    /// A connection for a request, and whether it was pooled.
    async fn sender(
        &self,
        aim: &UpstreamRequest<'_>,
        dialer: &Dialer<'_, impl ConnectionPermits>,
        busy: &mut InFlightGuard,
    ) -> Result<(Sender, bool), DialError> {
        if aim.upgrade {
            busy.permit = Some(dialer.permits.permit().await?);
            return Ok((self.dialled(None, dialer).await?, false));
        }
        if let Some(open) = self.open(&dialer.tls) {
            return Ok((open, true));
        }
        // Other requests wait for this HTTP/2 connection, and not one after the other for each of several failures.
        let mut opening = None;
        if self.multiplexes(dialer.protocol) {
            opening = Some(timeout(CONNECT_TIMEOUT, self.opening.lock()).await.map_err(|_| DialError::Deadline(self.address))?);
        }
        if let Some(open) = self.open(&dialer.tls) {
            return Ok((open, true));
        }
        let opening = opening.filter(|_| self.multiplexes(dialer.protocol));
        let sender = self.dialled(Some(dialer.permits.permit().await?), dialer).await?;
        self.is_http1.store(matches!(sender, Sender::Http1(_)), Ordering::Relaxed);
        drop(opening);
        Ok((sender, false))
    }

    /// Whether one connection may serve several requests at once.
    fn multiplexes(&self, protocol: BackendProtocol) -> bool {
        match protocol {
            BackendProtocol::Http => false,
            BackendProtocol::Https => !self.is_http1.load(Ordering::Relaxed),
            BackendProtocol::H2c => true,
        }
    }

    /// A new connection; HTTP/2 is pooled at once. Without a permit it is for an upgrade.
    async fn dialled<P>(&self, permit: Option<OwnedSemaphorePermit>, dialer: &Dialer<'_, P>) -> Result<Sender, DialError> {
        // Boxed: the future is large and would enlarge every request.
        let dial = Box::pin(dialer.dial(self.address, permit));
        let sender = dial.await?;
        if let Sender::Http2(sender, streams) = &sender {
            let mut http2 = self.multiplexed();
            // Of connections that were opened at the same time, one is enough.
            if !http2.iter().any(|connection| connection.has_room(&dialer.tls)) {
                let tls = dialer.tls.clone();
                http2.push(MultiplexedConnection { sender: sender.clone(), tls, streams: Arc::clone(streams), used: Instant::now() });
            }
        }
        Ok(sender)
    }

    /// A pooled connection of this TLS client: others trust other servers, such as those of a former CA.
    fn open(&self, tls: &TlsClient) -> Option<Sender> {
        let mut http2 = self.multiplexed();
        http2.retain(|connection| !connection.sender.is_closed());
        if let Some(connection) = http2.iter_mut().find(|connection| connection.has_room(tls)) {
            connection.used = Instant::now();
            return Some(Sender::Http2(connection.sender.clone(), Arc::clone(&connection.streams)));
        }
        drop(http2);
        let mut idle_now = self.idle_now();
        idle_now.retain(|connection| !connection.sender.is_closed());
        let is_usable = |idle: &IdleConnection| idle.tls == *tls && idle.sender.is_ready() && idle.used.elapsed() < IDLE_TIMEOUT;
        let at = idle_now.iter().rposition(is_usable)?;
        Some(Sender::Http1(idle_now.swap_remove(at).sender))
    }

    /// Returns a connection to the pool; it is usable after its current response.
    fn keep(&self, sender: http1::SendRequest<Upload>, tls: &TlsClient) {
        let mut idle_now = self.idle_now();
        if idle_now.len() < MAX_IDLE_PER_UPSTREAM {
            idle_now.push(IdleConnection { sender, tls: tls.clone(), used: Instant::now() });
        }
    }

    fn idle_now(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        self.http1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn multiplexed(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.http2.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MultiplexedConnection {
    /// Number of running requests.
    fn streams(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
    }

    /// Whether it may have another request of a TLS client.
    fn has_room(&self, tls: &TlsClient) -> bool {
        self.tls == *tls && self.streams() < usize::from(MAX_STREAMS)
    }
}

/// Whether an HTTP/2 server has not processed a request (RFC 9113, 8.7): h2 reports GOAWAY only for streams that it does not name.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else { return false };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let is_closing = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (is_refused || is_closing)
}

/// Adapts a request to an HTTP version.
fn shape(request: &mut Request<Upload>, aim: &UpstreamRequest<'_>, http2: bool) {
    let UpstreamTarget { backend, host, path, .. } = aim.target;
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(path.clone());
    // Set the length explicitly: hyper drops a GET's body without one.
    let exact = request.body().size_hint().exact();
    request.headers_mut().remove(TRANSFER_ENCODING);
    if http2 {
        request.headers_mut().remove(HOST);
        let over_tls = backend.protocol == BackendProtocol::Https;
        uri.scheme = Some(if over_tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP });
        uri.authority = host.as_bytes().try_into().ok();
        *request.version_mut() = Version::HTTP_2;
    } else {
        request.headers_mut().insert(HOST, host.clone());
        join_cookies(request.headers_mut(), aim.from);
        if exact.is_none() {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        *request.version_mut() = Version::HTTP_11;
    }
    // Valid: the parts come from a URI.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
}

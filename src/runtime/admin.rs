//! HTTP/1 server for health, metrics and debugging: a table of paths, with limits on all resources of a client.
//!
//! Serves GET and HEAD without a request body. A client that is slow or opens too many connections loses its own connections and delays no
//! other client: new connections are always accepted ([`open`]). The server knows nothing about the served content, and does not retry a
//! failed bind: that is the caller's decision.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::accept::next;
use super::tasks::{Heartbeats, Stop};
use open::{ActiveRequest, Open};
use stall::Stall;

mod open;
mod stall;

#[derive(Debug, Clone)]
pub struct AdminRequest {
    /// Address of the client.
    pub source: IpAddr,
    /// Query of the URL; empty if absent.
    pub query: String,
    pub headers: HeaderMap,
}

/// Response to a client.
pub type AdminResponse = Response<Full<Bytes>>;

pub type Handler = Arc<dyn Fn(AdminRequest) -> BoxFuture<'static, AdminResponse> + Send + Sync>;

/// Handlers by path; every other path is 404.
#[derive(Clone, Default)]
pub struct Routes(BTreeMap<&'static str, Handler>);

/// Limits of a client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Timeout of a request head, and of the next request on a kept connection.
    pub header: Duration,
    /// Timeout of a response that makes no progress because the client does not read.
    pub stall: Duration,
    /// Maximum concurrent connections; a further one closes another.
    pub connections: usize,
    /// Maximum concurrent connections of a source address.
    pub per_source: usize,
    /// Timeout of open requests when the server ends.
    pub drain: Duration,
}

/// A bound server that does not serve yet.
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
    routes: Routes,
    limits: Limits,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; is another process using it, or is the address not this machine's?")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

impl BindError {
    /// Metric label; closed set.
    pub fn reason(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => "AddressInUse",
            io::ErrorKind::AddrNotAvailable => "AddressNotAvailable",
            io::ErrorKind::PermissionDenied => "PermissionDenied",
            _ => "Other",
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(1),
            stall: Duration::from_secs(10),
            connections: 128,
            per_source: 16,
            drain: Duration::from_secs(2),
        }
    }
}

impl Routes {
    #[must_use]
    pub fn with<F>(mut self, path: &'static str, handler: impl Fn(AdminRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = AdminResponse> + Send + 'static,
    {
        self.0.insert(path, Arc::new(move |ask| Box::pin(handler(ask))));
        self
    }
}

/// A text response with `Cache-Control: no-store`.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> AdminResponse {
    typed(status, "text/plain; charset=utf-8", body)
}

/// A response of a content type, with `Cache-Control: no-store`.
pub fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Response to a liveness probe: 503 with the names of the tasks without a heartbeat for `limit`.
pub fn liveness(heartbeats: &Heartbeats, limit: Duration) -> AdminResponse {
    match heartbeats.stalled(limit).as_slice() {
        [] => text(StatusCode::OK, "ok"),
        stalled => {
            tracing::error!(tasks = ?stalled, "liveness probe failed: tasks have not run for {limit:?}; please report this with the log");
            text(StatusCode::SERVICE_UNAVAILABLE, format!("tasks that have not run for {limit:?}: {}\n", stalled.join(", ")))
        }
    }
}

impl AdminServer {
    pub async fn bind(address: SocketAddr, routes: Routes, limits: Limits) -> Result<Self, BindError> {
        let fail = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        Ok(Self { listener, address, routes, limits })
    }

    /// Bound address, with the actual port if 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready, then lets open requests finish, at most for [`Limits::drain`].
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let mut open = Open::default();
        let (closing, watcher) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        let routes = Arc::new(self.routes);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_) = connections.join_next() => continue,
                accepted = next(&self.listener, "http") => accepted,
            };
            let Some((stream, from)) = accepted else { continue };
            let (source, busy) = (from.ip().to_canonical(), ActiveRequest::default());
            open.make_room(source, self.limits);
            let work = connection((stream, source), Arc::clone(&routes), self.limits, busy.clone(), watcher.clone());
            open.add(source, busy, connections.spawn(work));
        }
        drop(self.listener);
        closing.send_replace(true);
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(self.limits.drain, drained).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// Serves an address until the stop; retries a failed bind after `delay`.
pub async fn serve(name: &'static str, address: SocketAddr, routes: Routes, stop: Stop, mut delay: impl FnMut() -> Duration) {
    loop {
        match AdminServer::bind(address, routes.clone(), Limits::default()).await {
            Ok(server) => {
                tracing::info!(listener = name, address = %server.address(), "listening");
                return server.serve(async move { stop.requested().await }).await;
            }
            Err(error) => tracing::error!(listener = name, reason = error.reason(), "{error}"),
        }
        tokio::select! {
            () = sleep(delay()) => {}
            () = stop.requested() => return,
        }
    }
}

async fn connection(
    (stream, source): (TcpStream, IpAddr),
    routes: Arc<Routes>,
    limits: Limits,
    busy: ActiveRequest,
    mut closing: watch::Receiver<bool>,
) {
    let service = service_fn(move |request| {
        let (routes, busy) = (Arc::clone(&routes), busy.clone());
        async move { Ok::<_, Infallible>(busy.during(answer(&routes, request, source)).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.header).max_headers(64).max_buf_size(16 * 1024);
    let mut conn = pin!(server.serve_connection(TokioIo::new(Stall::new(stream, limits.stall)), service));
    let ended = tokio::select! {
        ended = conn.as_mut() => ended,
        () = async { drop(closing.wait_for(|closing| *closing).await) } => {
            conn.as_mut().graceful_shutdown();
            conn.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

async fn answer(routes: &Routes, request: Request<Incoming>, source: IpAddr) -> AdminResponse {
    let (parts, body) = request.into_parts();
    let Some(handler) = routes.0.get(parts.uri.path()) else {
        return text(StatusCode::NOT_FOUND, "not found\n");
    };
    if parts.method != Method::GET && parts.method != Method::HEAD {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    if !body.is_end_stream() {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "no request here has a body\n");
    }
    handler(AdminRequest { source, query: parts.uri.query().unwrap_or_default().to_owned(), headers: parts.headers }).await
}

#[cfg(test)]
mod tests;

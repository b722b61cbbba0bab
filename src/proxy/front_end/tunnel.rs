//! Tunnels of upgraded connections, e.g. `WebSocket`s: bytes in both directions until either side or the listener ends, or an idle timeout.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

use crate::model::front_end::vhosts::headers;

use super::body::{Download, ProxiedResponse, ResponseGuard};
use super::client::ClientConnection;
use super::seams::HttpService;

/// Both sides of an upgraded connection.
pub(super) struct Halves {
    client: OnUpgrade,
    upstream: OnUpgrade,
    guard: ResponseGuard,
}

/// Response to the client for a 101 response of the backend, and both sides of the connection.
pub(super) fn join(mut answer: Response<Incoming>, client: OnUpgrade, guard: ResponseGuard) -> (ProxiedResponse, Halves) {
    let upstream = hyper::upgrade::on(&mut answer);
    let protocol = answer.headers().get(UPGRADE).cloned();
    let (mut parts, _) = answer.into_parts();
    headers::end_to_end(&mut parts.headers);
    parts.extensions.clear();
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
    }
    (Response::from_parts(parts, Download::Text(bytes::Bytes::new())), Halves { client, upstream, guard })
}

/// Transfers the bytes until either side, the listener or the client's right ends, or until the idle timeout.
pub(super) async fn run<S: HttpService>(service: Arc<S>, connection: Arc<ClientConnection<S::Caller>>, route: S::Route, halves: Halves) {
    let Halves { client, upstream, guard } = halves;
    let port = &connection.port;
    let mut ended = port.tunnels.subscribe();
    let transfer = async {
        let (client, upstream) = tokio::try_join!(client, upstream)?;
        let limit = port.shared.limits.tunnel_timeout;
        if !pass(&*service, route, TokioIo::new(client), TokioIo::new(upstream), limit).await {
            port.counts.aborted("Tunnel");
        }
        Ok::<_, hyper::Error>(())
    };
    tokio::select! {
        passed = transfer => if let Err(error) = passed {
            tracing::debug!(service = port.service, %error, "protocol upgrade failed");
        },
        _ = ended.changed() => {}
        () = service.revoked(&connection) => {}
    }
    drop(guard);
}

/// Transfers the bytes as the service does it; false after the idle timeout.
async fn pass<S, C, U>(service: &S, route: S::Route, client: C, upstream: U, limit: Duration) -> bool
where
    S: HttpService,
    C: AsyncRead + AsyncWrite + Unpin + Send,
    U: AsyncRead + AsyncWrite + Unpin + Send,
{
    // All data passes the client's side.
    let moved = Arc::new(Mutex::new(Instant::now()));
    let client = Watched { stream: client, moved: Arc::clone(&moved) };
    let quiet = async {
        loop {
            let until = *moved.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    };
    tokio::select! {
        () = service.tunnel(route, client, upstream) => true,
        () = quiet => false,
    }
}

/// A stream that records the time of its last read or write.
struct Watched<S> {
    stream: S,
    moved: Arc<Mutex<Instant>>,
}

impl<S> Watched<S> {
    fn note(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_ready() {
            self.note();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if polled.is_ready() {
            self.note();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

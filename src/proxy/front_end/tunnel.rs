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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};

use crate::model::front_end::vhosts::headers;

use super::body::ProxiedResponse;
use super::body::{Download, ResponseGuard};
use super::client::ClientConnection;

/// Connects the client to the backend after a 101 response.
pub(super) fn join(
    connection: &Arc<ClientConnection>,
    mut answer: Response<Incoming>,
    theirs: OnUpgrade,
    guard: ResponseGuard,
) -> ProxiedResponse {
    let ours = hyper::upgrade::on(&mut answer);
    let protocol = answer.headers().get(UPGRADE).cloned();
    let (mut parts, _) = answer.into_parts();
    headers::end_to_end(&mut parts.headers);
    parts.extensions.clear();
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
    }
    connection.port.counts.upgraded();
    let connection = Arc::clone(connection);
    tokio::spawn(async move {
        let port = &connection.port;
        let mut ended = port.tunnels.subscribe();
        let pass = async {
            let (theirs, ours) = tokio::try_join!(theirs, ours)?;
            if !passed(TokioIo::new(theirs), TokioIo::new(ours), port.shared.limits.tunnel_timeout).await {
                port.counts.aborted("Tunnel");
            }
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            passed = pass => if let Err(error) = passed {
                tracing::debug!(service = port.service, %error, "protocol upgrade failed");
            },
            _ = ended.changed() => {}
        }
        drop(guard);
    });
    Response::from_parts(parts, Download::Text(bytes::Bytes::new()))
}

/// Copies bytes in both directions until either side ends; false after the idle timeout.
async fn passed<A, B>(theirs: A, mut ours: B, limit: Duration) -> bool
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    // All data passes the client's side.
    let moved = Arc::new(Mutex::new(Instant::now()));
    let mut theirs = Watched { stream: theirs, moved: Arc::clone(&moved) };
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
        // An error of either side is a normal end.
        _ = copy_bidirectional(&mut theirs, &mut ours) => true,
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

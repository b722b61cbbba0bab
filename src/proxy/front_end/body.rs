//! Streaming of bodies, frame by frame, with detection of stalls.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::HeaderMap;
use hyper::Response;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

use crate::model::front_end::vhosts::min_rate::unpaid;

use super::activity::{InFlight, InFlightGuard, Progress};

/// Response to a client.
pub(super) type ProxiedResponse = Response<Download>;

/// Request body for a backend.
#[derive(Debug)]
pub(super) struct Upload(Option<Streamed>);

#[derive(Debug)]
struct Streamed {
    body: Incoming,
    state: Arc<State>,
    progress: Progress,
    limit: Duration,
    /// Removes forbidden fields from the trailers.
    trailers: fn(&mut HeaderMap),
    /// Start of waiting for the client.
    waiting: Option<Instant>,
    /// Unpaid wait for the client ([`unpaid`]).
    unpaid: Duration,
    over: Option<Pin<Box<Sleep>>>,
}

/// State shared by a body, which hyper owns, and its request.
#[derive(Debug, Default)]
struct State {
    fault: OnceLock<ClientFault>,
    over: AtomicBool,
    waker: AtomicWaker,
}

/// A request with a streaming body. Dropping it aborts the body: the response is no longer awaited.
#[derive(Debug)]
pub(super) struct Uploading(Option<Arc<State>>);

/// Fault of the client in a request body; never the backend's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientFault {
    /// Malformed, or the client disconnected.
    Broken,
    /// The client stopped sending.
    Stalled,
}

/// A body was aborted.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the other side of the connection broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the client sends too slowly: it was waited for {0:?}")]
    Stalled(Duration),
    #[error("the request is over")]
    Over,
}

impl Upload {
    pub(super) fn empty() -> Self {
        Self(None)
    }

    /// A body that is aborted after waiting for the client for `limit`, reduced by its unpaid wait ([`unpaid`]).
    /// `trailers` removes forbidden fields from its trailers.
    pub(super) fn new(body: Incoming, progress: Progress, limit: Duration, trailers: fn(&mut HeaderMap)) -> (Self, Uploading) {
        if body.is_end_stream() {
            return (Self(None), Uploading(None));
        }
        let state = Arc::default();
        let uploading = Uploading(Some(Arc::clone(&state)));
        (Self(Some(Streamed { body, state, progress, limit, trailers, waiting: None, unpaid: Duration::ZERO, over: None })), uploading)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Uploading {
    /// Fault of the client, if any.
    pub(super) fn fault(&self) -> Option<ClientFault> {
        self.0.as_ref()?.fault.get().copied()
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            state.over.store(true, Ordering::Release);
            state.waker.wake();
        }
    }
}

impl Streamed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Register before checking, so that no wake-up is lost.
        self.state.waker.register(cx.waker());
        if self.state.over.load(Ordering::Acquire) {
            return Poll::Ready(Some(Err(BodyError::Over)));
        }
        let Poll::Ready(polled) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.stalled(cx));
            let _ = self.state.fault.set(ClientFault::Stalled);
            return Poll::Ready(Some(Err(BodyError::Stalled(self.limit))));
        };
        let waited = self.unpaid + self.waiting.take().map_or(Duration::ZERO, |since| since.elapsed());
        let bytes = polled.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        self.unpaid = unpaid(waited, bytes);
        self.progress.moved();
        Poll::Ready(polled.map(|frame| {
            if frame.is_err() {
                let _ = self.state.fault.set(ClientFault::Broken);
            }
            let mut frame = frame?;
            if let Some(fields) = frame.trailers_mut() {
                (self.trailers)(fields);
            }
            Ok(frame)
        }))
    }

    /// Ready once the wait for the client exceeds the limit. The timer is not reset for each frame. Streams in both directions are often
    /// quiet: once the response has begun, earlier waits no longer count.
    fn stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        let over = self.over.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        loop {
            ready!(over.as_mut().poll(cx));
            let earlier = if self.progress.is_answered() { Duration::ZERO } else { self.unpaid };
            let until = since + self.limit.saturating_sub(earlier);
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            over.as_mut().reset(until);
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |streamed| streamed.poll(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|streamed| streamed.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |streamed| streamed.body.size_hint())
    }
}

/// Response body for the client.
#[derive(Debug)]
pub(super) enum Download {
    Stream(Incoming, ResponseGuard),
    Text(Bytes),
}

/// Guards that live until the response body is sent.
#[derive(Debug)]
pub(super) struct ResponseGuard {
    pub(super) in_flight: InFlight,
    pub(super) _busy: InFlightGuard,
    pub(super) _uploading: Uploading,
    pub(super) _room: OwnedSemaphorePermit,
}

impl Download {
    pub(super) fn stream(body: Incoming, guard: ResponseGuard) -> Self {
        if body.is_end_stream() { Self::Text(Bytes::new()) } else { Self::Stream(body, guard) }
    }

    /// Without our own text, for HEAD: HTTP/2 would send it.
    pub(super) fn unsaid(self) -> Self {
        if let Self::Text(_) = self { Self::Text(Bytes::new()) } else { self }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Stream(body, guard) => {
                // More data is requested after the client has read the previous data.
                let polled = Pin::new(body).poll_frame(cx);
                match &polled {
                    Poll::Ready(frame) => {
                        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                        guard.in_flight.offered(data.map_or(0, Bytes::len));
                    }
                    Poll::Pending => guard.in_flight.awaits_backend(),
                }
                polled.map_err(BodyError::Broken)
            }
            Self::Text(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Text(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(body, _) => body.is_end_stream(),
            Self::Text(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Stream(body, _) => body.size_hint(),
            Self::Text(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

//! Streaming of bodies, frame by frame, with detection of stalls.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
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
use super::sources::RequestSlot;
use super::stats::LongRunningGuard;

/// Maximum bytes of a body that are stored to be sent again.
const MAX_REPEATED: usize = 16 << 10;
/// Maximum number of frames that are stored.
const MAX_REPEATED_FRAMES: usize = 64;

/// Response to a client.
pub(super) type ProxiedResponse = Response<Download>;

/// Request body for a backend, which hyper owns.
#[derive(Debug)]
pub(super) struct Upload(Option<Arc<UploadState>>);

#[derive(Debug)]
struct Streamed {
    body: Incoming,
    progress: Progress,
    limit: Duration,
    /// Removes forbidden fields from the trailers.
    trailers: fn(&mut HeaderMap),
    /// Start of waiting for the client.
    waiting: Option<Instant>,
    /// Unpaid wait for the client ([`unpaid`]).
    unpaid: Duration,
    over: Option<Pin<Box<Sleep>>>,
    is_read: bool,
    /// Data to send again, before the rest of the body.
    repeated: VecDeque<Bytes>,
    /// Data that was sent; `None` if the body cannot be sent again.
    sent: Option<Vec<Bytes>>,
}

/// State shared by a body, which hyper owns, and its request.
#[derive(Debug, Default)]
struct UploadState {
    /// `None` once another attempt has it.
    streamed: Mutex<Option<Streamed>>,
    fault: OnceLock<ClientFault>,
    over: AtomicBool,
    waker: AtomicWaker,
}

/// A request with a streaming body. Dropping it aborts the body: the response is no longer awaited.
#[derive(Debug)]
pub(super) struct Uploading(Option<Arc<UploadState>>);

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
        let (repeated, unpaid) = (VecDeque::new(), Duration::ZERO);
        UploadState::parts(Streamed {
            body,
            progress,
            limit,
            trailers,
            waiting: None,
            unpaid,
            over: None,
            is_read: false,
            repeated,
            sent: None,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// From now on stores a limited amount of the data that is sent, for [`Uploading::reclaim`].
    pub(super) fn record(&self) {
        if let Some(state) = &self.0 {
            state.streamed().iter_mut().for_each(|streamed| streamed.sent = Some(Vec::new()));
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            state.streamed().take_if(|streamed| streamed.sent.is_none());
        }
    }
}

impl Uploading {
    /// Fault of the client, if any.
    pub(super) fn fault(&self) -> Option<ClientFault> {
        self.0.as_ref()?.fault.get().copied()
    }

    /// The whole body, to be sent again, as the server has not processed it; `None` if too much of it was sent, or if the client is at fault.
    pub(super) fn reclaim(&mut self) -> Option<Upload> {
        let Some(state) = &self.0 else { return Some(Upload::empty()) };
        let mut streamed = state.streamed().take_if(|streamed| streamed.sent.is_some())?;
        if self.fault().is_some() {
            return None;
        }
        let sent = streamed.sent.take().unwrap_or_default();
        streamed.repeated = sent.into_iter().chain(streamed.repeated).collect();
        let (upload, uploading) = UploadState::parts(streamed);
        *self = uploading;
        Some(upload)
    }

    /// The response has begun: the body is not sent again.
    pub(super) fn settle(&self) {
        let Some(state) = &self.0 else { return };
        let mut streamed = state.streamed();
        // hyper may have dropped the body already.
        match Arc::strong_count(state) {
            1 => *streamed = None,
            _ => streamed.iter_mut().for_each(|streamed| streamed.sent = None),
        }
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

impl UploadState {
    fn parts(streamed: Streamed) -> (Upload, Uploading) {
        let state = Arc::new(Self { streamed: Mutex::new(Some(streamed)), ..Self::default() });
        (Upload(Some(Arc::clone(&state))), Uploading(Some(state)))
    }

    fn streamed(&self) -> MutexGuard<'_, Option<Streamed>> {
        self.streamed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Register before checking, so that no wake-up is lost.
        self.waker.register(cx.waker());
        match &mut *self.streamed() {
            Some(streamed) if !self.over.load(Ordering::Acquire) => streamed.poll(cx, &self.fault),
            _ => Poll::Ready(Some(Err(BodyError::Over))),
        }
    }
}

impl Streamed {
    fn poll(&mut self, cx: &mut Context<'_>, fault: &OnceLock<ClientFault>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(data) = self.repeated.pop_front() {
            self.note_sent(&data);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.is_read {
            return Poll::Ready(None);
        }
        let Poll::Ready(polled) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.stalled(cx));
            let _ = fault.set(ClientFault::Stalled);
            return Poll::Ready(Some(Err(BodyError::Stalled(self.limit))));
        };
        let waited = self.unpaid + self.waiting.take().map_or(Duration::ZERO, |since| since.elapsed());
        let data = polled.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        self.unpaid = unpaid(waited, data.map_or(0, Bytes::len));
        self.progress.moved();
        match data {
            Some(data) => self.note_sent(data),
            // Trailers are not sent again.
            None if polled.is_some() => self.sent = None,
            None => self.is_read = true,
        }
        Poll::Ready(polled.map(|frame| {
            if frame.is_err() {
                let _ = fault.set(ClientFault::Broken);
            }
            let mut frame = frame?;
            if let Some(fields) = frame.trailers_mut() {
                (self.trailers)(fields);
            }
            Ok(frame)
        }))
    }

    /// Records data that is sent, up to a limit.
    fn note_sent(&mut self, data: &Bytes) {
        let Some(sent) = &mut self.sent else { return };
        let bytes = data.len() + sent.iter().map(Bytes::len).sum::<usize>();
        if bytes > MAX_REPEATED || sent.len() >= MAX_REPEATED_FRAMES {
            self.sent = None;
        } else {
            // A copy: a frame is a slice of a larger buffer.
            sent.push(Bytes::copy_from_slice(data));
        }
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

    fn is_ended(&self) -> bool {
        self.repeated.is_empty() && (self.is_read || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let repeated: u64 = self.repeated.iter().map(|data| data.len() as u64).sum();
        let mut size = if self.is_read { SizeHint::with_exact(0) } else { self.body.size_hint() };
        if let Some(upper) = size.upper() {
            size.set_upper(upper + repeated);
        }
        size.set_lower(size.lower() + repeated);
        size
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.as_ref().map_or(Poll::Ready(None), |state| state.poll(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|state| state.streamed().as_ref().is_some_and(Streamed::is_ended))
    }

    fn size_hint(&self) -> SizeHint {
        let Some(state) = &self.0 else { return SizeHint::with_exact(0) };
        state.streamed().as_ref().map_or_else(SizeHint::default, Streamed::size_hint)
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
    pub(super) _long_running: Option<LongRunningGuard>,
    pub(super) _slot: RequestSlot,
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

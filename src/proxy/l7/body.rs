//! Bodies as they pass through: frame by frame, never gathered, trailers and all.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// A body that passes, and what is let go when it has.
#[derive(Debug)]
pub(super) struct Passing<G = ()> {
    content: Content,
    /// Held as long as the body is.
    _guard: Option<G>,
}

#[derive(Debug)]
enum Content {
    Stream(Incoming),
    Bytes(Bytes),
}

impl<G> Passing<G> {
    /// What comes from the other side.
    pub(super) fn stream(body: Incoming, guard: Option<G>) -> Self {
        let content = if body.is_end_stream() { Content::Bytes(Bytes::new()) } else { Content::Stream(body) };
        Self { content, _guard: guard }
    }

    /// A text of our own.
    pub(super) fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self { content: Content::Bytes(bytes.into()), _guard: None }
    }

    /// Without a text of our own: what a HEAD is answered with. HTTP/2 would send it.
    pub(super) fn unsaid(mut self) -> Self {
        if let Content::Bytes(bytes) = &mut self.content {
            bytes.clear();
        }
        self
    }

    /// Whether nothing will come.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.content, Content::Bytes(bytes) if bytes.is_empty())
    }
}

impl<G: Unpin> Body for Passing<G> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.content {
            Content::Stream(body) => Pin::new(body).poll_frame(cx),
            Content::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Stream(body) => body.is_end_stream(),
            Content::Bytes(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Stream(body) => body.size_hint(),
            Content::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

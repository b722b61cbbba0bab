//! Lingering close after the end of TLS: the client closes the TCP connection first; we do only after a timeout.
//!
//! A client's TCP connection ends in tailscaled, which closes its side as soon as we close ours. The side that closes first keeps the
//! addresses and ports in `TIME_WAIT` for a minute. Kernels let a new connection reuse them earlier; tailscaled's TCP stack ignores its SYN, so
//! a client that reuses the port would hang. With the client's kernel in `TIME_WAIT`, it does not reuse the port. TLS has signalled its end
//! already, so nothing is lost; without TLS the end of a connection may be the end of a response, so there is no lingering.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// A connection that is returned instead of closed on drop.
#[derive(Debug)]
pub(super) struct LingerGuard {
    stream: Option<TcpStream>,
    back: Option<oneshot::Sender<TcpStream>>,
}

/// Wraps a connection, which the receiver gets at its shutdown. If the receiver is dropped, shutdown closes the connection as usual.
pub(super) fn hand_out(stream: TcpStream) -> (LingerGuard, oneshot::Receiver<TcpStream>) {
    let (back, given_back) = oneshot::channel();
    (LingerGuard { stream: Some(stream), back: Some(back) }, given_back)
}

/// Waits until the client has closed, or for `limit`, or until `closing`; then closes.
pub(super) async fn linger(mut stream: TcpStream, limit: Duration, mut closing: watch::Receiver<bool>) {
    let farewell = async {
        let mut rest = [0; 512];
        while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        () = farewell => {}
        () = sleep(limit) => {}
        _ = closing.wait_for(|closing| *closing) => {}
    }
}

impl LingerGuard {
    fn writer(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| ErrorKind::BrokenPipe.into())
    }
}

impl AsyncRead for LingerGuard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Some(stream) => Pin::new(stream).poll_read(cx, buf),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for LingerGuard {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().writer()?.poll_write(cx, buf)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.get_mut().writer()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Some(stream) => Pin::new(stream).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let (Some(back), Some(stream)) = (this.back.take(), this.stream.take()) {
            this.stream = back.send(stream).err();
        }
        match &mut this.stream {
            Some(stream) => Pin::new(stream).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

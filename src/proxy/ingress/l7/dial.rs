//! Opens connections to backends: TCP, TLS where the backend speaks it, and HTTP/1.1 or HTTP/2 on top.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::api::routes::BackendProtocol;
use crate::edge::tls::{Connector, TlsError};

use super::body::Upload;

/// TCP and TLS together take no longer; Pods are near.
const CONNECT: Duration = Duration::from_secs(3);
/// How often a busy HTTP/2 connection is asked whether its peer lives, and how long that may take.
const PING: Duration = Duration::from_secs(15);
/// The longest head of an answer.
const HEAD: usize = 256 << 10;
/// How much of a stream may be under way: gRPC moves large messages.
const WINDOW: u32 = 1 << 20;

/// A connection to a backend, ready for a request.
pub(super) enum Sender {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
}

/// Why a backend could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("cannot connect to {address}: {source}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("no connection to {0} within {CONNECT:?}")]
    Deadline(SocketAddr),
    #[error("{address}: {source}")]
    Tls { address: SocketAddr, source: TlsError },
    #[error("{address} does not speak HTTP as it should: {source}")]
    Http { address: SocketAddr, source: hyper::Error },
    #[error("there are as many connections to backends as there may be")]
    Full,
    #[error("the address {name:?} is unknown: {source}")]
    Name { name: String, source: io::Error },
}

impl DialError {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "Connect",
            Self::Deadline(_) => "Deadline",
            Self::Tls { .. } => "Tls",
            Self::Http { .. } => "Http",
            Self::Full => "Full",
            Self::Name { .. } => "Name",
        }
    }
}

/// Opens a connection, which keeps its `room` until it has ended. Without one, it may become something else and speaks HTTP/1.1, which
/// alone can. `name` is what TLS asks for.
pub(super) async fn dial(
    address: SocketAddr,
    protocol: BackendProtocol,
    name: &str,
    tls: &Connector,
    room: Option<OwnedSemaphorePermit>,
) -> Result<Sender, DialError> {
    let upgradable = room.is_none();
    let open = async {
        let stream = TcpStream::connect(address).await.map_err(|source| DialError::Connect { address, source })?;
        // Not to have it costs latency, nothing else.
        let _ = stream.set_nodelay(true);
        if protocol != BackendProtocol::Https {
            return shake(address, stream, protocol == BackendProtocol::H2c && !upgradable, room).await;
        }
        let opened = tls.connect(name, stream, !upgradable).await;
        let (stream, http2) = opened.map_err(|source| DialError::Tls { address, source })?;
        shake(address, stream, http2, room).await
    };
    timeout(CONNECT, open).await.unwrap_or(Err(DialError::Deadline(address)))
}

async fn shake<S>(address: SocketAddr, stream: S, is_http2: bool, room: Option<OwnedSemaphorePermit>) -> Result<Sender, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = |source| DialError::Http { address, source };
    let stream = TokioIo::new(stream);
    if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING).adaptive_window(false);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(4 * WINDOW).max_header_list_size(64 << 10);
        let (mut sender, connection) = builder.handshake(stream).await.map_err(http)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, %error, "a connection to a backend ended early");
            }
            drop(room);
        });
        sender.ready().await.map_err(http)?;
        return Ok(Sender::Http2(sender));
    }
    let (mut sender, connection) = http1::Builder::new().max_buf_size(HEAD).handshake(stream).await.map_err(http)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%address, %error, "a connection to a backend ended early");
        }
        drop(room);
    });
    sender.ready().await.map_err(http)?;
    Ok(Sender::Http1(sender))
}

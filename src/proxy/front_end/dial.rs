//! Opens upstream connections: TCP, optional TLS, and HTTP/1.1 or HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::api::routes::BackendProtocol;
use crate::edge::tls::{TlsClient, TlsError};

use super::body::Upload;

/// Timeout of TCP and TLS together; Pods are near.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval and timeout of HTTP/2 pings on busy connections.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum size of a response head.
const HEAD: usize = 256 << 10;
/// Maximum number of headers of an HTTP/1.1 head: hyper allocates room for all of them.
pub(super) const MAX_HEADERS: usize = 1024;
/// Maximum concurrent requests on an HTTP/2 connection: servers such as kube-apiserver permit no more, and others would wait for the end of
/// a stream.
pub(super) const MAX_STREAMS: u8 = 100;
/// HTTP/2 stream window. That of the connection has room for all streams: a client that reads slowly delays no other's response.
const WINDOW: u32 = 128 << 10;

/// An upstream connection, ready for a request.
pub(super) enum Sender {
    Http1(http1::SendRequest<Upload>),
    /// With the count of its running requests, which have clones.
    Http2(http2::SendRequest<Upload>, Arc<()>),
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub(super) enum DialError {
    #[error("cannot connect to {address}: {source}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("no connection to {0} within {CONNECT_TIMEOUT:?}")]
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
        self.into()
    }
}

/// Permits that limit upstream connections.
pub(super) trait ConnectionPermits {
    /// A permit for another connection.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, DialError>;
}

/// How connections to the upstreams of a backend are opened.
#[derive(Debug)]
pub(super) struct Dialer<'a, P> {
    pub(super) protocol: BackendProtocol,
    /// TLS server name.
    pub(super) server_name: &'a str,
    /// Only connections of this client are used.
    pub(super) tls: TlsClient,
    pub(super) permits: &'a P,
}

impl<P> Dialer<'_, P> {
    /// Opens a connection that holds a permit until it ends. Without one it is for an upgrade and uses HTTP/1.1.
    pub(super) async fn dial(&self, address: SocketAddr, permit: Option<OwnedSemaphorePermit>) -> Result<Sender, DialError> {
        let upgradable = permit.is_none();
        let open = async {
            let stream = TcpStream::connect(address).await.map_err(|source| DialError::Connect { address, source })?;
            // A failure only adds latency.
            let _ = stream.set_nodelay(true);
            if self.protocol != BackendProtocol::Https {
                return handshake(address, stream, self.protocol == BackendProtocol::H2c && !upgradable, permit).await;
            }
            let opened = self.tls.connect(self.server_name, stream, !upgradable).await;
            let (stream, http2) = opened.map_err(|source| DialError::Tls { address, source })?;
            handshake(address, stream, http2, permit).await
        };
        timeout(CONNECT_TIMEOUT, open).await.unwrap_or(Err(DialError::Deadline(address)))
    }
}

async fn handshake<S>(address: SocketAddr, stream: S, is_http2: bool, permit: Option<OwnedSemaphorePermit>) -> Result<Sender, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = |source| DialError::Http { address, source };
    let stream = TokioIo::new(stream);
    if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_INTERVAL).adaptive_window(false);
        builder
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(u32::from(MAX_STREAMS) * WINDOW)
            .max_header_list_size(64 << 10);
        let (mut sender, connection) = builder.handshake(stream).await.map_err(http)?;
        tokio::spawn(drive(address, connection, permit));
        sender.ready().await.map_err(http)?;
        return Ok(Sender::Http2(sender, Arc::default()));
    }
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(HEAD).max_headers(MAX_HEADERS).handshake(stream).await.map_err(http)?;
    tokio::spawn(drive(address, connection.with_upgrades(), permit));
    sender.ready().await.map_err(http)?;
    Ok(Sender::Http1(sender))
}

/// Transfers the bytes of a connection until it ends.
async fn drive(address: SocketAddr, connection: impl Future<Output = hyper::Result<()>>, permit: Option<OwnedSemaphorePermit>) {
    if let Err(error) = connection.await {
        tracing::debug!(%address, %error, "a connection to a backend ended early");
    }
    drop(permit);
}

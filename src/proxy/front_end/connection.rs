//! One connection from a client: PROXY protocol header, TLS, and requests.
//!
//! A client costs one connection for a limited time: header, handshake, first request, idle time and each step of a body have deadlines, and
//! a request's head has a maximum size. The number of connections of a client is limited.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::edge::kernel_tcp::original_destination;
use crate::edge::tls::is_http2;
use crate::model::front_end::proxy_protocol::{FIXED, Fixed, PreambleError};

use super::activity::{Activity, IdleTimeouts, Turn};
use super::client::{ClientConnection, ClientNetwork, ConnectionBudget};
use super::dial::MAX_HEADERS;
use super::linger_close::hand_out;
use super::request::answer;
use super::seams::HttpService;
use super::sources::SourceFull;
use super::{Closing, Limits, ListenerPort};

/// Time for an idle client to close after GOAWAY or `Connection: close`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection was rejected.
#[derive(Debug, thiserror::Error)]
enum RejectedConnection {
    #[error("the PROXY header did not come in time")]
    Late,
    #[error("the connection broke before its PROXY header was whole: {0}")]
    Broken(#[source] std::io::Error),
    #[error(transparent)]
    Preamble(#[from] PreambleError),
    #[error("the connection was not opened to an address of the Tailscale Service: {0:?}")]
    Destination(std::io::Result<SocketAddr>),
}

impl RejectedConnection {
    fn reason(&self) -> &'static str {
        match self {
            Self::Late => "Late",
            Self::Broken(_) => "Broken",
            Self::Preamble(error) => error.reason(),
            Self::Destination(_) => "Destination",
        }
    }
}

/// Serves a connection until it ends; once `closing`, new requests are rejected. Returns it if TLS has ended and TCP must still be closed.
pub(super) async fn serve<S: HttpService>(
    mut stream: TcpStream,
    port: Arc<ListenerPort>,
    service: Arc<S>,
    room: Arc<ConnectionBudget>,
    closing: watch::Receiver<bool>,
) -> Option<TcpStream> {
    // A failure only adds latency.
    let _ = stream.set_nodelay(true);
    let open = port.shared.stats.opened(&port.counts);
    let limits = &port.shared.limits;
    let client = match port.network {
        ClientNetwork::Tailnet => {
            timeout(limits.proxy_header_timeout, preamble(&mut stream)).await.unwrap_or(Err(RejectedConnection::Late))
        }
        ClientNetwork::Kernel => translated(&stream, &port),
        ClientNetwork::Cluster(_) => stream.peer_addr().map(Some).map_err(RejectedConnection::Broken),
    };
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            port.counts.refused(error.reason());
            tracing::debug!(service = port.service, reason = error.reason(), "{error}");
            return None;
        }
    };
    let slot = port.shared.sources.enter(client).inspect_err(|full| too_many(&port, client, *full)).ok()?;
    let caller = S::Caller::default();
    let connection = ClientConnection { caller, address: client, port: Arc::clone(&port), _open: open, slot, _room: room };
    if !port.over_tls {
        requests(stream, None, service, connection, closing).await;
        return None;
    }
    let acceptor = port.served.read().acceptor.clone()?;
    let (stream, mut given_back) = hand_out(stream);
    match timeout(limits.handshake_timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            port.counts.handshake("ok");
            let is_http2 = is_http2(&stream);
            requests(stream, Some(is_http2), service, connection, closing).await;
        }
        Ok(Err(error)) => {
            port.counts.handshake(error.reason());
            tracing::debug!(service = port.service, reason = error.reason(), "{error}");
        }
        Err(_) => port.counts.handshake("Deadline"),
    }
    given_back.try_recv().ok()
}

fn too_many(port: &ListenerPort, client: Option<SocketAddr>, full: SourceFull) {
    port.counts.refused("Source");
    if let Some(client) = client.filter(|_| full.is_logged) {
        let (service, most) = (&port.service, port.shared.limits.shares.source);
        tracing::warn!(service, %client, most, "rejecting connections of a client at its connection limit; check the client, or raise --max-connections");
    }
}

/// Client of a connection that ends in the kernel. It was opened to the Tailscale Service, which the client's access rules are about, and
/// came through the tunnel: rules translate no other connection.
fn translated(stream: &TcpStream, port: &ListenerPort) -> Result<Option<SocketAddr>, RejectedConnection> {
    let destination = original_destination(stream);
    let site = Arc::clone(&port.served.read().site);
    if !destination.as_ref().is_ok_and(|to| to.port() == port.number && site.addresses.contains(&to.ip())) {
        return Err(RejectedConnection::Destination(destination));
    }
    let client = stream.peer_addr().map_err(RejectedConnection::Broken)?;
    Ok(Some(SocketAddr::new(client.ip().to_canonical(), client.port())))
}

/// Reads the PROXY protocol header and not a byte more.
async fn preamble(stream: &mut TcpStream) -> Result<Option<SocketAddr>, RejectedConnection> {
    let mut fixed = [0; FIXED];
    stream.read_exact(&mut fixed).await.map_err(RejectedConnection::Broken)?;
    let fixed = Fixed::read(&fixed)?;
    let mut rest = vec![0; fixed.rest];
    stream.read_exact(&mut rest).await.map_err(RejectedConnection::Broken)?;
    Ok(fixed.client(&rest))
}

/// Serves HTTP/2 or HTTP/1.1; without ALPN, detects the version.
async fn requests<I, S>(
    stream: I,
    is_http2: Option<bool>,
    service: Arc<S>,
    client: ClientConnection<S::Caller>,
    mut closing: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService,
{
    let (port, client) = (Arc::clone(&client.port), Arc::new(client));
    let limits = &port.shared.limits;
    let activity = Activity::new();
    let builder = auto::Builder::new(activity.clone());
    let mut builder = match is_http2 {
        Some(true) => builder.http2_only(),
        Some(false) => builder.http1_only(),
        None => builder,
    };
    limit(&mut builder, limits);
    let answered = {
        let (activity, service, client) = (activity.clone(), Arc::clone(&service), Arc::clone(&client));
        service_fn(move |request| {
            let (in_flight, service, client) = (activity.begin(), Arc::clone(&service), Arc::clone(&client));
            async move { Ok::<_, Infallible>(answer(service, client, in_flight, request).await) }
        })
    };
    let patience = IdleTimeouts { first: limits.first_request_timeout, next: limits.idle_timeout };
    let stall = |turn| match turn {
        Turn::Head => None,
        Turn::Client => Some(limits.body_timeout),
        Turn::Backend => Some(limits.answer_timeout),
    };
    // Interval of checks for stalled requests.
    let look = limits.body_timeout.min(limits.answer_timeout);
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), answered));
    let mut revoked = pin!(service.revoked(&client));
    let mut finishing = port.shared.closing.clone();
    let (mut draining, mut over) = (false, Instant::now() + limits.first_request_timeout.min(look));
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(service = port.service, %error, "a connection ended early");
                }
                return;
            }
            () = revoked.as_mut() => return,
            () = told_to_go(&mut closing, &mut finishing, &activity), if !draining => {
                connection.as_mut().graceful_shutdown();
                (draining, over) = (true, Instant::now() + CLOSE_TIMEOUT);
            }
            () = sleep_until(over) => {
                if activity.end_stalled(stall, |turn| port.counts.aborted(if turn == Turn::Client { "Client" } else { "Backend" })) {
                    return;
                }
                let now = Instant::now();
                match activity.until(patience) {
                    // A request is running, or ended a moment ago.
                    None => over = now + if draining { CLOSE_TIMEOUT } else { limits.idle_timeout }.min(look),
                    Some(until) if !draining && until > now => over = until.min(now + look),
                    Some(_) if draining => return,
                    Some(_) => {
                        connection.as_mut().graceful_shutdown();
                        (draining, over) = (true, now + CLOSE_TIMEOUT);
                    }
                }
            }
        }
    }
}

/// Returns when this connection accepts no new requests: at once when the listener closes; during a drain, after its first request, so that
/// a new connection is not cut before its response.
async fn told_to_go(closing: &mut watch::Receiver<bool>, finishing: &mut watch::Receiver<Closing>, activity: &Activity) {
    let finished = async {
        if finishing.wait_for(|closing| *closing >= Closing::Draining).await.is_err() {
            pending::<()>().await;
        }
        activity.request_began().await;
    };
    tokio::select! {
        _ = closing.wait_for(|closing| *closing) => {}
        () = finished => {}
    }
}

fn limit(builder: &mut auto::Builder<Activity>, limits: &Limits) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_buf_size(limits.max_head_bytes)
        .max_headers(MAX_HEADERS)
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15));
}

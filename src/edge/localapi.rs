//! tailscaled's LocalAPI: HTTP/1.1 over its Unix socket.
//!
//! Each call has its own connection and timeout, so that a hanging call does not block others. [`Bus`] returns one message at a time and
//! stores none; readers must process messages at once, as the daemon closes the stream of a slow reader.

mod packet_filter;
mod record;
mod rejects;
mod serve;
mod whois;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::join;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api::localapi::{DaemonStatus, DnsConfig, MaskedPrefs, Notify, Pong, Prefs, Reloaded, StartOptions, Warned};

pub use serve::ServeState;

/// Watch mask of the IPN bus without peers: initial status, preferences and health, no full netmaps.
pub const MASK_WITHOUT_PEERS: u32 = 16384 | 8192 | 128 | 4;
/// Watch mask with incremental peer changes.
pub const MASK: u32 = MASK_WITHOUT_PEERS | 4096 | 32768;
/// Watch mask for daemons before 1.100: initial state, preferences, netmap and health, then full netmaps. Since 1.104 daemons refuse it.
pub const MASK_OLD: u32 = 128 | 8 | 4 | 2;
/// Capability version of 1.100, whose first message has the initial status.
pub const INITIAL_STATUS_CAPVER: u32 = 141;

/// Timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a write: the daemon may be storing its state at a slow API server.
const WRITE_TIMEOUT: Duration = Duration::from_secs(35);
/// Maximum bytes of a message or response: a status of some 40,000 peers.
const MAX_BYTES: usize = 64 << 20;
/// Capability version that this client reports; informational.
const CAPVER: &str = "142";

#[derive(Debug, Clone)]
pub struct LocalApi {
    socket: PathBuf,
}

/// Type of a ping to a tailnet node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PingKind {
    /// Outside the tunnel: tests whether a path exists and whether the peer knows this node.
    Disco,
    /// Through the tunnel, which it establishes if necessary.
    Tsmp,
}

pub struct Bus {
    body: Incoming,
    /// Task that drives the connection.
    _connection: JoinSet<hyper::Result<()>>,
    buffer: BytesMut,
    scanned: usize,
    /// Capability version of the daemon.
    pub capver: Option<u32>,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum LocalApiError {
    #[error("cannot connect to tailscaled at {}: {source}", socket.display())]
    Connect { socket: PathBuf, source: io::Error },
    #[error("{call}: the connection to tailscaled broke: {source}")]
    Connection { call: &'static str, source: hyper::Error },
    #[error("{call}: no answer from tailscaled within {after:?}")]
    Deadline { call: &'static str, after: Duration },
    #[error("{call}: tailscaled answered {status}: {text}")]
    Refused { call: &'static str, status: StatusCode, text: String },
    #[error("{call}: not understood: {source}")]
    #[strum(serialize = "Malformed")]
    Json { call: &'static str, source: serde_json::Error },
    #[error("{call}: more than {MAX_BYTES} bytes at once")]
    TooLong { call: &'static str },
    #[error("{call}: {source}")]
    Request { call: &'static str, source: hyper::http::Error },
    #[error("tailscaled did not take the config file; its own log says why ({0})")]
    NotReloaded(String),
    #[error("whois: while shields are up, tailscaled has no grants of this client")]
    NoGrants,
}

impl LocalApiError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Whether the stream remains usable after this error: one message was malformed, the next may be valid.
    pub fn stream_goes_on(&self) -> bool {
        matches!(self, Self::Json { .. })
    }
}

impl LocalApi {
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self { socket: socket.as_ref().to_owned() }
    }

    /// Full status, and the daemon's capability version.
    pub async fn status(&self) -> Result<(DaemonStatus, Option<u32>), LocalApiError> {
        self.status_at("status").await
    }

    /// Status of this node.
    pub async fn status_without_peers(&self) -> Result<(DaemonStatus, Option<u32>), LocalApiError> {
        self.status_at("status?peers=false").await
    }

    async fn status_at(&self, path: &str) -> Result<(DaemonStatus, Option<u32>), LocalApiError> {
        let answer = self.call("status", Method::GET, path, Vec::new(), READ_TIMEOUT).await?;
        Ok((json("status", answer.body())?, capver(&answer)))
    }

    pub async fn prefs(&self) -> Result<Prefs, LocalApiError> {
        json("prefs", self.call("prefs", Method::GET, "prefs", Vec::new(), READ_TIMEOUT).await?.body())
    }

    /// Changes preferences; returns the resulting ones.
    pub async fn edit_prefs(&self, change: &MaskedPrefs) -> Result<Prefs, LocalApiError> {
        let body = encode("edit-prefs", change)?;
        json("edit-prefs", self.call("edit-prefs", Method::PATCH, "prefs", body, WRITE_TIMEOUT).await?.body())
    }

    pub async fn reload_config(&self) -> Result<(), LocalApiError> {
        let answer = self.call("reload-config", Method::POST, "reload-config", Vec::new(), WRITE_TIMEOUT).await?;
        if answer.body().iter().all(u8::is_ascii_whitespace) {
            return Err(LocalApiError::NotReloaded("it answered nothing".to_owned()));
        }
        let reloaded: Reloaded = json("reload-config", answer.body())?;
        match (reloaded.reloaded, reloaded.err.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => Err(LocalApiError::NotReloaded("it was started without one".to_owned())),
            (_, false) => Err(LocalApiError::NotReloaded(reloaded.err)),
        }
    }

    /// DNS records and certificate domains. Refused before the first login.
    pub async fn dns_config(&self) -> Result<DnsConfig, LocalApiError> {
        json("dns-config", self.call("dns-config", Method::GET, "dns-config", Vec::new(), READ_TIMEOUT).await?.body())
    }

    /// Restarts the daemon's engine with an auth key.
    pub async fn start(&self, options: &StartOptions) -> Result<(), LocalApiError> {
        let body = encode("start", options)?;
        self.call("start", Method::POST, "start", body, WRITE_TIMEOUT).await.map(drop)
    }

    /// Starts a login if there is none yet; with an auth key given to [`Self::start`] it needs no user interaction.
    pub async fn login_interactive(&self) -> Result<(), LocalApiError> {
        self.call("login-interactive", Method::POST, "login-interactive", Vec::new(), WRITE_TIMEOUT).await.map(drop)
    }

    /// Disconnects from the control server; connections to peers remain.
    pub async fn disconnect_control(&self) -> Result<(), LocalApiError> {
        self.call("disconnect-control", Method::POST, "disconnect-control", Vec::new(), WRITE_TIMEOUT).await.map(drop)
    }

    /// Enables UDP GRO forwarding in the kernel.
    pub async fn set_udp_gro_forwarding(&self) -> Result<(), LocalApiError> {
        self.call("set-udp-gro-forwarding", Method::GET, "set-udp-gro-forwarding", Vec::new(), READ_TIMEOUT).await.map(drop)
    }

    /// Warning of the daemon about UDP GRO forwarding on the machine's link; `None` if there is none.
    pub async fn check_udp_gro_forwarding(&self) -> Result<Option<String>, LocalApiError> {
        const CALL: &str = "check-udp-gro-forwarding";
        let warned: Warned = json(CALL, self.call(CALL, Method::GET, CALL, Vec::new(), READ_TIMEOUT).await?.body())?;
        Ok(warned.warning.filter(|warning| !warning.is_empty()))
    }

    /// Metrics of the daemon, in the Prometheus text format.
    pub async fn usermetrics(&self) -> Result<Bytes, LocalApiError> {
        Ok(self.call("usermetrics", Method::GET, "usermetrics", Vec::new(), READ_TIMEOUT).await?.into_body())
    }

    /// Pings the node that has an address once; `false` if the daemon reports an error. No response within `limit` is an error.
    pub async fn ping(&self, ip: IpAddr, ping: PingKind, limit: Duration) -> Result<bool, LocalApiError> {
        const CALL: &str = "ping";
        let kind = match ping {
            PingKind::Disco => "disco",
            PingKind::Tsmp => "TSMP",
        };
        let answer = self.call(CALL, Method::POST, &format!("{CALL}?ip={ip}&type={kind}"), Vec::new(), limit).await?;
        let answer: Pong = json(CALL, answer.body())?;
        Ok(answer.err.is_empty() || answer.is_local_ip)
    }

    /// Subscribes to the IPN bus. `mask` is [`MASK`], [`MASK_WITHOUT_PEERS`] or [`MASK_OLD`].
    pub async fn watch(&self, mask: u32) -> Result<Bus, LocalApiError> {
        const CALL: &str = "watch-ipn-bus";
        let request = request(CALL, Method::GET, &format!("{CALL}?mask={mask}"), Vec::new())?;
        let open = async {
            let (mut sender, driver) = self.connect(CALL).await?;
            let mut connection = JoinSet::new();
            connection.spawn(driver);
            let answer = sender.send_request(request).await.map_err(|source| LocalApiError::Connection { call: CALL, source })?;
            let capver = capver(&answer);
            if answer.status() != StatusCode::OK {
                return Err(LocalApiError::Refused { call: CALL, status: answer.status(), text: String::new() });
            }
            Ok(Bus { body: answer.into_body(), _connection: connection, buffer: BytesMut::new(), scanned: 0, capver })
        };
        timeout(READ_TIMEOUT, open).await.unwrap_or(Err(LocalApiError::Deadline { call: CALL, after: READ_TIMEOUT }))
    }

    async fn call(
        &self,
        call: &'static str,
        method: Method,
        path: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Response<Bytes>, LocalApiError> {
        self.exchange(call, request(call, method, path, body)?, limit).await
    }

    async fn connect(
        &self,
        call: &'static str,
    ) -> Result<(http1::SendRequest<Full<Bytes>>, http1::Connection<TokioIo<UnixStream>, Full<Bytes>>), LocalApiError> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|source| LocalApiError::Connect { socket: self.socket.clone(), source })?;
        http1::handshake(TokioIo::new(stream)).await.map_err(|source| LocalApiError::Connection { call, source })
    }

    async fn exchange(&self, call: &'static str, request: Request<Full<Bytes>>, limit: Duration) -> Result<Response<Bytes>, LocalApiError> {
        let work = async {
            let (mut sender, connection) = self.connect(call).await?;
            let talk = async move {
                let answer = sender.send_request(request).await.map_err(|source| LocalApiError::Connection { call, source })?;
                let (head, body) = answer.into_parts();
                let body = Limited::new(body, MAX_BYTES).collect().await.map_err(|fault| match fault.downcast::<hyper::Error>() {
                    Ok(source) => LocalApiError::Connection { call, source: *source },
                    Err(_) => LocalApiError::TooLong { call },
                })?;
                let body = body.to_bytes();
                Ok(Response::from_parts(head, body))
            };
            join(talk, connection).await.0
        };
        let answer = timeout(limit, work).await.unwrap_or(Err(LocalApiError::Deadline { call, after: limit }))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let text = String::from_utf8_lossy(answer.body()).trim().chars().take(500).collect();
        Err(LocalApiError::Refused { call, status: answer.status(), text })
    }
}

impl Bus {
    /// Receives the next message; `None` when the daemon has closed the stream. The stream remains usable after an error with
    /// [`LocalApiError::stream_goes_on`]. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Notify>, LocalApiError> {
        const CALL: &str = "watch-ipn-bus";
        loop {
            if let Some(line) = self.line() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return json(CALL, &line).map(Some);
            }
            if self.buffer.len() > MAX_BYTES {
                return Err(LocalApiError::TooLong { call: CALL });
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data.chunk())),
                Some(Err(source)) => return Err(LocalApiError::Connection { call: CALL, source }),
                None => return Ok(None),
            }
        }
    }

    /// Takes the next complete line; bytes without a line end are scanned only once.
    fn line(&mut self) -> Option<Bytes> {
        let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.scanned + end + 1).freeze();
        self.scanned = 0;
        Some(line)
    }
}

fn request(call: &'static str, method: Method, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>, LocalApiError> {
    Request::builder()
        .method(method)
        .uri(format!("/localapi/v0/{path}"))
        .header("Host", "local-tailscaled.sock")
        .header("Tailscale-Cap", CAPVER)
        .body(Full::from(body))
        .map_err(|source| LocalApiError::Request { call, source })
}

fn capver<B>(answer: &Response<B>) -> Option<u32> {
    answer.headers().get("Tailscale-Cap")?.to_str().ok()?.parse().ok()
}

fn json<T: DeserializeOwned>(call: &'static str, bytes: &[u8]) -> Result<T, LocalApiError> {
    serde_json::from_slice(bytes).map_err(|source| LocalApiError::Json { call, source })
}

fn encode<T: serde::Serialize>(call: &'static str, value: &T) -> Result<Vec<u8>, LocalApiError> {
    serde_json::to_vec(value).map_err(|source| LocalApiError::Json { call, source })
}

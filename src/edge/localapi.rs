//! The LocalAPI of tailscaled: HTTP/1.1 over its unix socket.
//!
//! Each call has a connection and a deadline of its own, so that one that hangs hinders no other. [`Bus`] hands out one message
//! at a time and remembers nothing of it: whoever reads must fold at once, for the daemon ends the stream of a slow reader.

mod record;
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

/// What the bus is asked for: the status and the health at the beginning, then changes of peers, small ones as such, no full maps.
pub const MASK: u32 = 16384 | 8192 | 4096 | 128 | 4 | 32768;
/// What a daemon before 1.100 is asked for: its state and its map at the beginning, and full maps from then on.
pub const MASK_OLD: u32 = 128 | 8 | 4 | 2;

/// How long a question may take.
const READ: Duration = Duration::from_secs(5);
/// How long a change may take: the daemon may be writing its state to an API server that is slow.
const WRITE: Duration = Duration::from_secs(35);
/// The longest message or answer: a status of some 40,000 peers.
const MAX_BYTES: usize = 64 << 20;
/// The capability version that this reader claims; informational.
const CAPVER: &str = "142";

#[derive(Debug, Clone)]
pub struct LocalApi {
    socket: PathBuf,
}

/// By what way a node of the tailnet is asked whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PingKind {
    /// Outside the tunnel: whether there is a way to it, and whether it knows this node.
    Disco,
    /// Through the tunnel, which is made if there is none.
    Tsmp,
}

pub struct Bus {
    body: Incoming,
    /// The task that drives the connection.
    _connection: JoinSet<hyper::Result<()>>,
    buffer: BytesMut,
    scanned: usize,
    capver: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
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
    Json { call: &'static str, source: serde_json::Error },
    #[error("{call}: more than {MAX_BYTES} bytes at once")]
    TooLong { call: &'static str },
    #[error("{call}: {source}")]
    Request { call: &'static str, source: hyper::http::Error },
    #[error("tailscaled did not take the config file; its own log says why ({0})")]
    NotReloaded(String),
}

impl LocalApiError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "Connect",
            Self::Connection { .. } => "Connection",
            Self::Deadline { .. } => "Deadline",
            Self::Refused { .. } => "Refused",
            Self::Json { .. } => "Malformed",
            Self::TooLong { .. } => "TooLong",
            Self::Request { .. } => "Request",
            Self::NotReloaded(_) => "NotReloaded",
        }
    }

    /// Whether a stream goes on after this: one message could not be read, the next may.
    pub fn stream_goes_on(&self) -> bool {
        matches!(self, Self::Json { .. })
    }
}

impl LocalApi {
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self { socket: socket.as_ref().to_owned() }
    }

    /// The whole state, and the daemon's capability version.
    pub async fn status(&self) -> Result<(DaemonStatus, Option<u32>), LocalApiError> {
        let answer = self.call("status", Method::GET, "status", Vec::new(), READ).await?;
        Ok((json("status", answer.body())?, capver(&answer)))
    }

    pub async fn prefs(&self) -> Result<Prefs, LocalApiError> {
        json("prefs", self.call("prefs", Method::GET, "prefs", Vec::new(), READ).await?.body())
    }

    /// Changes preferences; returns those in force afterwards.
    pub async fn edit_prefs(&self, change: &MaskedPrefs) -> Result<Prefs, LocalApiError> {
        let body = encode("edit-prefs", change)?;
        json("edit-prefs", self.call("edit-prefs", Method::PATCH, "prefs", body, WRITE).await?.body())
    }

    pub async fn reload_config(&self) -> Result<(), LocalApiError> {
        let answer = self.call("reload-config", Method::POST, "reload-config", Vec::new(), WRITE).await?;
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
        json("dns-config", self.call("dns-config", Method::GET, "dns-config", Vec::new(), READ).await?.body())
    }

    /// Starts the daemon's engine again, with a key to log in by.
    pub async fn start(&self, options: &StartOptions) -> Result<(), LocalApiError> {
        let body = encode("start", options)?;
        self.call("start", Method::POST, "start", body, WRITE).await.map(drop)
    }

    /// Asks for a login where there has been none; with a key given to [`Self::start`] nobody has to act.
    pub async fn login_interactive(&self) -> Result<(), LocalApiError> {
        self.call("login-interactive", Method::POST, "login-interactive", Vec::new(), WRITE).await.map(drop)
    }

    /// Leaves the control server; connections to peers stay.
    pub async fn disconnect_control(&self) -> Result<(), LocalApiError> {
        self.call("disconnect-control", Method::POST, "disconnect-control", Vec::new(), WRITE).await.map(drop)
    }

    /// Lets the kernel join UDP packets that are forwarded.
    pub async fn set_udp_gro_forwarding(&self) -> Result<(), LocalApiError> {
        self.call("set-udp-gro-forwarding", Method::GET, "set-udp-gro-forwarding", Vec::new(), READ).await.map(drop)
    }

    /// What the daemon finds wrong with joined UDP packets on the machine's link; nothing if all is well.
    pub async fn check_udp_gro_forwarding(&self) -> Result<Option<String>, LocalApiError> {
        const CALL: &str = "check-udp-gro-forwarding";
        let warned: Warned = json(CALL, self.call(CALL, Method::GET, CALL, Vec::new(), READ).await?.body())?;
        Ok(warned.warning.filter(|warning| !warning.is_empty()))
    }

    /// The daemon's own metrics, in Prometheus' text format.
    pub async fn usermetrics(&self) -> Result<Bytes, LocalApiError> {
        Ok(self.call("usermetrics", Method::GET, "usermetrics", Vec::new(), READ).await?.into_body())
    }

    /// Asks the node that answers for an address once; false if the daemon says that it cannot be asked. An answer that does
    /// not come within `limit` fails.
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

    /// Subscribes to the bus. `mask` is [`MASK`] or [`MASK_OLD`].
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
        timeout(READ, open).await.unwrap_or(Err(LocalApiError::Deadline { call: CALL, after: READ }))
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
    pub fn capver(&self) -> Option<u32> {
        self.capver
    }

    /// The next message; nothing when the daemon has ended the stream. After an error for which
    /// [`LocalApiError::stream_goes_on`] holds the next message can be asked for. May be dropped at any time without loss.
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

    /// The next whole line, without looking twice at bytes that hold no end of one.
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

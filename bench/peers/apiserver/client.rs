//! Clients of the API server over HTTP/1.1, as kubectl is one of the stock proxy: requests on one connection, and sessions of `exec`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// How long a connection, or a request with its response, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a site may take until it answers at all.
const START: Duration = Duration::from_mins(2);
/// Between two attempts of that.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) type Connection = http1::SendRequest<Full<Bytes>>;

/// A way to the API server.
#[derive(Clone)]
pub(crate) struct Site {
    /// Name in the certificate.
    pub(crate) name: String,
    pub(crate) at: SocketAddr,
    pub(crate) tls: TlsConnector,
    /// Token of the client. Without one its identity is that of its tailnet node.
    pub(crate) token: Option<&'static str>,
}

/// Result of a request that is repeated as Go's HTTP client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    Answered,
    /// A connection that had been used before ended without a byte of the response; another one answered.
    Repeated,
    Failed,
}

impl Site {
    /// A new connection after a full handshake.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        let connected = async {
            let stream = TcpStream::connect(self.at).await?;
            stream.set_nodelay(true)?;
            let stream = self.tls.connect(ServerName::try_from(self.name.clone())?, stream).await?;
            let (client, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection.with_upgrades());
            anyhow::Ok(client)
        };
        timeout(PATIENCE, connected).await.with_context(|| format!("no connection to {} in time", self.name))?
    }

    /// Waits until the API server answers this path.
    pub(crate) async fn reached(&self, path: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.connect_and_get(path).await {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > START => return Err(error.context(format!("{} does not answer", self.name))),
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    async fn connect_and_get(&self, path: &str) -> Result<usize> {
        self.get(&mut self.connect().await?, path).await
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(path).header(HOST, &self.name);
        let token = self.token.map(|token| format!("Bearer {token}"));
        token.into_iter().fold(request, |request, token| request.header(AUTHORIZATION, token))
    }

    /// Sends a GET request on a connection; returns the size of the response's body.
    pub(crate) async fn get(&self, connection: &mut Connection, path: &str) -> Result<usize> {
        let received = async { read(self.begin(connection, path).await?).await };
        timeout(PATIENCE, received).await.context("no response in time")?
    }

    /// Sends a GET request on a connection; returns the response without its body.
    pub(crate) async fn begin(&self, connection: &mut Connection, path: &str) -> Result<Response<Incoming>> {
        connection.ready().await?;
        let response = connection.send_request(self.request(Method::GET, path).body(Full::default())?).await?;
        ensure!(response.status().is_success(), "{path}: {}", response.status());
        Ok(response)
    }

    /// As [`Self::get`], as Go's HTTP client does it for kubectl: an idempotent request is repeated on another connection if a connection that
    /// was used before fails without a byte of the response.
    pub(crate) async fn get_or_repeat(&self, connection: &mut Option<Connection>, path: &str) -> Exchange {
        let whole = async {
            if let Some(client) = connection {
                match self.begin(client, path).await {
                    Ok(response) => return read(response).await.map(|_| Exchange::Answered),
                    Err(error) if error.is::<hyper::Error>() => {}
                    Err(refused) => return Err(refused),
                }
            }
            let exchange = if connection.is_some() { Exchange::Repeated } else { Exchange::Answered };
            let client = connection.insert(self.connect().await?);
            read(self.begin(client, path).await?).await.map(|_| exchange)
        };
        let ended = timeout(PATIENCE, whole).await;
        if let Ok(Ok(exchange)) = ended {
            return exchange;
        }
        *connection = None;
        Exchange::Failed
    }

    /// Sends an object on a connection; returns that of the response.
    pub(crate) async fn send(&self, connection: &mut Connection, method: Method, path: &str, object: &Value) -> Result<Value> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = self.request(method, path).header(CONTENT_TYPE, kind).body(Full::new(object.to_string().into()))?;
        connection.ready().await?;
        let (status, body) = timeout(PATIENCE, async {
            let response = connection.send_request(request).await?;
            anyhow::Ok((response.status(), response.into_body().collect().await?.to_bytes()))
        })
        .await??;
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }

    /// Begins a session of `exec` on a connection of its own.
    pub(crate) async fn exec(&self, path: &str) -> Result<TokioIo<Upgraded>> {
        let mut connection = self.connect().await?;
        let request = self.request(Method::POST, path).header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1");
        let request = request.header("x-stream-protocol-version", "v4.channel.k8s.io").body(Full::default())?;
        let upgraded = async {
            let response = connection.send_request(request).await?;
            ensure!(response.status() == StatusCode::SWITCHING_PROTOCOLS, "{path}: {}", response.status());
            Ok(TokioIo::new(hyper::upgrade::on(response).await?))
        };
        timeout(PATIENCE, upgraded).await.context("no session in time")?
    }
}

/// Reads a response to its end; returns the size of its body.
async fn read(response: Response<Incoming>) -> Result<usize> {
    let (mut body, mut size) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        size += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(size)
}

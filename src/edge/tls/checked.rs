//! TLS client with verification, as a user's client connects: the server must present a certificate for the name, issued by a trusted CA.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ALPN, TlsError, client_config, roots};

/// Connects with certificate verification. Each connection has a full handshake, without session resumption. ALPN offers HTTP/1.1 only.
#[derive(Debug, Clone)]
pub struct Checked(Arc<ClientConfig>);

impl Checked {
    /// Trusts these CA certificates, in PEM. Fails if there is none.
    pub fn new(authorities: &[u8]) -> Result<Self, TlsError> {
        let mut config = client_config()?.with_root_certificates(roots(authorities)?).with_no_client_auth();
        config.alpn_protocols = vec![ALPN[1].to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Opens TLS to the server of this name.
    pub async fn connect<S>(&self, name: &str, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}

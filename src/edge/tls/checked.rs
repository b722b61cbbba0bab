//! TLS client with verification, as a user's client connects: the server must present a certificate for the name, issued by a trusted CA.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ALPN, TlsError};

/// Connects with certificate verification. Each connection has a full handshake, without session resumption. ALPN offers HTTP/1.1 only.
#[derive(Debug, Clone)]
pub struct Checked(Arc<ClientConfig>);

impl Checked {
    /// Trusts these CA certificates, in PEM. Fails if there is none.
    pub fn new(authorities: &[u8]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            let certificate = certificate.map_err(|error| TlsError::Chain(error.to_string()))?;
            // The CA bundle of a system may contain unusable certificates.
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err(TlsError::Chain("it holds no certificate of an authority".to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TlsError::Setup)?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
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

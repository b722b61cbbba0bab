//! TLS client for backends in the cluster, whose certificates have no CA that the proxy trusts.
//!
//! The certificate is not verified, as in the Tailscale operator's proxies; the signature that proves possession of its key is.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ALPN, TlsError};

#[derive(Debug, Clone)]
pub struct Connector {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl Connector {
    pub fn new() -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TlsError::Setup)?;
        let mut any = builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider))).with_no_client_auth();
        let mut http1 = any.clone();
        any.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        http1.alpn_protocols = vec![ALPN[1].to_vec()];
        Ok(Self { any: Arc::new(any), http1: Arc::new(http1) })
    }

    /// Opens TLS. SNI is `name`, unless it is an IP address. Offers HTTP/2 if `http2` allows it; returns whether it was negotiated.
    pub async fn connect<S>(&self, name: &str, stream: S, http2: bool) -> Result<(TlsStream<S>, bool), TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(name.to_owned()).map_err(|error| TlsError::Handshake(io::Error::other(error)))?;
        let connector = TlsConnector::from(Arc::clone(if http2 { &self.any } else { &self.http1 }));
        let stream = connector.connect(name, stream).await.map_err(TlsError::Handshake)?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(ALPN[0]);
        Ok((stream, http2))
    }
}

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

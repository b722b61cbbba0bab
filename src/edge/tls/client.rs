//! TLS client for backends.
//!
//! Certificates of backends in the cluster have no CA that the proxy trusts: they are not verified, as in the Tailscale operator's proxies;
//! the signature that proves possession of the key is. A client with a CA bundle verifies them.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::model::ingress::certificate::Pair;
use crate::runtime::snapshot::SnapshotCell;

use super::{ALPN, TlsError, certified_key, client_config, roots};

/// The newest TLS client, which clones share.
#[derive(Debug, Clone)]
pub struct Connector(SnapshotCell<AlpnConfigs>);

/// A TLS client of one config. Clients of other configs differ: they may trust other servers, or present another certificate.
#[derive(Debug, Clone)]
pub struct TlsClient(Arc<AlpnConfigs>);

/// The same config for each set of HTTP versions.
#[derive(Debug)]
struct AlpnConfigs {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl Connector {
    /// Accepts every certificate of a server.
    pub fn new() -> Result<Self, TlsError> {
        let verifier = Arc::new(Unchecked(Arc::new(ring::default_provider())));
        let config = client_config()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Self(SnapshotCell::new(AlpnConfigs::of(config))))
    }

    /// Verifies certificates of servers, and accepts none before [`Self::trust`].
    pub fn verifying() -> Result<Self, TlsError> {
        let config = client_config()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        Ok(Self(SnapshotCell::new(AlpnConfigs::of(config))))
    }

    /// From the next handshake on trusts only these CA certificates, in PEM, and presents its `own` certificate on request. Fails without a
    /// change if there is no CA certificate, or if its own is unusable.
    pub fn trust(&self, authorities: &[u8], own: Option<&Pair>) -> Result<(), TlsError> {
        let builder = client_config()?.with_root_certificates(roots(authorities)?);
        let config = match own {
            Some(pair) => {
                let key = certified_key(pair, &ring::default_provider())?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
            }
            None => builder.with_no_client_auth(),
        };
        self.0.replace(AlpnConfigs::of(config));
        Ok(())
    }

    pub fn client(&self) -> TlsClient {
        TlsClient(Arc::clone(&self.0.read()))
    }
}

impl TlsClient {
    /// Opens TLS. SNI is `name`, unless it is an IP address. Offers HTTP/2 if `http2` allows it; returns whether it was negotiated.
    pub async fn connect<S>(&self, name: &str, stream: S, http2: bool) -> Result<(TlsStream<S>, bool), TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(name.to_owned()).map_err(|error| TlsError::Handshake(io::Error::other(error)))?;
        let config = Arc::clone(if http2 { &self.0.any } else { &self.0.http1 });
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(TlsError::Handshake)?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(ALPN[0]);
        Ok((stream, http2))
    }
}

impl PartialEq for TlsClient {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AlpnConfigs {
    fn of(mut any: ClientConfig) -> Self {
        let mut http1 = any.clone();
        any.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        http1.alpn_protocols = vec![ALPN[1].to_vec()];
        Self { any: Arc::new(any), http1: Arc::new(http1) }
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

//! TLS: server side with the certificate of the SNI name; client side to backends, with verification or without, and to probed services.
//!
//! Certificates are parsed once, on arrival ([`Certificates::load`]); a handshake only looks one up in memory, without I/O. A new
//! certificate is used from the next handshake on; open connections are not affected. An unusable certificate never replaces a usable one.
//! The caller sets the names of a listener.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{Acceptor as Hello, ClientHello, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;

use crate::model::ingress::certificate::Pair;
use crate::runtime::snapshot::SnapshotCell;

mod checked;
mod client;

pub use checked::Checked;
pub use client::{Connector, TlsClient};
pub use tokio_rustls::client::TlsStream as ClientStream;
pub use tokio_rustls::server::TlsStream as ServerStream;

/// ALPN protocols in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Certificates of this process, by name.
#[derive(Debug, Clone)]
pub struct Certificates {
    loaded: SnapshotCell<Loaded>,
    tickets: Arc<dyn ProducesTickets>,
    provider: Arc<CryptoProvider>,
}

type Loaded = BTreeMap<String, (Pair, Arc<CertifiedKey>)>;

/// TLS acceptor for a set of names.
#[derive(Debug, Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    names: Arc<CertifiedNames>,
}

/// Names of a listener, and their certificates.
#[derive(Debug)]
struct CertifiedNames {
    names: BTreeSet<String>,
    loaded: SnapshotCell<Loaded>,
}

/// A certificate is unusable or a handshake failed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum TlsError {
    #[error("the certificate chain cannot be read: {0}")]
    Chain(String),
    #[error("the key cannot be read: {0}")]
    Key(String),
    /// The key is unusable or does not belong to the certificate.
    #[error("certificate and key cannot be used together: {0}")]
    Pair(#[source] rustls::Error),
    /// The SNI name is not served here, or its certificate is not loaded yet.
    #[error("no certificate for {0:?}")]
    UnknownName(String),
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    #[error("TLS cannot be set up: {0}")]
    Setup(#[source] rustls::Error),
}

impl TlsError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

impl Certificates {
    /// Creates an empty store. Fails without randomness for session tickets.
    pub fn new() -> Result<Self, TlsError> {
        let tickets = ring::Ticketer::new().map_err(TlsError::Setup)?;
        Ok(Self { loaded: SnapshotCell::new(Loaded::new()), tickets, provider: Arc::new(ring::default_provider()) })
    }

    /// Loads certificates and returns the errors of unusable ones. A loaded certificate remains while its name is wanted and no usable
    /// replacement arrives.
    pub fn load(&self, pairs: &BTreeMap<String, Pair>, wanted: &BTreeSet<String>) -> BTreeMap<String, TlsError> {
        let before = self.loaded.read();
        let mut faults = BTreeMap::new();
        let mut after: Loaded =
            before.iter().filter(|(name, _)| wanted.contains(*name)).map(|(name, had)| (name.clone(), had.clone())).collect();
        for (name, pair) in pairs.iter().filter(|(name, _)| wanted.contains(*name)) {
            if before.get(name).is_some_and(|(had, _)| had == pair) {
                continue;
            }
            match certified_key(pair, &self.provider) {
                Ok(key) => drop(after.insert(name.clone(), (pair.clone(), Arc::new(key)))),
                Err(error) => drop(faults.insert(name.clone(), error)),
            }
        }
        self.loaded.replace(after);
        faults
    }

    /// Whether a certificate for this name is loaded.
    pub fn has(&self, name: &str) -> bool {
        self.loaded.read().contains_key(name)
    }

    /// Creates an acceptor for only these names.
    pub fn acceptor(&self, names: BTreeSet<String>) -> Result<Acceptor, TlsError> {
        let names = Arc::new(CertifiedNames { names, loaded: self.loaded.clone() });
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TlsError::Setup)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&names) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        config.ticketer = Arc::clone(&self.tickets);
        Ok(Acceptor { config: Arc::new(config), names })
    }
}

fn certified_key(pair: &Pair, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pair.chain).collect();
    let chain = chain.map_err(|error| TlsError::Chain(error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::Chain("it is empty".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|error| TlsError::Key(error.to_string()))?;
    CertifiedKey::from_der(chain, key, provider).map_err(TlsError::Pair)
}

/// Trusted CA certificates, in PEM. Fails if there is none.
fn roots(authorities: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let certificate = certificate.map_err(|error| TlsError::Chain(error.to_string()))?;
        // The CA bundle of a system may contain unusable certificates.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(TlsError::Chain("it holds no certificate of an authority".to_owned()));
    }
    Ok(roots)
}

fn client_config() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsError> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(TlsError::Setup)
}

impl Acceptor {
    /// Accepts a connection; the caller applies the timeout of the handshake.
    pub async fn accept<S>(&self, stream: S) -> Result<ServerStream<S>, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let start = LazyConfigAcceptor::new(Hello::default(), stream).await.map_err(TlsError::Handshake)?;
        let name = start.client_hello().server_name().map(str::to_owned);
        let unknown = self.names.find(name.as_deref()).is_none();
        match start.into_stream(Arc::clone(&self.config)).await {
            // rustls has already sent an alert to the client.
            Err(_) if unknown => Err(TlsError::UnknownName(name.unwrap_or_default())),
            done => done.map_err(TlsError::Handshake),
        }
    }
}

impl CertifiedNames {
    /// Certificate for an SNI name; without SNI the only one of the listener, if it has one name.
    fn find(&self, server_name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let name = match server_name {
            Some(requested) => self.name(&requested.to_ascii_lowercase())?,
            None if self.names.len() == 1 => self.names.first()?,
            None => return None,
        };
        self.loaded.read().get(name).map(|(_, key)| Arc::clone(key))
    }

    fn name(&self, server_name: &str) -> Option<&String> {
        let wild = || self.names.get(&format!("*.{}", server_name.split_once('.')?.1));
        self.names.get(server_name).or_else(wild)
    }
}

impl ResolvesServerCert for CertifiedNames {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name())
    }
}

/// Whether a client connection negotiated HTTP/2.
pub fn is_http2<S>(stream: &ServerStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(ALPN[0])
}

#[cfg(test)]
mod tests;

//! HTTPS clients: user agent, and additional trusted CAs.
//!
//! A CA bundle is often a copy of a whole system's. An unusable certificate of it (obsolete format, truncated block) is skipped with a
//! warning and does not affect the others; a bundle without any usable certificate is an error, because it is certainly a mistake.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    #[error("the certificate authorities at {} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// No certificate of the bundle is usable.
    #[error("of the certificate authorities at {} none can be used: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    #[error("{0}")]
    Client(String),
}

/// Builder of a client that also trusts the PEM certificates of this file.
pub fn builder(authorities: Option<&Path>) -> Result<ClientBuilder, HttpsError> {
    // Another part may have installed a provider already; either works.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder().user_agent(concat!("tailyard/", env!("CARGO_PKG_VERSION"))).connect_timeout(CONNECT_TIMEOUT);
    let Some(path) = authorities else { return Ok(builder) };
    let text = std::fs::read(path).map_err(|source| HttpsError::Read { path: path.to_owned(), source })?;
    let (good, bad) = sort(&text);
    if good.is_empty() {
        let why = if bad.is_empty() { "there is no certificate in it".to_owned() } else { bad.join("; ") };
        return Err(HttpsError::Unusable { path: path.to_owned(), why });
    }
    for why in bad {
        tracing::warn!(path = %path.display(), "ignored an invalid CA certificate: {why}");
    }
    let good: Result<Vec<_>, _> = good.iter().map(|der| Certificate::from_der(der)).collect();
    Ok(builder.tls_certs_merge(good.map_err(|error| HttpsError::Client(causes(&error)))?))
}

/// Builds the client. The error includes its cause.
pub fn build(builder: ClientBuilder) -> Result<Client, HttpsError> {
    builder.build().map_err(|error| HttpsError::Client(causes(&error)))
}

/// An error with all its causes; the outermost message alone has none.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| (**cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Usable CA certificates, and the errors of the others with their position in the file.
fn sort(text: &[u8]) -> (Vec<CertificateDer<'static>>, Vec<String>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (index, found) in CertificateDer::pem_slice_iter(text).enumerate() {
        let taken = found.map_err(|error| error.to_string()).and_then(|der| {
            RootCertStore::empty().add(der.clone()).map_err(|error| error.to_string())?;
            Ok(der)
        });
        match taken {
            Ok(der) => good.push(der),
            Err(why) => bad.push(format!("number {}: {why}", index + 1)),
        }
    }
    (good, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority(name: &str) -> String {
        rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate").cert.pem()
    }

    /// A PEM block without a certificate that TLS accepts.
    const REFUSED: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";

    fn made(text: &str) -> Result<(), HttpsError> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, text).expect("written");
        build(builder(Some(&path))?).map(drop)
    }

    #[test]
    fn unusable_certificates_of_a_bundle_are_skipped() {
        let (one, two) = (authority("one"), authority("two"));
        let torn = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
        let bundle = format!("# a comment\n{one}\n{REFUSED}{torn}{two}-----BEGIN CERTIFICATE-----\nMAMC");
        let (good, bad) = sort(bundle.as_bytes());
        assert_eq!(good.len(), 2, "{bad:?}");
        assert_eq!(bad.iter().map(|why| why.split(':').next().expect("a place")).collect::<Vec<_>>(), ["number 2", "number 3", "number 5"]);
        made(&bundle).expect("a client");
    }

    #[test]
    fn bundle_without_usable_certificates_is_an_error() {
        for (text, why) in
            [("", "there is no certificate in it"), (REFUSED, "number 1: "), ("no PEM at all", "there is no certificate in it")]
        {
            let error = made(text).expect_err("none is left").to_string();
            assert!(error.contains("ca.pem none can be used") && error.contains(why), "{error}");
        }
        let error = builder(Some(Path::new("/nowhere/ca.pem"))).expect_err("nothing to read").to_string();
        assert!(error.starts_with("the certificate authorities at /nowhere/ca.pem cannot be read: "), "{error}");
    }
}

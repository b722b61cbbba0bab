//! Parsing and checking of certificates in Secrets: names, validity, and match of the key.
//!
//! Trust in the chain is the client's decision: signers are not checked.

use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use k8s_openapi::jiff::Timestamp;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

use crate::model::ingress::cert_orders::Certificate;

/// Certificate chain and private key, both in PEM; the fields `tls.crt` and `tls.key` of a Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// Leaf certificate, followed by its issuers.
    pub chain: Arc<[u8]>,
    pub key: Arc<[u8]>,
}

/// Content of a leaf certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub certificate: Certificate,
    /// DNS names in lower case; some may begin with `*.`.
    pub names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("tls.crt or tls.key is empty")]
    Empty,
    /// The chain is not PEM text of certificates.
    #[error("tls.crt cannot be read: {0}")]
    Chain(String),
    /// The key is not PEM text of a supported key.
    #[error("tls.key cannot be read: {0}")]
    Key(String),
    /// The key does not match the certificate.
    #[error("tls.key is not the key of the first certificate in tls.crt")]
    Mismatch,
    #[error("the certificate is for {}, and not for {name}", names.join(", "))]
    Name { name: String, names: Vec<String> },
}

impl CertificateError {
    /// Label value; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Chain(_) => "Chain",
            Self::Key(_) => "Key",
            Self::Mismatch => "Mismatch",
            Self::Name { .. } => "Name",
        }
    }
}

impl Pair {
    /// Parses the leaf. Fails if chain or key cannot be read or do not match.
    pub fn leaf(&self) -> Result<Leaf, CertificateError> {
        if self.chain.is_empty() || self.key.is_empty() {
            return Err(CertificateError::Empty);
        }
        let chain = |why: &dyn std::fmt::Display| CertificateError::Chain(why.to_string());
        let mut all = CertificateDer::pem_slice_iter(&self.chain);
        let first = all.next().ok_or_else(|| chain(&"there is no certificate in it"))?.map_err(|error| chain(&error))?;
        all.try_for_each(|next| next.map(drop)).map_err(|error| chain(&error))?;
        let (_, parsed) = X509Certificate::from_der(&first).map_err(|error| chain(&error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| CertificateError::Key(error.to_string()))?;
        let key = any_supported_type(&key).map_err(|error| CertificateError::Key(error.to_string()))?;
        if key.public_key() != Some(SubjectPublicKeyInfoDer::from(parsed.public_key().raw)) {
            return Err(CertificateError::Mismatch);
        }
        let validity = parsed.validity();
        let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|error| chain(&error));
        let (from, until) = (time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?);
        Ok(Leaf { certificate: Certificate { id: id(&parsed), from, until }, names: names(&parsed) })
    }
}

/// End of the first certificate of a chain, whose key is not known.
pub fn expiry(chain: &[u8]) -> Option<Timestamp> {
    let first = CertificateDer::pem_slice_iter(chain).next()?.ok()?;
    let (_, parsed) = X509Certificate::from_der(&first).ok()?;
    Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()
}

impl Leaf {
    pub fn is_for(&self, name: &str) -> Result<(), CertificateError> {
        let name = name.to_ascii_lowercase();
        let parent = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        if self.names.iter().any(|own| *own == name || Some(own) == parent.as_ref()) {
            return Ok(());
        }
        Err(CertificateError::Name { name, names: self.names.clone() })
    }
}

/// Certificate ID at the ACME server (RFC 9773, 4.1): authority key identifier and serial number.
fn id(parsed: &X509Certificate<'_>) -> String {
    let signer = parsed.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(identifier) => identifier.key_identifier.as_ref().map(|id| id.0),
        _ => None,
    });
    let encode = |bytes| BASE64_URL_SAFE_NO_PAD.encode::<&[u8]>(bytes);
    format!("{}.{}", encode(signer.unwrap_or_default()), encode(parsed.raw_serial()))
}

fn names(parsed: &X509Certificate<'_>) -> Vec<String> {
    let found = parsed.subject_alternative_name().ok().flatten();
    let names = found.into_iter().flat_map(|extension| &extension.value.general_names);
    names.filter_map(|name| if let GeneralName::DNSName(name) = name { Some(name.to_ascii_lowercase()) } else { None }).collect()
}

impl std::fmt::Debug for Pair {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("chain", &String::from_utf8_lossy(&self.chain)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
